"""Measured acceptance agrees with its formula within three standard errors, for drafts as drafters make them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyspec.drafters.choosing import Chooser, Sampling
from pyspec.speculation import AcceptRule, Candidates, Draft, DraftRequest, Ending, MatchRule, Sequence
from pyspec.speculation.coupled import CoupledRule
from pyspec.speculation.noise import uniform
from pyspec.speculation.rejection import RejectionRule
from pyspec.speculation.synthetic import SyntheticRule, checked_rates, rates_of_length
from tests.chances import DistributionTable, standard_errors

Probs = npt.NDArray[np.float64]

N_VOCAB = 10  # a draft model's distribution is that of its ten best tokens
TOKENS = np.arange(N_VOCAB, dtype=np.int32)
N_TRIES = 3000
SEED = 5


def pair(similarity: float) -> tuple[Probs, Probs]:
    """Return a target's and a draft model's probabilities, each [N_VOCAB]."""
    rng = np.random.default_rng(int(similarity * 100))
    logits = rng.normal(0.0, 1.5, N_VOCAB)
    other = similarity * logits + (1.0 - similarity) * rng.normal(0.0, 1.5, N_VOCAB)
    return np.exp(logits) / np.exp(logits).sum(), np.exp(other) / np.exp(other).sum()


PAIRS = [pair(0.3), pair(0.7), pair(0.95)]


def drafted(draft_probs: Probs, sampling: Sampling, first: int, n: int) -> Draft:
    """Return what a drafter with these probabilities at every position proposes."""
    chooser = Chooser(N_VOCAB, sampling=sampling)
    request = DraftRequest(0, range(first - 1), 0, first - 1, 99, temperature=1.0, seed=SEED)
    logits = np.log(draft_probs).astype(np.float32)
    choices = [chooser.of_candidates(TOKENS, logits, request, first + i) for i in range(n)]
    tokens = tuple(choice.token for choice in choices if choice is not None)
    probs = [choice.candidates for choice in choices if choice is not None and choice.candidates is not None]
    return Draft(tokens, probs or None)


def emitted(rule: AcceptRule, target_probs: Probs, draft: Draft, first: int) -> tuple[int, ...]:
    """Return what a rule emits at a position."""
    target = Candidates(TOKENS, target_probs)
    sampler = DistributionTable(lambda _: target, uniform, first=first, seed=SEED)
    history: Any = range(first - 1)
    rows: Any = None
    over = Sequence(0, history, 0, sampler, Ending(max_tokens=1 << 20), seed=SEED)
    return rule.accept(draft, rows, over).emitted


def coupled_acceptance(target_probs: Probs, draft_probs: Probs) -> float:
    """Return how often the two best of log probability + shared noise are the same token.

    Token x is both when its exponential clock e_x satisfies e_x / p_x < e_y / p_y and e_x / q_x < e_y / q_y for every
    other y, so when e_x is the least of independent clocks e_y / max(p_y / p_x, q_y / q_x).
    """
    ratios = np.maximum(target_probs / target_probs[:, None], draft_probs / draft_probs[:, None])
    return float((1.0 / ratios.sum(axis=1)).sum())


def formula(rule: str, sampling: Sampling, target_probs: Probs, draft_probs: Probs) -> float:
    if sampling == "greedy":
        return float(target_probs[np.argmax(draft_probs)])
    if rule == "rejection":
        return float(np.minimum(target_probs, draft_probs).sum())
    if rule == "coupled" and sampling == "coupled":
        return coupled_acceptance(target_probs, draft_probs)
    return float((target_probs * draft_probs).sum())


RULES: dict[str, AcceptRule] = {"match": MatchRule(), "rejection": RejectionRule(), "coupled": CoupledRule()}


@pytest.mark.parametrize("similar", range(len(PAIRS)))
@pytest.mark.parametrize("sampling", ["greedy", "probabilistic", "coupled"])
@pytest.mark.parametrize("name", RULES)
def test_acceptance_of_one_token(name: str, sampling: Sampling, similar: int) -> None:
    target_probs, draft_probs = PAIRS[similar]
    n_accepted = 0
    for first in range(1, 1 + N_TRIES):
        draft = drafted(draft_probs, sampling, first, 1)
        n_accepted += len(emitted(RULES[name], target_probs, draft, first)) - 1
    expected = formula(name, sampling, target_probs, draft_probs)
    assert standard_errors(n_accepted, N_TRIES, expected) < 3.0
    distance = 1.0 - np.minimum(target_probs, draft_probs).sum()
    if name == sampling == "coupled":
        deviation = 3.0 * math.sqrt(expected * (1.0 - expected) / N_TRIES)
        assert (1 - distance) / (1 + distance) - deviation < n_accepted / N_TRIES < 1 - distance + deviation
    assert name != "rejection" or sampling == "greedy" or expected == pytest.approx(1.0 - distance)


@pytest.mark.parametrize("name", ["rejection", "coupled"])
def test_tokens_of_a_round(name: str) -> None:
    """With the same acceptance a at every position, (1 - a^(k + 1)) / (1 - a)."""
    k = 4
    target_probs, draft_probs = PAIRS[1]
    sampling: Sampling = "coupled" if name == "coupled" else "probabilistic"
    alpha = formula(name, sampling, target_probs, draft_probs)
    lengths = np.array(
        [
            len(emitted(RULES[name], target_probs, drafted(draft_probs, sampling, first, k), first))
            for first in range(1, 1 + N_TRIES * (k + 1) // 2, k + 1)  # rounds that share no position
        ]
    )
    expected = (1.0 - alpha ** (k + 1)) / (1.0 - alpha)
    assert abs(lengths.mean() - expected) < 3.0 * lengths.std() / math.sqrt(len(lengths))


@pytest.mark.parametrize("length", [1.0, 1.5, 2.75, 4.0, 5.0])
def test_synthetic_rounds_have_the_wanted_length(length: float) -> None:
    k = 4
    rates = rates_of_length(length, k)
    lengths = synthetic_lengths(rates)
    spread = 3.0 * lengths.std() / math.sqrt(len(lengths))
    assert abs(lengths.mean() - length) <= spread


def test_synthetic_rates_are_measured_at_each_position() -> None:
    rates = checked_rates([0.8, 0.8, 0.3, 0.0], 4)
    lengths = synthetic_lengths(rates)
    for i, rate in enumerate(rates):
        n_accepted = int((lengths > i + 1).sum())
        assert n_accepted == 0 if rate == 0.0 else standard_errors(n_accepted, len(lengths), rate) < 3.0


def synthetic_lengths(rates: tuple[float, ...]) -> Probs:
    """Return tokens per round, [N_TRIES]."""
    rule, k = SyntheticRule(rates), len(rates)
    draft = Draft(tuple(range(k)))
    firsts = range(1, 1 + N_TRIES * (k + 1), k + 1)  # rounds that share no position
    return np.array([len(emitted(rule, PAIRS[0][0], draft, first)) for first in firsts], np.float64)
