"""Measured acceptance of drafts of a model agrees with its formula, computed from the rows of both models."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import pyspec
from pyspec import SamplingConfig, Speculation
from pyspec.speculation import Outcome
from tests.helpers import decode, make_context
from tests.pairs import LONG, OpenZoo

Numbers = npt.NDArray[np.float64]

TARGET, DRAFT = "target-llama", "draft-llama"
N_TOKENS, N_MAX, N_CANDIDATES, WIDTH = 400, 3, 10, 64
TEMPERATURE = 2.0
SAMPLING = SamplingConfig(temperature=TEMPERATURE, top_k=0, top_p=1.0, min_p=0.0, seed=23)
LARGE = pyspec.ContextConfig(n_ctx=1024, n_batch=64, n_ubatch=64, n_threads=1)


class Rounds:
    """An observer that keeps the outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def begin(self, info: Any) -> None: ...
    def end(self, result: Any) -> None: ...
    def round(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Formulas(NamedTuple):
    """Chances that a draft token stands, per position of a text, each [n]."""

    of_greedy: Numbers
    of_drawn: Numbers
    overlap: Numbers
    coupled: Numbers


def softmax(rows: Numbers) -> Numbers:
    weights = np.exp((rows - rows.max(axis=-1, keepdims=True)) / TEMPERATURE)
    probs: Numbers = weights / weights.sum(axis=-1, keepdims=True)
    return probs


def rows_of(model: pyspec.Model, tokens: list[int]) -> Numbers:
    """Return the rows that decide what follows each token, [n, n_vocab]."""
    with make_context(model, n_ctx=1024) as context:
        rows = []
        for first in range(0, len(tokens), WIDTH):
            part = decode(context, tokens[first : first + WIDTH])
            rows += [part.logits(i).astype(np.float64) for i in range(len(part))]
    return np.stack(rows)


def formulas(open_zoo: OpenZoo, tokens: list[int]) -> Formulas:
    """Return the chances for a draft token after each token of a text."""
    target = softmax(rows_of(open_zoo(TARGET), tokens))
    draft_rows = rows_of(open_zoo(DRAFT), tokens)
    best = np.argsort(-draft_rows, axis=1, kind="stable")[:, :N_CANDIDATES]
    shares = softmax(np.take_along_axis(draft_rows, best, axis=1))
    draft = np.zeros_like(target)
    np.put_along_axis(draft, best, shares, axis=1)
    places = np.arange(len(tokens))
    return Formulas(
        target[places, best[:, 0]],
        (target * draft).sum(axis=1),
        np.minimum(target, draft).sum(axis=1),
        np.array([both_are_best(target[i], draft[i], best[i]) for i in places]),
    )


def both_are_best(target: Numbers, draft: Numbers, tokens: npt.NDArray[np.int64]) -> float:
    """Return how often the best of log probability + shared Gumbel noise is the same token in both.

    It is token x when its exponential clock is the least of clocks whose rates are the larger one of both ratios to x.
    """
    ratios = np.maximum(target / target[tokens, None], draft / draft[tokens, None])
    return float((1.0 / ratios.sum(axis=1)).sum())


CASES = {
    ("match", "greedy"): "of_greedy",
    ("match", "probabilistic"): "of_drawn",
    ("rejection", "greedy"): "of_greedy",
    ("rejection", "probabilistic"): "overlap",
    ("coupled", "greedy"): "of_greedy",
    ("coupled", "probabilistic"): "of_drawn",
    ("coupled", "coupled"): "coupled",
}


@pytest.mark.parametrize(("rule", "drawing"), CASES)
def test_acceptance_of_a_token(rule: str, drawing: str, open_zoo: OpenZoo) -> None:
    options = {"draft-simple": {"n_max": N_MAX, "sampling": drawing}}
    speculation, seen = Speculation("draft-simple", open_zoo(DRAFT), options, rule=rule), Rounds()
    with pyspec.Engine(open_zoo(TARGET), speculation=speculation, context=LARGE) as engine:
        result = engine.generate(LONG, max_tokens=N_TOKENS, sampling=SAMPLING, observer=seen)
    found = formulas(open_zoo, [*result.prompt_tokens, *result.tokens])
    visited = [  # the draft's tokens up to the first that was rejected; what comes before each is committed
        outcome.position + i
        for outcome in seen.outcomes
        for i in range(min(outcome.n_accepted + 1, len(outcome.proposal.draft.tokens)))
    ]
    chances = getattr(found, CASES[rule, drawing])[visited]
    error = math.sqrt((chances * (1.0 - chances)).sum())
    assert abs(result.stats.n_accepted - chances.sum()) < 3.0 * error
    if rule == drawing == "coupled":
        distance = 1.0 - found.overlap[visited]
        assert ((1.0 - distance) / (1.0 + distance) <= chances + 1e-12).all()
        assert (chances <= 1.0 - distance + 1e-12).all()


@pytest.mark.parametrize("length", [1.0, 2.5, 4.0, 5.0])
def test_synthetic_rounds_have_the_wanted_length(length: float, open_zoo: OpenZoo) -> None:
    n_max, n_rounds = 4, 120
    options, seen = {"draft-simple": {"n_max": n_max}}, Rounds()
    speculation = Speculation("draft-simple", open_zoo(DRAFT), options, rule="synthetic", synthetic_length=length)
    with pyspec.Engine(open_zoo(TARGET), speculation=speculation, context=LARGE) as engine:
        result = engine.generate(LONG, max_tokens=int(n_rounds * length), sampling=SAMPLING, observer=seen)
    assert not result.valid
    lengths = np.array([len(o.emitted) for o in seen.outcomes if len(o.proposal.draft.tokens) == n_max], np.float64)
    assert len(lengths) > n_rounds // 2
    assert abs(lengths.mean() - length) <= 3.0 * lengths.std() / math.sqrt(len(lengths))
