"""What drafts cost is measured within a limit."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.engine.calibration import measured_drafts
from pyspec.speculation.draft import Draft, Needs
from tests.fakes import FakeTarget, HashLogits
from tests.scripted import make_draft_simple
from tests.simulation import Clock, Process, SimulatedDrafter, SimulatedModel

LOGITS = HashLogits(3, 8, order=2)
GOOD = Process(lambda _p: 1.0)


class Heard(SimulatedModel):
    """A drafter with a model that keeps what it was told, and may fail or be slow at first."""

    first = 0.0
    fails = False
    shorter = 0

    def __init__(self, clock: Clock, **settings: Any) -> None:
        super().__init__("heard", GOOD, clock, **{"fixed": 0.001, "step": 0.002, **settings})
        self.calls: list[Any] = []

    def begin(self, seq_id: int, tokens: Any) -> None:
        self.calls.append(("begin", seq_id, len(tokens)))
        super().begin(seq_id, tokens)

    def draft(self, requests: Any) -> list[Draft]:
        self.calls.append("draft")
        if self.fails:
            raise ZeroDivisionError
        if not self.n_calls:
            self.clock.now += self.first
        return [draft.cut(len(draft.tokens) - self.shorter) for draft in super().draft(requests)]

    def discard(self, seq_id: int) -> None:
        self.calls.append(("discard", seq_id))


def test_drafts_are_measured_and_discarded() -> None:
    drafter = Heard(Clock())
    drafter.first = 20.0  # the first one reads the weights
    assert measured_drafts(drafter, clock=drafter.clock) == pytest.approx({1: 0.003, 4: 0.009})
    one = ["draft", ("discard", 0)]
    assert drafter.calls == [("begin", 0, 4), *one, *one, *one, ("begin", 0, 0)]


def test_long_drafts_that_would_take_too_long_are_not_made() -> None:
    drafter = Heard(Clock(), step=0.2)
    assert measured_drafts(drafter, clock=drafter.clock) == pytest.approx({1: 0.201})
    assert measured_drafts(drafter, clock=drafter.clock, limit=10.0) == pytest.approx({1: 0.201, 4: 0.801})


@pytest.mark.parametrize(("n_max", "shorter", "lengths"), [(2, 0, [1, 2]), (8, 1, [3]), (8, 4, [])])
def test_what_counts_is_the_length_of_the_draft(n_max: int, shorter: int, lengths: list[int]) -> None:
    drafter = Heard(Clock(), n_max=n_max)
    drafter.shorter = shorter
    assert list(measured_drafts(drafter, clock=drafter.clock)) == lengths


def test_a_drafter_that_fails_is_told_that_nothing_is_there() -> None:
    drafter = Heard(Clock())
    drafter.fails = True
    with pytest.raises(ZeroDivisionError):
        measured_drafts(drafter, clock=drafter.clock)
    assert drafter.calls[-1] == ("begin", 0, 0)


def test_only_drafters_with_a_model_of_their_own_are_measured() -> None:
    clock = Clock()
    assert measured_drafts(SimulatedDrafter("lookup", GOOD, clock), clock=clock) == {}
    assert measured_drafts(Heard(clock, needs=Needs.LAYER_INPUTS), clock=clock) == {}
    assert measured_drafts(Heard(clock, n_max=0), clock=clock) == {}
    assert clock.now == 0.0


def test_the_memory_of_a_draft_model_is_empty_afterwards() -> None:
    drafter, draft_target = make_draft_simple(FakeTarget(LOGITS, 8), LOGITS)
    assert list(measured_drafts(drafter)) == [1, 3]
    assert draft_target.memory.length(0) == 0
    assert draft_target.n_decodes > 0
