"""What a grammar does to drafts: it cuts them, and what it forces is drafted for nothing."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.speculation import Candidates, Draft, DraftRequest, Proposal
from pyspec.speculation.draft import NO_DRAFT, Expectation
from pyspec.speculation.propose import propose
from tests.fake_sampling import FakeSampler
from tests.fakes import HashLogits, Row
from tests.playing import DrafterSpec, Machine, ScriptedSpec, Seat, Table
from tests.reference import Request
from tests.scripted import Move
from tests.strategies import chains, machines, seeds

MOST_FORCED = 10


@dataclass(frozen=True)
class Grammar:
    """A grammar by which the last token tells which ones may follow, and a target under it.

    Attributes:
        follows: Per token those that may follow it, at least one.
        seed: Of the target.
    """

    follows: tuple[tuple[int, ...], ...]
    seed: int = 1

    def __call__(self, tokens: tuple[int, ...]) -> Row:
        row = np.full(len(self.follows), -np.inf, np.float32)
        legal = list(self.follows[tokens[-1]])
        row[legal] = HashLogits(self.seed, len(self.follows))(tokens)[legal]
        return row


class Constrained(FakeSampler):
    """A sampler that knows the grammar which its rows obey."""

    def __init__(self, grammar: Grammar, seed: int | None = None) -> None:
        super().__init__(seed)
        self._follows = grammar.follows

    def legal_prefix(self, tokens: SequenceOf[int]) -> int:
        pairs = zip([self.seen[-1], *tokens], tokens, strict=False)
        return next((i for i, (last, token) in enumerate(pairs) if token not in self._follows[last]), len(tokens))

    def forced(self) -> list[int]:
        tokens = [self.seen[-1]]
        while len(self._follows[tokens[-1]]) == 1 and len(tokens) <= MOST_FORCED:
            tokens.append(self._follows[tokens[-1]][0])
        return tokens[1:]


def seated(
    grammar: Grammar,
    specs: SequenceOf[DrafterSpec] = (),
    *,
    max_tokens: int = 100,
    machine: Machine | None = None,
    seed: int | None = None,
) -> tuple[Table, Seat]:
    """Return a table with one sequence that begins at token 0 under a grammar, and its seat."""
    request = Request(grammar, len(grammar.follows), (0,), max_tokens=max_tokens, seed=seed)
    table = Table([request], specs, machine=machine)
    seat = table.seats[0]
    seat.sampler = seat.sequence.sampler = Constrained(grammar, seed)
    table.begin()
    return table, seat


@st.composite
def grammars(draw: st.DrawFn) -> Grammar:
    """Any grammar of two to six tokens; every other rule leaves no choice."""
    n_vocab = draw(st.integers(2, 6))
    tokens = st.integers(0, n_vocab - 1)
    some = st.one_of(tokens.map(lambda token: (token,)), st.sets(tokens, min_size=1).map(tuple))
    return Grammar(tuple(draw(st.lists(some, min_size=n_vocab, max_size=n_vocab))), draw(seeds))


@settings(max_examples=60)
@given(grammar=grammars(), seed=st.one_of(st.none(), seeds), max_tokens=st.integers(1, 40), data=st.data())
def test_output_under_a_grammar_is_that_of_plain_decoding(
    grammar: Grammar, seed: int | None, max_tokens: int, data: st.DataObject
) -> None:
    """And nothing illegal is verified, and what is forced stands, whoever drafts the rest."""
    specs = data.draw(chains(len(grammar.follows), 64))
    table, seat = seated(grammar, specs, max_tokens=max_tokens, machine=data.draw(machines(1, 1)), seed=seed)
    table.play()
    table.check_end()
    for outcome in seat.outcomes:
        drafted, last = outcome.proposal.draft.tokens, outcome.pending
        for token in drafted:
            assert token in grammar.follows[last]
            last = token
        if len(grammar.follows[outcome.pending]) == 1:
            assert outcome.proposal.drafter in ("grammar", None), "nobody is asked for what is forced"
        if outcome.proposal.drafter == "grammar":
            assert outcome.n_accepted == len(drafted) > 0


class Rests:
    """A proposer that is not to be asked, if it can help it."""

    n_max = 4
    said = Proposal(Draft(), None, Expectation(None, 0, 1.0, 2.0, 2.0))

    def __init__(self) -> None:
        self.rested: list[tuple[list[int], int]] = []

    def rest(self, seq_ids: SequenceOf[int], n_entries: int) -> list[Proposal]:
        self.rested.append((list(seq_ids), n_entries))
        return [self.said] * len(seq_ids)

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        return [Proposal(Draft(), "asked")] * len(requests)


@pytest.mark.parametrize(("max_tokens", "rests"), [(9, True), (2, True), (1, False)])
def test_nobody_is_asked_while_the_proposer_rests(max_tokens: int, rests: bool) -> None:  # noqa: FBT001 - a case
    table = Table([Request(HashLogits(1, 8), 8, (1, 2), max_tokens=max_tokens)])
    sequence, proposer = table.seats[0].sequence, Rests()
    sequence.lag = 3
    (proposal,) = propose([sequence], proposer, table.target)  # type: ignore[arg-type]
    assert proposal is (Rests.said if rests else NO_DRAFT)
    assert proposer.rested == ([([0], 4)] if rests else [])


def test_what_a_grammar_forces_is_no_rest() -> None:
    table, seat = seated(CHOICES)
    proposer = Rests()
    (proposal,) = propose([seat.sequence], proposer, table.target)  # type: ignore[arg-type]
    assert (proposal.drafter, proposer.rested) == ("asked", [])


class Says:
    """A proposer with one answer; keeps for which sequences it is told that nothing comes of it."""

    n_max = 4

    def __init__(self, answer: Draft) -> None:
        self.discarded: list[int] = []
        self._answer = Proposal(answer, "says")

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        return [self._answer] * len(requests)

    def discard(self, seq_id: int) -> None:
        self.discarded.append(seq_id)


CHOICES = Grammar(((1, 2), (1, 3), (0, 3), (0, 1)))  # nothing is forced


@pytest.mark.parametrize(
    ("drafted", "n_legal"),
    [((1, 3, 0), 3), ((2, 0, 2, 3), 4), ((2, 0, 3, 3), 2), ((1, 1, 1, 0), 3), ((0,), 0), ((3, 1), 0), ((), 0)],
)
def test_a_draft_is_cut_at_the_first_illegal_token(drafted: tuple[int, ...], n_legal: int) -> None:
    """A drawn one behind it: the target must reject that token as what it is, see ``rejection.py``."""
    table, seat = seated(CHOICES)
    says: Any = Says(Draft(drafted))
    (cut,) = propose([seat.sequence], says, table.target)
    assert cut == Proposal(Draft(drafted[:n_legal]), "says" if n_legal or not drafted else None)
    assert says.discarded == ([0] if drafted and not n_legal else []), "who drafted waits for a decision"

    of = [Candidates(np.array([token], np.int32), np.ones(1)) for token in drafted]
    says = Says(Draft(drafted, of))
    (drawn,) = propose([seat.sequence], says, table.target)
    assert drawn == Proposal(Draft(drafted[: n_legal + 1], of[: n_legal + 1]), "says")
    assert says.discarded == []


@pytest.mark.parametrize(
    ("max_tokens", "n_max", "n_drafted"), [(100, 4, 4), (100, 99, 7), (100, 7, 7), (5, 99, 4), (3, 2, 2), (2, 9, 1)]
)
def test_forced_tokens_keep_to_the_budget(max_tokens: int, n_max: int, n_drafted: int) -> None:
    """The batch holds eight tokens."""
    table, seat = seated(Grammar(((1,), (2,), (0,))), max_tokens=max_tokens, machine=Machine(n_batch=8))
    nobody: Any = type("Nobody", (), {"n_max": n_max})
    (forced,) = propose([seat.sequence], nobody, table.target)
    assert forced == Proposal(Draft((1, 2, 0, 1, 2, 0, 1)[:n_drafted]), "grammar")


def test_plain_decoding_takes_no_forced_tokens() -> None:
    table, seat = seated(Grammar(((0,),)), max_tokens=5)
    table.play()
    assert [len(outcome.emitted) for outcome in seat.outcomes] == [1] * 5


def test_forced_tokens_save_decodes() -> None:
    """Token 1 is chosen after 0; the others follow by force, up to the next 0."""
    grammar = Grammar(((1, 1), *(((token + 1) % 10,) for token in range(1, 10))))
    table, seat = seated(grammar, [ScriptedSpec((Move(),))], max_tokens=40)
    table.play()
    table.check_end()
    assert [len(outcome.emitted) for outcome in seat.outcomes] == [1, 10, 10, 10, 9]
