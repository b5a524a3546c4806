"""The target's choice by its definitions: each transform over all tokens, in numpy, in the plainest way.

A row is a copy of float32 logits, [n_vocab]; -inf is out. Nothing here is fast, and nothing is shared with csrc.
Random settings and histories are at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import pyspec

N = 384  # size of the zoo's vocabulary
OPEN: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "dry_sequence_breakers": (),
    "seed": 1,
}

Row = npt.NDArray[np.float32]
Probs = npt.NDArray[np.float64]
Ways = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Heads and tail per sequence breaker."""


def writable(rows: pyspec.Rows, i: int) -> Row:
    """Return row ``i`` as an array that can be written, so that a test can say what the model said."""

    class Interface:
        def __init__(self, view: Row) -> None:
            self.view = view  # keeps the memory
            address, _read_only = view.__array_interface__["data"]
            self.__array_interface__ = {**view.__array_interface__, "data": (address, False)}

    return np.asarray(Interface(rows.logits(i)))


def fill(row: Row, seed: int, spread: float = 3.0) -> None:
    """Make a random row; four of its tokens are often among the likely ones."""
    row[:] = np.random.default_rng(seed).normal(0, spread, N)
    row[60:64] += spread * (seed % 3)


def words(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Return a mask from one bool per token."""
    n_words = -(-len(allowed) // 32)
    bits = np.zeros(n_words * 32, np.uint8)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def softmax(row: npt.NDArray[Any], temperature: float = 1.0) -> Probs:
    logits = row.astype(np.float64)
    weights = np.exp((logits - logits.max()) / temperature)
    probs: Probs = weights / weights.sum()
    return probs


def entropy(probs: Probs) -> float:
    some = probs[probs > 0]
    return float(-(some * np.log(some)).sum())


def best_first(row: Row) -> npt.NDArray[np.int64]:
    order: npt.NDArray[np.int64] = np.lexsort((np.arange(len(row)), -row.astype(np.float64)))
    return order[np.isfinite(row[order])]


def keep(row: Row, tokens: Any) -> Row:
    kept: Row = np.full_like(row, -np.inf)
    kept[tokens] = row[tokens]
    return kept


def penalised(row: Row, config: pyspec.SamplingConfig, history: Sequence[int]) -> Row:
    changed: Row = row.copy()
    recent = history[-config.repeat_last_n :] if config.repeat_last_n else ()
    for token, count in Counter(recent).items():
        logit = float(row[token])
        logit = logit / config.repeat_penalty if logit > 0 else logit * config.repeat_penalty
        changed[token] = np.float32(logit - count * config.frequency_penalty - config.presence_penalty)
    return changed


def dry(row: Row, config: pyspec.SamplingConfig, history: Sequence[int], ways: Ways = ()) -> Row:
    """Look at each place that is followed by a token: how much of what stands before it stands at the end too."""
    changed: Row = row.copy()
    recent = tuple(history[-config.dry_penalty_last_n :]) if config.has_dry else ()
    written = [(head, *tail) for heads, tail in ways for head in heads]
    limit = next((n for n in range(len(recent)) if _ends_with_any(recent[: len(recent) - n], written)), len(recent))
    longest: dict[int, int] = {}
    for place in range(1, len(recent)):
        n = 0
        while n < min(place, limit) and recent[place - 1 - n] == recent[-1 - n]:
            n += 1
        longest[recent[place]] = max(n, longest.get(recent[place], 0))
    for token, n in longest.items():
        if n >= config.dry_allowed_length and limit >= config.dry_allowed_length and (token,) not in written:
            penalty = config.dry_multiplier * config.dry_base ** (n - config.dry_allowed_length)
            changed[token] -= np.float32(min(penalty, 1e30))
    return changed if len(recent) > config.dry_allowed_length else row


def _ends_with_any(tokens: tuple[int, ...], endings: Sequence[tuple[int, ...]]) -> bool:
    return any(tokens[-len(ending) :] == ending for ending in endings)


def truncated(row: Row, config: pyspec.SamplingConfig) -> Row:
    """Top-n-sigma, top-k, typical, top-p, min-p."""
    left = row
    if config.top_n_sigma > 0:
        finite = row[np.isfinite(row)].astype(np.float64)
        left = keep(row, row >= finite.max() - config.top_n_sigma * finite.std())
    if config.top_k > 0:
        left = keep(left, best_first(left)[: config.top_k])
    if config.typical_p < 1:
        probs, order = softmax(left), best_first(left)
        with np.errstate(divide="ignore"):
            surprise = -np.log(probs[order])
        order = order[np.argsort(np.abs(surprise - entropy(probs)), kind="stable")]
        left = keep(left, order[: 1 + int(np.searchsorted(np.cumsum(probs[order]), config.typical_p, side="right"))])
    if config.top_p < 1:
        probs, order = softmax(left), best_first(left)
        left = keep(left, order[: 1 + int(np.searchsorted(np.cumsum(probs[order]), config.top_p))])
    if config.min_p > 0:
        probs = softmax(left)
        left = keep(left, probs >= config.min_p * probs.max() * (1 - 1e-12))
    return left


def tempered(row: Row, config: pyspec.SamplingConfig) -> Probs:
    temperature = config.temperature
    n = int(np.isfinite(row).sum())
    if config.dynatemp_range > 0 and n > 1:
        share = entropy(softmax(row)) / np.log(n)
        low, high = max(0.0, temperature - config.dynatemp_range), temperature + config.dynatemp_range
        temperature = low + (high - low) * share**config.dynatemp_exponent
    return softmax(row, temperature)


def with_xtc(row: Row, config: pyspec.SamplingConfig) -> Probs:
    probs = softmax(row)
    choices = [token for token in best_first(row) if probs[token] >= config.xtc_threshold]
    everything = tempered(row, config)
    if config.xtc_probability == 0 or len(choices) < 2:
        return everything
    excluded = row.copy()
    excluded[choices[:-1]] = -np.inf
    return (1 - config.xtc_probability) * everything + config.xtc_probability * tempered(excluded, config)


def changed(
    row: Row,
    config: pyspec.SamplingConfig,
    history: Sequence[int] = (),
    ways: Ways = (),
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Row:
    """Return the row with mask, bias, penalties and DRY."""
    logits: Row = row.copy() if allowed is None else keep(row, allowed)
    for token, bias in config.logit_bias.items():
        logits[token] += np.float32(bias)
    return dry(penalised(logits, config, history), config, history, ways)


def distribution(row: Row, config: pyspec.SamplingConfig, **context: Any) -> Probs:
    """Return the probability of each token, [n_vocab]; see ``changed`` for the context."""
    logits = changed(row, config, **context)
    if config.temperature == 0:
        one: Probs = np.zeros(len(row))
        one[np.argmax(logits)] = 1.0
        return one
    return with_xtc(truncated(logits, config), config)


def numbers(seed: int, n: int) -> Probs:
    """Return the random numbers of a sampler, [n] in [0, 1): two outputs of the Mersenne Twister each."""
    raw = np.random.RandomState(seed).randint(0, 2**32, 2 * n, np.uint64).astype(np.float64)
    drawn: Probs = (raw[1::2] * 2.0**32 + raw[::2]) * 2.0**-64
    return drawn


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


_PARTS: list[dict[str, st.SearchStrategy[Any]]] = [
    {"dynatemp_range": one_of(0.1, 0.5, 4.0), "dynatemp_exponent": one_of(0.0, 0.5, 1.0, 2.0)},
    {"top_k": one_of(1, 5, 60, 383, 384, 1000)},
    {"top_p": one_of(0.0, 0.1, 0.6, 0.95)},
    {"min_p": one_of(0.02, 0.1, 0.5, 1.0)},
    {"typical_p": one_of(0.0, 0.2, 0.9)},
    {"top_n_sigma": one_of(0.1, 1.0, 2.5)},
    {"xtc_probability": one_of(0.3, 1.0), "xtc_threshold": one_of(0.0, 0.01, 0.05, 0.2, 0.5, 0.7)},
    {"xtc_probability": one_of(0.5), "xtc_threshold": one_of(0.01), "dynatemp_range": one_of(0.5)},
    {"repeat_penalty": one_of(0.5, 1.4), "repeat_last_n": one_of(0, 1, 7, 64)},
    {"frequency_penalty": one_of(-0.5, 0.7), "repeat_last_n": one_of(1, 7, 64)},
    {"presence_penalty": one_of(-1.0, 2.0), "repeat_last_n": one_of(1, 7, 64)},
    {
        "dry_multiplier": one_of(0.8, 5.0),
        "dry_base": one_of(1.0, 1.2, 1.75, 1e6),
        "dry_allowed_length": one_of(0, 1, 2, 5, 100),
        "dry_penalty_last_n": one_of(0, 1, 9, 300),
    },
    {"logit_bias": st.dictionaries(st.integers(55, 65), one_of(-math.inf, -3.0, 2.0, 100.0), max_size=5)},
]


@st.composite
def configs(draw: st.DrawFn) -> pyspec.SamplingConfig:
    """A temperature and up to four other things."""
    chosen = draw(st.lists(st.integers(0, len(_PARTS) - 1), max_size=4, unique=True))
    options = {name: draw(values) for part in chosen for name, values in _PARTS[part].items()}
    return pyspec.SamplingConfig(**{**OPEN, "temperature": draw(one_of(0.0, 0.2, 1.0, 1.0, 3.0)), **options})


def histories() -> st.SearchStrategy[list[int]]:
    """A few tokens again and again; ``fill`` makes them likely."""
    return st.lists(st.integers(60, 63), max_size=60)
