"""Draft probabilities that no rule could judge by are refused, under every rule, and those that one can are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyspec.drafters import Chain, Draft, DraftRequest, ModelFreeDrafter
from pyspec.drafters.choosing import shares
from pyspec.errors import DrafterError
from pyspec.speculation.draft import Candidates
from pyspec.speculation.drawn import check_drawn
from pyspec.speculation.rules import make_rule
from tests.fakes import HashLogits
from tests.playing import RuleSpec, Table
from tests.reference import Request

N = 8
NAN, INF = float("nan"), float("inf")


def ids(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def numbers(*values: float) -> npt.NDArray[np.float64]:
    return np.array(values, np.float64)


BAD: dict[str, tuple[Any, Any, str]] = {
    "more tokens": (ids(1, 3), numbers(1.0), "has 2 tokens and 1 probs"),
    "more probs": (ids(1), numbers(0.5, 0.5), "has 1 tokens and 2 probs"),
    "nothing": (ids(), numbers(), "has 0 tokens and 0 probs"),
    "tuples": ((1, 3), (0.5, 0.5), r"has tokens that are no array of token ids but \(1, 3\)"),
    "lists": (ids(1, 3), [0.5, 0.5], r"has probs that are no array of probabilities but \[0.5, 0.5\]"),
    "text": ("ab", "cd", "has tokens that are no array of token ids but 'ab'"),
    "None": (None, None, "has tokens that are no array of token ids but None"),
    "numbers": (1, 1.0, "has tokens that are no array of token ids but 1"),
    "numpy's numbers": (np.int32(1), np.float64(1.0), "has tokens that are no array of token ids but "),
    "float ids": (numbers(1.0, 3.0), numbers(0.5, 0.5), r"no array of token ids, \[k\], but one of float64, \[2\]"),
    "object ids": (np.array([1, 3], object), numbers(0.5, 0.5), "no array of token ids, .* one of object"),
    "bool ids": (np.array([True]), numbers(1.0), "no array of token ids, .* one of bool"),
    "text ids": (np.array(["1"]), numbers(1.0), "no array of token ids, .* one of <U1"),
    "object probs": (ids(1, 3), np.array([0.5, 0.5], object), "no array of probabilities, .* one of object"),
    "complex probs": (ids(1), np.array([1.0 + 0.0j]), "no array of probabilities, .* one of complex128"),
    "rows": (np.array([[1]]), np.array([[1.0]]), r"no array of token ids, \[k\], but one of int64, \[1, 1\]"),
    "a scalar": (np.array(1), np.array(1.0), r"no array of token ids, \[k\], but one of int64, \[\]"),
    "NaN of another": (ids(1, 3), numbers(1.0, NAN), "gives the token 3 the probability nan"),
    "NaN of the drafted": (ids(1, 3), numbers(NAN, 1.0), "gives the token 1 the probability nan"),
    "inf of another": (ids(1, 3), numbers(1.0, INF), "gives the token 3 the probability inf"),
    "inf of the drafted": (ids(1), numbers(INF), "gives the token 1 the probability inf"),
    "-inf": (ids(1, 3), numbers(1.0, -INF), "gives the token 3 the probability -inf"),
    "inf and -inf": (ids(1, 3, 4), numbers(1.0, INF, -INF), "gives the token 3 the probability inf"),
    "negative": (ids(1, 3, 4), numbers(0.9, -0.5, 0.6), "gives the token 3 the probability -0.5"),
    "above 1": (ids(3, 1), numbers(1.5, 0.5), "gives the token 3 the probability 1.5"),
    "below 0": (ids(1, -1), numbers(0.5, 0.5), "has the token -1; the target has 0 to 7"),
    "beyond": (ids(1, N), numbers(0.5, 0.5), "has the token 8; the target has 0 to 7"),
    "far beyond": (np.array([1, 2**63], np.uint64), numbers(0.5, 0.5), "has the token -9223372036854775808"),
    "twice": (ids(1, 3, 1), numbers(0.4, 0.4, 0.2), "has the token 1 more than once"),
    "another twice": (ids(1, 3, 3), numbers(0.4, 0.4, 0.2), "has the token 3 more than once"),
    "too little": (ids(1, 3), numbers(0.1, 0.1), "sums to 0.2"),
    "too much": (ids(1, 3), numbers(1.0, 1.0), "sums to 2"),
    "no sum": (ids(1, 3), numbers(0.0, 0.0), "sums to 0"),
    "logits": (ids(1, 3), numbers(5.0, 2.0), "gives the token 1 the probability 5"),
    "not among them": (ids(3, 4), numbers(0.5, 0.5), "gives the drafted token 1 no probability"),
    "impossible": (ids(1, 3), numbers(0.0, 1.0), "gives the drafted token 1 no probability"),
}
GOOD: dict[str, tuple[Any, Any]] = {
    "certain": (ids(1), numbers(1.0)),
    "in any order": (ids(3, 1, 2), numbers(0.1, 0.8, 0.1)),
    "with zeros": (ids(1, 3), numbers(1.0, 0.0)),
    "hardly possible": (ids(1, 3), numbers(5e-324, 1.0)),
    "single precision": (np.array([1, 3], np.int64), np.array([0.1, 0.9], np.float32)),
    "half precision": (np.array([1, 3], np.uint8), np.array([0.1, 0.9], np.float16)),
    "unsigned": (np.array([1, 3], np.uint64), numbers(0.5, 0.5)),
    "every second one": (ids(1, 0, 3, 0)[::2], numbers(0.5, 9.0, 0.5, 9.0)[::2]),
    "all": (np.arange(N), np.full(N, 1 / N)),
    "read-only": (np.broadcast_to(np.int32(1), 1), np.broadcast_to(1.0, 1)),
}
RULES = {
    "match": make_rule("match"),
    "rejection": make_rule("rejection"),
    "coupled": make_rule("coupled"),
    "synthetic": make_rule("synthetic", n_max=4, rates=[0.5] * 4),
}


class Drawing(ModelFreeDrafter):
    """Proposes the token 1 three times; one of the distributions is given, the others are certain."""

    name, n_max = "drawing", 3

    def __init__(self, candidates: Candidates, place: int) -> None:
        self._probs = [Candidates(ids(1), numbers(1.0))] * 3
        self._probs[place] = candidates

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft((1, 1, 1), self._probs)] * len(requests)


def table(rule: str, candidates: Candidates, place: int) -> Table:
    request = Request(HashLogits(3, N), N, (1, 2), max_tokens=9, seed=5)
    set_up = Table([request], rule=RuleSpec(RULES[rule], lambda _request, tokens: tokens[-1], free=True))
    set_up.chain = Chain([Drawing(candidates, place)])
    set_up.begin()
    return set_up


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("tokens", "probs", "found"), BAD.values(), ids=BAD)
def test_what_is_no_distribution_is_refused_by_name_and_place(
    tokens: Any, probs: Any, found: str, rule: str, place: int
) -> None:
    set_up = table(rule, Candidates(tokens, probs), place)
    message = f"^The drafter drawing gave draft probabilities .*: distribution {place} of its draft, .*{found}"
    with pytest.raises(DrafterError, match=message):
        set_up.round(set_up.seats)
    assert list(set_up.target.memory.tokens(0)) == set_up.seats[0].sequence.history == [1]


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("tokens", "probs"), GOOD.values(), ids=GOOD)
def test_what_is_a_distribution_passes(tokens: Any, probs: Any, rule: str, place: int) -> None:
    set_up = table(rule, Candidates(tokens, probs), place)
    (outcome,) = set_up.round(set_up.seats)
    assert outcome.proposal.draft.tokens == (1, 1, 1)


@pytest.mark.parametrize("n_vocab", [10, 49_152, 151_936])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e-3, 0.7, 1.0, 100.0])
def test_rounding_passes(temperature: float, kind: Any, n_vocab: int) -> None:
    logits = np.random.default_rng(n_vocab).normal(scale=5.0, size=n_vocab).astype(np.float32)
    probs = shares(logits, temperature).astype(kind)
    best = int(np.argmax(logits))
    for tokens in (np.arange(n_vocab, dtype=np.int32), np.arange(n_vocab, dtype=np.int32)[::-1]):
        drafted = int(tokens[best])
        check_drawn(Draft((drafted, drafted), [Candidates(tokens, probs)] * 2), n_vocab, "drawing")
