"""What decodes and drafts cost is measured within a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine.calibration import MANY_ROWS, ROWS, measured_drafts, measured_rows
from pyspec.llama.batch import Batch
from pyspec.speculation.draft import Draft, Needs
from tests.fakes import FakeRows, FakeTarget, Fuse, HashLogits, InjectedError
from tests.scripted import make_draft_simple
from tests.simulation import Clock, Process, SimulatedDrafter, SimulatedModel

LOGITS = HashLogits(3, 8, order=2)
GOOD = Process(lambda _p: 1.0)


@dataclass
class TimedTarget(FakeTarget):
    """A target whose decodes take their time.

    Attributes:
        clock: What they add to.
        takes: Rows, and how many decodes there were before, to seconds.
    """

    clock: Clock = field(default_factory=Clock)
    takes: Callable[[int, int], float] = lambda n, _i: 0.001 * n

    def decode(self, batch: Batch) -> FakeRows:
        self.clock.now += self.takes(len(batch), self.n_decodes)
        return super().decode(batch)


def timed(takes: Callable[[int, int], float], size: int = 64, **sizes: Any) -> TimedTarget:
    given_sizes = {"n_ctx_seq": size, "n_batch": size, "n_ubatch": size, "n_outputs_max": size, **sizes}
    return TimedTarget(LOGITS, 8, takes=takes, **given_sizes)


# Rows


def test_of_several_passes_the_least_counts() -> None:
    n_rows = len(ROWS) + 1  # one row twice
    slow = {0: 3.0, 1: 1.0, 2: 2.0}  # by pass; what else runs only makes it longer
    target = timed(lambda n, i: 1e-5 * (10 + n) * slow.get((i - 1) // n_rows, 1.0))
    rows, turn = measured_rows(target, clock=target.clock)
    assert rows == pytest.approx({n: 1e-5 * (10 + n) for n in ROWS})
    assert turn == pytest.approx(0.0, abs=1e-9)
    assert target.n_decodes == 1 + 3 * n_rows
    assert all(decoded.n_outputs == len(decoded.tokens) for decoded in target.decodes)


def test_tokens_differ_so_that_experts_do() -> None:
    target = timed(lambda _n, _i: 1e-5)
    measured_rows(target, clock=target.clock)
    assert all(len(set(decoded.tokens)) == min(len(decoded.tokens), target.n_vocab) for decoded in target.decodes)


def test_the_first_decode_does_not_count_however_slow_it_is() -> None:
    target = timed(lambda n, i: 1e-5 * n if i else 30.0)
    assert measured_rows(target, clock=target.clock)[0] == pytest.approx({n: 1e-5 * n for n in ROWS})


def test_what_a_turn_costs_is_measured_and_taken_off() -> None:
    last: list[int] = []

    def takes(n: int, _i: int) -> float:
        turned = bool(last) and last[-1] != n
        last.append(n)
        return 1e-5 * (10 + n) + 3e-5 * turned

    target = timed(takes)
    rows, turn = measured_rows(target, clock=target.clock)
    assert turn == pytest.approx(3e-5)
    assert rows == pytest.approx({n: 1e-5 * (10 + n) for n in ROWS})


@given(st.floats(1e-5, 0.5), st.floats(0.0, 1.0), st.floats(0.01, 2.0))
def test_nothing_begins_that_would_pass_the_limit(one: float, slope: float, limit: float) -> None:
    """The first decodes of one row are always made: without them nothing is known."""
    target = timed(lambda n, _i: one * (1 + slope * (n - 1)))
    found, _turn = measured_rows(target, limit=limit, clock=target.clock)
    two = one * (1 + slope)
    assert target.clock.now <= two + max(one, limit) + one + 1e-9  # a single row is decoded twice
    assert found[1] == pytest.approx(one)


def test_where_time_is_short_what_matters_most_is_measured() -> None:
    target = timed(lambda n, _i: 0.1 * n)
    assert list(measured_rows(target, limit=0.61, clock=target.clock)[0]) == [1, 4]
    assert target.n_decodes == 1 + 3


@pytest.mark.parametrize("size", ["n_ctx_seq", "n_batch", "n_ubatch", "n_outputs_max"])
@pytest.mark.parametrize("limit", [1, 3, 9])
def test_no_more_rows_than_any_size_allows(size: str, limit: int) -> None:
    target = timed(lambda _n, _i: 1e-5, **{size: limit})
    assert sorted(measured_rows(target, 8, clock=target.clock)[0]) == [n for n in sorted(ROWS) if n <= limit]


@pytest.mark.parametrize(("n_slots", "most"), [(1, 16), (3, 16), (4, 32), (7, 32), (8, 64), (64, 64)])
def test_many_rows_are_for_many_slots(n_slots: int, most: int) -> None:
    target = timed(lambda _n, _i: 1e-5, n_seq_max=n_slots)
    found, _turn = measured_rows(target, n_slots, clock=target.clock)
    assert sorted(found) == [n for n in sorted((*ROWS, *MANY_ROWS)) if n <= most]


def test_memory_is_empty_afterwards() -> None:
    target = timed(lambda _n, _i: 1e-5)
    measured_rows(target, clock=target.clock)
    assert target.memory.length(0) == 0


@pytest.mark.parametrize("point", ["decode", "half-decoded", "decoded"])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_memory_is_empty_when_a_decode_fails(point: str, at: int) -> None:
    target = timed(lambda _n, _i: 1e-5, fuse=Fuse(point, at))
    with pytest.raises(InjectedError):
        measured_rows(target, clock=target.clock)
    assert target.memory.length(0) == 0


# Drafts


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
