"""Whatever the controller chooses, the output is that of plain decoding, and everything stays in step."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.drafters.controller import Controller
from pyspec.llama.memory import RollbackKind
from tests.fakes import Fuse, HashLogits, InjectedError
from tests.playing import DraftModelSpec, Machine, NgramSpec, ScriptedSpec, Table
from tests.reference import Request
from tests.scripted import Move
from tests.speculation.test_losslessness import check_counters
from tests.strategies import Setting, table_settings

FLAT = {1: 1.0, 8: 1.01, 16: 1.02}  # a machine on which drafts cost nothing
STEPS = {1: 1.0, 2: 1.6, 3: 2.2, 4: 2.3, 5: 3.5, 8: 4.7, 16: 8.0}
STEEP = {1: 1.0, 2: 2.0, 16: 16.0}  # nothing is gained by drafts
MACHINES = (FLAT, STEPS, STEEP)


@settings(max_examples=150)
@given(table_settings(), st.sampled_from(MACHINES))
def test_output_is_that_of_plain_decoding(setting: Setting, costs: dict[int, float]) -> None:
    table = setting.table(costs=costs)
    table.begin()
    table.play()
    table.check_end()
    for seat in table.seats:
        assert seat.sampler.n_calls == seat.n_emitted


@settings(max_examples=60)
@given(table_settings(), st.sampled_from(MACHINES))
def test_counters_add_up_and_expectations_fit(setting: Setting, costs: dict[int, float]) -> None:
    table = setting.table(costs=costs)
    table.begin()
    table.play()
    check_counters(table)
    for outcome in (outcome for seat in table.seats for outcome in seat.outcomes):
        expected = outcome.expected
        if expected is not None:
            assert expected.length == len(outcome.proposal.draft.tokens)
            assert expected.drafter == outcome.proposal.drafter
            assert 1.0 <= expected.tokens <= 1.0 + expected.length
            assert expected.seconds > 0.0 < expected.plain_seconds


POINTS = ("decode", "half-decoded", "decoded", "trim", "trimmed", "restore", "checkpoint", "sample", "scripted-0.draft")


@settings(max_examples=100)
@given(table_settings(), st.sampled_from(POINTS), st.integers(0, 12))
def test_a_stage_that_raises_leaves_everything_in_step(setting: Setting, point: str, at: int) -> None:
    table = setting.table(Fuse(point, at), costs=FLAT)
    table.begin()
    while running := [seat for seat in table.seats if not table.has_ended(seat)]:
        with contextlib.suppress(InjectedError):
            table.round(running)
        table.check()


@pytest.mark.parametrize("kind", list(RollbackKind)[:3])
def test_drafts_are_made_where_they_pay(kind: RollbackKind) -> None:
    request = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=60, n_ctx=80)
    machine = Machine(kind=kind, n_snapshots=4)
    table = Table([request], [NgramSpec(2, 6), DraftModelSpec(None, n_max=6)], machine=machine, costs=FLAT)
    table.begin()
    table.play()
    table.check_end()
    assert len(table.seats[0].outcomes) < 40


def test_nothing_is_drafted_where_it_cannot_pay() -> None:
    request = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=60, n_ctx=80)
    table = Table([request], [NgramSpec(2, 6)], costs=STEEP)
    table.begin()
    table.play()
    table.check_end()
    expected = [outcome.expected for outcome in table.seats[0].outcomes[:-1]]
    assert all(each is not None and (each.length == 0 or each.explores) for each in expected)
    assert isinstance(table.chain, Controller)
    assert table.chain.explored_seconds <= 0.01 * (table.chain.played_seconds + 30)  # of 30 rounds in advance


def test_a_draft_that_nobody_verifies_is_discarded() -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=30)
    table = Table([request], [ScriptedSpec((Move(0, (7,)),))], costs=STEEP)  # it insists on hearing what became of it
    table.begin()
    table.play()
    table.check_end()
