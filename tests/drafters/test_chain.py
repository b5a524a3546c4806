"""Several drafters, asked one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyspec.drafters import Chain
from pyspec.drafters.nothing import NoDrafter
from pyspec.errors import DrafterError
from pyspec.speculation.draft import NO_DRAFT, Candidates, Draft, DraftRequest, EvaluatedBatch, Needs, TokenView
from tests.fakes import InjectedError


class Says:
    """Answers from a table of sequences and keeps what it hears."""

    def __init__(
        self, name: str, answers: dict[int, Draft] | None = None, *, n_max: int = 8, needs: Needs = Needs.NOTHING
    ) -> None:
        self.name, self.n_max, self.needs = name, n_max, needs
        self.heard: list[tuple[Any, ...]] = []
        self.fails_at: str | None = None
        self._answers = answers if answers is not None else {}

    def _hear(self, *call: Any) -> None:
        self.heard.append(call)
        if call[0] == self.fails_at:
            raise InjectedError(self.name)

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        self._hear("begin", seq_id, list(tokens))

    def observe(self, batch: EvaluatedBatch) -> None:
        self._hear("observe", batch)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._hear("draft", [request.seq_id for request in requests])
        return [self._answers.get(request.seq_id, Draft()) for request in requests]

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        self._hear("accept", seq_id, n_accepted, own)

    def save_state(self, seq_id: int) -> bytes | None:  # noqa: ARG002 - the interface
        return None

    def load_state(self, seq_id: int, state: bytes) -> None:
        pass

    def close(self) -> None:
        self._hear("close")


class Discards(Says):
    """Cares when a round is undone."""

    def discard(self, seq_id: int) -> None:
        self._hear("discard", seq_id)


class Learns(Says):
    """Learns from requests."""

    def end(self, seq_id: int, tokens: TokenView) -> None:
        self._hear("end", seq_id, list(tokens))


def test_those_that_learn_hear_of_a_request_s_end() -> None:
    learns, other = Learns("learns"), Says("other")
    chain = Chain([other, learns])
    chain.end(3, [1, 2])
    assert (other.heard, learns.heard) == ([], [("end", 3, [1, 2])])
    learns.fails_at = "end"
    with pytest.raises(InjectedError):
        chain.end(3, [1, 2])


def request(seq_id: int, budget: int = 8) -> DraftRequest:
    return DraftRequest(seq_id, [1, 2], 3, 2, budget)


def test_the_first_draft_wins_per_sequence() -> None:
    first = Says("first", {0: Draft((5,))})
    second = Says("second", {0: Draft((6,)), 1: Draft((7, 8))})
    third = Says("third")
    chain = Chain([first, second, third])
    proposals = chain.propose([request(0), request(1), request(2)])
    assert [proposal.drafter for proposal in proposals] == ["first", "second", None]
    assert [list(proposal.draft.tokens) for proposal in proposals] == [[5], [7, 8], []]
    assert proposals[2] is NO_DRAFT
    asked = [drafter.heard[0][1] for drafter in (first, second, third)]
    assert asked == [[0, 1, 2], [1, 2], [2]]
    assert [chain.stats[name].n_asked for name in ("first", "second", "third")] == [3, 2, 1]


def test_nobody_is_asked_after_the_last_sequence_was_served() -> None:
    first, second = Says("first", {0: Draft((5,))}), Says("second")
    Chain([first, second]).propose([request(0)])
    assert second.heard == []


def test_each_hears_whose_draft_was_verified() -> None:
    drafters = [Says("first"), Says("second", {1: Draft((7, 8))}), Says("third")]
    chain = Chain(drafters)
    (proposal,) = chain.propose([request(1)])
    chain.accept(1, proposal, 1)
    assert [drafter.heard[-1] for drafter in drafters] == [
        ("accept", 1, 1, False),
        ("accept", 1, 1, True),
        ("accept", 1, 1, False),
    ]
    counted = {name: (stats.n_drafts, stats.n_drafted, stats.n_accepted) for name, stats in chain.stats.items()}
    assert counted == {"first": (0, 0, 0), "second": (1, 2, 1), "third": (0, 0, 0)}


def test_a_draft_is_cut_to_the_budget_with_its_probabilities() -> None:
    probs = [Candidates(np.array([token], np.int32), np.ones(1)) for token in (5, 6, 7)]
    chain = Chain([Says("first", {0: Draft((5, 6, 7), probs), 1: Draft((5, 6, 7))})])
    with_probs, without = chain.propose([request(0, budget=2), request(1, budget=1)])
    assert (with_probs.draft.tokens, with_probs.draft.probs) == ((5, 6), probs[:2])
    assert (without.draft.tokens, without.draft.probs) == ((5,), None)
    (whole,) = chain.propose([request(0, budget=3)])
    assert whole.draft.tokens == (5, 6, 7)


@pytest.mark.parametrize("n_answers", [0, 1, 3])
def test_one_answer_per_request(n_answers: int) -> None:
    class Miscounts(Says):
        def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:  # noqa: ARG002 - whatever is asked
            return [Draft()] * n_answers

    with pytest.raises(DrafterError, match=f"The drafter bad answered 2 requests with {n_answers} drafts"):
        Chain([Miscounts("bad")]).propose([request(0), request(1)])


def test_names_are_unique() -> None:
    with pytest.raises(DrafterError, match="two drafters of the same name: a, b, a"):
        Chain([Says("a"), Says("b"), Says("a")])


def test_drafters_that_can_propose_nothing_are_left_out_but_closed() -> None:
    useless = Says("useless", n_max=0)
    chain = Chain([NoDrafter(), useless])
    assert chain.drafters == ()
    assert chain.n_max == 0
    assert chain.propose([request(0)]) == [NO_DRAFT]
    chain.close()
    chain.close()
    assert useless.heard == [("close",)] * 2


def test_n_max_is_the_longest() -> None:
    assert Chain([Says("a", n_max=3), Says("b", n_max=7)]).n_max == 7


def test_every_drafter_hears_of_a_new_request() -> None:
    drafters = [Says("a"), Says("b")]
    chain = Chain(drafters)
    chain.begin(2, [4, 5])
    assert [drafter.heard for drafter in drafters] == [[("begin", 2, [4, 5])]] * 2
    assert [stats.n_begin for stats in chain.stats.values()] == [1, 1]


def test_only_drafters_that_need_something_observe() -> None:
    blind, seeing = Says("blind"), Says("seeing", needs=Needs.PROMPT)
    batch = EvaluatedBatch([1], [0], [(0,)])
    Chain([blind, seeing]).observe(batch)
    assert blind.heard == []
    assert seeing.heard == [("observe", batch)]


def test_discard_is_optional() -> None:
    drafters = [Says("a"), Discards("b"), Discards("c")]
    Chain(drafters).discard(4)
    assert [drafter.heard for drafter in drafters] == [[], [("discard", 4)], [("discard", 4)]]


@pytest.mark.parametrize("call", ["accept", "discard", "close"])
def test_a_drafter_that_fails_does_not_keep_the_news_from_the_others(call: str) -> None:
    first, second, third = Discards("first", {0: Draft((5,))}), Discards("second"), Discards("third")
    chain = Chain([first, second, third])
    (proposal,) = chain.propose([request(0)])
    first.fails_at = second.fails_at = call
    calls = {
        "accept": lambda: chain.accept(0, proposal, 1),
        "discard": lambda: chain.discard(0),
        "close": chain.close,
    }
    with pytest.raises(InjectedError, match="second") as caught:
        calls[call]()
    assert str(caught.value.__context__) == "first"
    assert [drafter.heard[-1][0] for drafter in (first, second, third)] == [call] * 3


def test_seconds_and_model_tokens_are_counted() -> None:
    class Modelled(Says):
        n_model_tokens = 0

        def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            self.n_model_tokens += 11
            return super().draft(requests)

    chain = Chain([Modelled("modelled", {0: Draft((5,))}), Says("plain")])
    chain.begin(0, [])
    (proposal,) = chain.propose([request(0)])
    chain.accept(0, proposal, 0)
    stats = chain.stats["modelled"]
    assert stats.n_model_tokens == 11
    assert all(stats.seconds[stage] > 0.0 for stage in ("begin", "draft", "accept"))
    assert chain.stats["plain"].n_model_tokens == 0
    assert chain.stats["plain"].seconds["draft"] == 0.0


@pytest.mark.parametrize(
    "tokens", [np.array([1, 2, 3]), [np.int64(1), np.int64(2), 3], itertools.count(1), iter((1, 2, 3))]
)
def test_any_iterable_of_integers_is_a_draft(tokens: Any) -> None:
    chain = Chain([Says("some", {0: Draft(tokens)})])
    proposal = chain.propose([DraftRequest(0, [5, 6], 7, 2, 3)])[0]
    assert proposal.draft.tokens == (1, 2, 3)
    assert all(type(token) is int for token in proposal.draft.tokens)


@pytest.mark.parametrize("answer", [None, 5, Draft(None), Draft([1.5]), Draft("ab"), [1, 2]])  # type: ignore[arg-type, list-item]
def test_what_is_no_draft_is_the_drafters_fault(answer: Any) -> None:
    chain = Chain([Says("some", {0: answer})])
    with pytest.raises(DrafterError, match="some proposed"):
        chain.propose([DraftRequest(0, [5, 6], 7, 2, 3)])


def test_stats_are_of_one_generation() -> None:
    chain = Chain([Says("some", {0: Draft((1,))})])
    former = chain.new_stats()
    proposal = chain.propose([DraftRequest(0, [5, 6], 7, 2, 3)])[0]
    chain.accept(0, proposal, 1)
    assert former["some"].n_accepted == 1
    assert chain.new_stats()["some"].n_accepted == 0
    assert former["some"].n_accepted == 1


@pytest.mark.parametrize("probs", ["ab", [1, 2], [Candidates(np.array([5]), np.ones(1))], 3])
def test_draft_probabilities_are_one_distribution_per_token(probs: Any) -> None:
    chain = Chain([Says("first", {0: Draft((5, 6), probs)})])
    with pytest.raises(DrafterError, match="first gave draft probabilities"):
        chain.propose([request(0, budget=2)])
