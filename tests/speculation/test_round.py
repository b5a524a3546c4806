"""The round's own rules, each by a small case."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import pytest

from pyspec.drafters import Chain, ModelFreeDrafter
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import Draft, DraftRequest, Finish, MatchRule, Outcome, Proposal, RoundBatch
from pyspec.speculation.propose import draft_budget, propose
from tests.fakes import FakeTarget, HashLogits, cycle_logits
from tests.playing import Machine, ScriptedSpec, Seat, Table
from tests.reference import Request
from tests.scripted import Move


def cycling(tokens: list[int], *, prompt: tuple[int, ...] = (0,), max_tokens: int = 100, n_ctx: int = 64) -> Request:
    return Request(
        cycle_logits(tokens, 30),
        30,
        prompt,
        max_tokens=max_tokens,
        n_ctx=n_ctx,
        pieces={token: b"<%d>" % token for token in range(30)},
    )


def played(request: Request, *moves: Move) -> tuple[Table, Seat]:
    table = Table([request], [ScriptedSpec(moves)])
    table.begin()
    table.play()
    table.check_end()
    return table, table.seats[0]


def test_a_round_as_its_docstring_shows_it() -> None:
    request = cycling([*range(20), 5, 7, 8, 4], prompt=(*range(20), 5), max_tokens=10)
    table = Table([request], [ScriptedSpec((Move(2, (9,)),))])
    table.begin()
    outcome = table.round(table.seats)[0]
    assert table.target.decodes[-1].tokens == (5, 7, 8, 9)
    assert table.target.decodes[-1].positions == (20, 21, 22, 23)
    assert table.target.decodes[-1].n_outputs == 4
    assert outcome.emitted == (7, 8, 4)
    assert (outcome.n_accepted, outcome.position, outcome.pending, outcome.rollback) == (2, 20, 5, "trim")
    assert outcome.sources == ("draft:scripted-0", "draft:scripted-0", "recovered")
    assert table.target.memory.tokens(0) == (*range(20), 5, 7, 8)
    assert table.seats[0].sequence.pending == 4


def test_sources_and_rollback_of_every_sort_of_round() -> None:
    table = Table([cycling([1, 2, 3, 4])], [ScriptedSpec((Move(), Move(2), Move(0, (9,))))])
    table.begin()
    plain, bonus, recovered = (table.round(table.seats)[0] for _ in range(3))
    assert (plain.sources, plain.rollback, plain.proposal.drafter) == (("plain",), "none", None)
    assert (bonus.sources, bonus.rollback) == (("draft:scripted-0", "draft:scripted-0", "bonus"), "none")
    assert (recovered.sources, recovered.rollback) == (("recovered",), "trim")
    assert all(outcome.rule == "match" for outcome in (plain, bonus, recovered))


def test_seconds_are_measured_per_stage() -> None:
    _table, seat = played(cycling([1, 2, 3], max_tokens=3), Move(1))
    for outcome in seat.outcomes:
        assert list(outcome.seconds) == ["draft", "verify", "accept", "rollback", "total"]
        parts = sum(seconds for stage, seconds in outcome.seconds.items() if stage != "total")
        assert 0.0 <= parts <= outcome.seconds["total"]


def test_top_tokens_are_those_of_the_rows_that_decided() -> None:
    request = Request(HashLogits(3, 8, levels=255), 8, (1, 2), max_tokens=12)
    table = Table([request], [ScriptedSpec((Move(2, (0,)), Move()))])
    table.seats[0].sequence.n_top = 3
    table.begin()
    table.play()
    history = list(request.prompt)
    for outcome in table.seats[0].outcomes:
        assert len(outcome.top) == len(outcome.emitted)
        for token, best in zip(outcome.emitted, outcome.top, strict=True):
            row = request.logits(tuple(history))
            assert [logit for _, logit in best] == sorted(row.tolist(), reverse=True)[:3]
            assert best[0][0] == token
            history.append(token)


def test_log_probabilities_are_those_of_the_rows_that_decided() -> None:
    """Of the rows as they are: neither the penalty nor the draw changes them."""
    request = Request(HashLogits(3, 8, levels=255), 8, (1, 2), max_tokens=12, seed=5, penalty=0.7)
    table = Table([request], [ScriptedSpec((Move(2, (0,)), Move()))])
    table.seats[0].sequence.wants_logprobs = True
    table.begin()
    table.play()
    history = list(request.prompt)
    for outcome in table.seats[0].outcomes:
        assert len(outcome.logprobs) == len(outcome.emitted)
        for token, logprob in zip(outcome.emitted, outcome.logprobs, strict=True):
            odds = np.exp(request.logits(tuple(history)).astype(np.float64))
            assert math.exp(logprob) == pytest.approx(odds[token] / odds.sum())
            history.append(token)
    assert table.chain.stats["scripted-0"].n_accepted > 0


# End of output


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 4, 5, 6])
def test_max_tokens_is_exact_with_a_perfect_draft(max_tokens: int) -> None:
    table, seat = played(cycling([1, 2, 3, 4, 5, 6, 7], max_tokens=max_tokens), Move(4))
    assert seat.n_emitted == max_tokens
    assert len(seat.outcomes) <= -(-max_tokens // 2)
    assert table.target.memory.length(0) == max_tokens


def test_nothing_after_an_end_token_is_accepted_or_kept() -> None:
    request = Request(cycle_logits([10, 11, 12, 13, 14], 20), 20, (1,), max_tokens=50, eog=frozenset({12}))
    table, seat = played(request, Move(4))
    assert seat.emitted == (11, 12)
    assert seat.last_finish == "eog"
    assert table.target.memory.tokens(0) == (1, 11)
    assert seat.sequence.pending == 12
    assert seat.sampler.n_draws == 2
    assert table.chain.stats["scripted-0"].accepted_at == [1, 0, 0, 0]


def test_an_end_token_that_is_only_drafted_ends_nothing() -> None:
    request = Request(cycle_logits([10, 11, 13], 20), 20, (1,), max_tokens=5, eog=frozenset({12}))
    _table, seat = played(request, Move(1, (12, 13)))
    assert seat.emitted == (11, 13, 10, 11, 13)
    assert seat.last_finish == "length"


def test_a_stop_string_early_in_an_accepted_draft_wins_over_the_length() -> None:
    request = Request(
        cycle_logits([21, 10, 11, 9, 20], 30),
        30,
        (1,),
        max_tokens=5,
        stops=(b"STOP",),
        pieces={10: b"x", 11: b"y", 9: b"STOP", 20: b"no", 21: b"no"},
    )
    table, seat = played(request, Move(4))
    assert seat.emitted == (10, 11, 9)
    assert seat.plain.text == "xy"
    assert seat.last_finish == "stop"
    assert table.target.memory.length(0) == 3


def test_a_stop_string_may_span_rounds() -> None:
    request = Request(
        cycle_logits([4, 1, 2, 3], 8), 8, (0,), max_tokens=20, stops=(b"bcd",), pieces={1: b"ab", 2: b"c", 3: b"de"}
    )
    for move in (Move(), Move(1), Move(2), Move(3)):
        _table, seat = played(request, move)
        assert (seat.emitted, seat.last_finish, seat.plain.text) == ((1, 2, 3), "stop", "a")


@pytest.mark.parametrize("n_prompt", [56, 60, 61, 62, 63, 64])
def test_the_end_of_the_context_is_reached_exactly(n_prompt: int) -> None:
    request = cycling([1, 2, 3], prompt=(1,) * n_prompt, n_ctx=64)
    table, seat = played(request, Move(16))
    assert table.target.memory.length(0) == 64
    assert seat.n_emitted == 64 - n_prompt + 1
    assert max(len(decoded.tokens) for decoded in table.target.decodes) <= 64 - n_prompt + 1


# Budget


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_outputs_max", "max_tokens", "n_sequences", "expected"),
    [
        (64, 32, 32, 100, 1, 31),
        (64, 8, 32, 100, 1, 7),
        (64, 32, 8, 100, 1, 7),
        (64, 8, 32, 100, 3, 1),
        (64, 3, 32, 100, 3, 0),
        (64, 32, 32, 5, 1, 4),
        (64, 32, 32, 1, 1, 0),
        (14, 32, 32, 100, 1, 3),
        (11, 32, 32, 100, 1, 0),
    ],
)
def test_the_budget_is_the_smallest_limit(
    n_ctx: int, n_batch: int, n_outputs_max: int, max_tokens: int, n_sequences: int, expected: int
) -> None:
    request = cycling([1], prompt=(1,) * 11, max_tokens=max_tokens, n_ctx=n_ctx)
    table = Table([request], machine=Machine(n_batch=n_batch, n_outputs_max=n_outputs_max))
    assert draft_budget(table.seats[0].sequence, table.target, n_sequences) == expected


@pytest.mark.parametrize(
    ("kind", "n_batch", "n_ubatch", "n_outputs_max", "expected"),
    [
        (RollbackKind.WHOLE, 12, 8, 32, 7),
        (RollbackKind.WHOLE, 32, 8, 6, 5),  # what is decoded again has no rows
        (RollbackKind.BOUNDED, 32, 8, 32, 3),  # what can be dropped again is computed at once
    ],
)
def test_what_memory_lacks_takes_room(
    kind: RollbackKind, n_batch: int, n_ubatch: int, n_outputs_max: int, expected: int
) -> None:
    machine = Machine(n_batch, n_ubatch, n_outputs_max, kind=kind, n_snapshots=20)
    table = Table([cycling([1], prompt=(1,) * 11)], machine=machine)
    table.seats[0].sequence.lag = 4
    assert draft_budget(table.seats[0].sequence, table.target, 1) == expected


class NoQuestions:
    """A proposer that must not be asked."""

    n_max = 4

    def propose(self, requests: SequenceOf[object]) -> list[Proposal]:
        raise AssertionError(requests)


def test_without_budget_nobody_is_asked() -> None:
    table = Table([cycling([1], max_tokens=1)])
    batch = RoundBatch([table.seats[0].sequence])
    assert len(batch.sequences) == 1
    answers = propose(batch.sequences, NoQuestions(), table.target)  # type: ignore[arg-type]
    assert [answer.draft.tokens for answer in answers] == [()]


def test_only_sequences_with_budget_are_asked() -> None:
    group = [cycling([1, 2], max_tokens=1), cycling([1, 2], max_tokens=9)]
    table = Table(group, [ScriptedSpec((Move(3),))])
    table.begin()
    first, second = table.round(table.seats)
    assert first.emitted == (2,)
    assert second.n_accepted == 3
    assert table.chain.stats["scripted-0"].n_asked == 1


# Words


def test_all_sequences_share_one_decode() -> None:
    group = [cycling([1, 2, 3], prompt=(1,) * n) for n in (1, 3, 2)]
    table = Table(group, [ScriptedSpec((Move(2), Move(), Move(1)))])
    table.begin()
    n_before = len(table.target.decodes)
    table.round(table.seats)
    decoded = table.target.decodes[-1]
    assert len(table.target.decodes) == n_before + 1
    assert decoded.seq_ids == ((0,), (0,), (0,), (1,), (2,), (2,))
    assert decoded.positions == (0, 1, 2, 2, 1, 2)


def test_a_verdict_holds_what_the_target_chose() -> None:
    target = FakeTarget(cycle_logits([4, 5, 6], 8), 8)
    seat = Seat(Request(target.logits, 8, (4,), max_tokens=9), 0, target.fuse)
    batch = RoundBatch([seat.sequence]).buffer
    batch.extend([4, 5, 7], 0, output=True)
    verdict = MatchRule().accept(Draft((5, 7)), target.decode(batch), seat.sequence)
    assert (verdict.emitted, verdict.finish) == ((5, 6), None)
    assert [finish.value for finish in Finish] == ["length", "eog", "stop", "context", "cancelled", "error"]


@pytest.mark.parametrize("promises", [True, False])
def test_history_is_given_to_drafters_without_a_copy(*, promises: bool) -> None:
    seen: list[Any] = []

    class Looker(ModelFreeDrafter):
        name, n_max, reads_only = "looker", 4, promises

        def draft(self, requests: SequenceOf[DraftRequest]) -> list[Draft]:
            seen.extend(request.tokens for request in requests)
            return [Draft()] * len(requests)

    table = Table([cycling([1, 2])])
    table.chain = Chain([Looker()])
    table.begin()
    outcome: Outcome = table.round(table.seats)[0]
    history = table.seats[0].sequence.history
    assert seen == [history]
    assert (seen[0] is history) is promises
    history.append(9)
    assert seen[0][-1] == 9
    assert outcome.sources == ("plain",)
