"""What decodes take is measured within a limit: their rows, what a change of their number costs, and the depth."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine.timing import MANY_ROWS, ROWS, DecodeTimes, measured_rows
from pyspec.llama.batch import Batch
from pyspec.speculation.curves import Attention
from tests.fakes import FakeRows, FakeTarget, Fuse, HashLogits, InjectedError
from tests.simulation import Clock

LOGITS = HashLogits(3, 8, order=2)
N_PASS = len(ROWS) + 2  # decodes: one row three times


@dataclass
class TimedTarget(FakeTarget):
    """A target whose decodes take their time.

    Attributes:
        clock: What they add to.
        takes: Rows, and how many decodes there were before, to seconds.
        attention: Seconds for each position before an entry: of one that is alone, and of each of several.
    """

    clock: Clock = field(default_factory=Clock)
    takes: Callable[[int, int], float] = lambda n, _i: 0.001 * n
    attention: Attention = field(default_factory=Attention)

    def decode(self, batch: Batch) -> FakeRows:
        self.clock.now += self.takes(len(batch), self.n_decodes)
        self.clock.now += self.attention.seconds(len(batch), fmean(batch.positions))
        return super().decode(batch)


def timed(
    takes: Callable[[int, int], float], size: int = 64, attention: tuple[float, float] = (0.0, 0.0), **sizes: Any
) -> TimedTarget:
    given_sizes = {"n_ctx_seq": 1024, "n_batch": size, "n_ubatch": size, "n_outputs_max": size, **sizes}
    return TimedTarget(LOGITS, 8, takes=takes, attention=Attention(*attention), **given_sizes)


def test_of_several_passes_the_least_counts() -> None:
    slow = {0: 3.0, 1: 2.0}  # by pass; what else runs only makes it longer
    target = timed(lambda n, i: 1e-5 * (10 + n) * slow.get((i - 1) // N_PASS, 1.0))
    times = measured_rows(target, clock=target.clock)
    assert times.rows == pytest.approx({n: 1e-5 * (10 + n) for n in ROWS})
    assert times.turn == pytest.approx(0.0, abs=1e-9)
    assert [decoded for decoded in target.decodes if not decoded.n_outputs] == [target.decodes[1 + N_PASS]]
    assert target.n_decodes == 1 + 3 * N_PASS + 1  # one makes the memory deeper


def test_tokens_differ_so_that_experts_do() -> None:
    target = timed(lambda _n, _i: 1e-5)
    measured_rows(target, clock=target.clock)
    assert all(len(set(decoded.tokens)) == min(len(decoded.tokens), target.n_vocab) for decoded in target.decodes)


def test_the_first_decode_does_not_count_however_slow_it_is() -> None:
    target = timed(lambda n, i: 1e-5 * n if i else 30.0)
    assert measured_rows(target, clock=target.clock).rows == pytest.approx({n: 1e-5 * n for n in ROWS})


def test_what_a_turn_costs_is_measured_and_taken_off() -> None:
    last: list[int] = []

    def takes(n: int, _i: int) -> float:
        turned = bool(last) and last[-1] != n
        last.append(n)
        return 1e-5 * (10 + n) + 3e-5 * turned

    target = timed(takes)
    times = measured_rows(target, clock=target.clock)
    assert times.turn == pytest.approx(3e-5)
    assert times.rows == pytest.approx({n: 1e-5 * (10 + n) for n in ROWS})


@pytest.mark.parametrize("attention", [(0.0, 0.0), (4e-8, 4e-8), (7e-8, 4e-8)])
@pytest.mark.parametrize("n_slots", [1, 8])
def test_what_a_position_costs_is_measured_and_taken_off(attention: tuple[float, float], n_slots: int) -> None:
    target = timed(lambda n, _i: 1e-5 * (10 + n), attention=attention)
    times = measured_rows(target, n_slots, clock=target.clock)
    assert times.attention == pytest.approx(attention)
    assert all(took == pytest.approx(1e-5 * (10 + n)) for n, took in times.rows.items())


def test_a_hiccup_does_not_make_positions_dear() -> None:
    for hiccup in range(1, 1 + 3 * N_PASS):

        def takes(n: int, i: int, at: int = hiccup) -> float:
            return 1e-5 * (10 + n) * (20 if i == at else 1)

        target = timed(takes, attention=(6e-8, 4e-8))
        each = measured_rows(target, clock=target.clock).attention.each
        assert each == pytest.approx(4e-8, rel=0.3), hiccup


def test_a_single_row_is_not_believed_to_be_anything() -> None:
    """Its times are too much alike to tell what a position costs; several rows tell more."""
    for alone, believed in ((0.0, 4e-8), (5e-7, 8e-8)):
        target = timed(lambda n, _i: 1e-5 * (10 + n), attention=(alone, 4e-8))
        assert measured_rows(target, clock=target.clock).attention.alone == pytest.approx(believed)


def test_where_the_memory_is_small_it_is_used_again() -> None:
    target = timed(lambda n, _i: 1e-5 * (10 + n), n_ctx_seq=20)
    assert measured_rows(target, clock=target.clock).rows == pytest.approx({n: 1e-5 * (10 + n) for n in ROWS})


@given(st.floats(1e-5, 0.5), st.floats(0.0, 1.0), st.floats(0.01, 2.0))
def test_nothing_begins_that_would_pass_the_limit(one: float, slope: float, limit: float) -> None:
    """The first decode of one row is always made: without it nothing is known."""
    target = timed(lambda n, _i: one * (1 + slope * (n - 1)))
    times = measured_rows(target, limit=limit, clock=target.clock)
    two = one * (1 + slope)
    assert target.clock.now <= two + max(one, limit) + 1e-9
    assert times.rows[1] == pytest.approx(one)


def test_where_time_is_short_what_matters_most_is_measured() -> None:
    target = timed(lambda n, _i: 0.1 * n)
    assert list(measured_rows(target, limit=0.71, clock=target.clock).rows) == [1, 4]
    assert target.n_decodes == 1 + 4


@pytest.mark.parametrize("size", ["n_ctx_seq", "n_batch", "n_ubatch", "n_outputs_max"])
@pytest.mark.parametrize("limit", [1, 3, 9])
def test_no_more_rows_than_any_size_allows(size: str, limit: int) -> None:
    sizes: dict[str, Any] = {size: limit}
    target = timed(lambda _n, _i: 1e-5, **sizes)
    assert sorted(measured_rows(target, 8, clock=target.clock).rows) == [n for n in sorted(ROWS) if n <= limit]


@pytest.mark.parametrize(("n_slots", "most"), [(1, 16), (3, 16), (4, 32), (7, 32), (8, 64), (64, 64)])
@pytest.mark.parametrize("slow", [1e-5, 2e-3])  # with and without time for a deeper memory
def test_many_rows_are_for_many_slots(n_slots: int, most: int, slow: float) -> None:
    target = timed(lambda _n, _i: slow, n_seq_max=n_slots)
    found = measured_rows(target, n_slots, limit=100 * slow, clock=target.clock).rows
    assert sorted(found) == [n for n in sorted((*ROWS, *MANY_ROWS)) if n <= most]


def test_memory_is_empty_afterwards() -> None:
    target = timed(lambda _n, _i: 1e-5)
    measured_rows(target, clock=target.clock)
    assert target.memory.length(0) == 0


def test_a_machine_that_is_busy_with_something_else_is_found_out() -> None:
    """Positions seem to cost nothing then, or anything."""
    for attention in ((0.0, 0.0), (6e-8, 4e-8)):
        for noise, disturbed in ((0.04, False), (3.0, True)):
            random_ = random.Random(5)  # noqa: S311 - times

            def takes(n: int, _i: int, noise: float = noise, random_: random.Random = random_) -> float:
                return 1e-5 * (10 + n) * (1 + noise * random_.random())

            target = timed(takes, attention=attention)
            assert measured_rows(target, clock=target.clock).disturbed is disturbed


def test_a_machine_that_was_busy_at_first_is_found_out() -> None:
    """The least of each number of rows looks right, but what positions cost cannot be seen."""
    target = timed(lambda n, i: 1e-5 * (10 + n) * (1.5 if i <= N_PASS else 1.0), attention=(6e-8, 4e-8))
    times = measured_rows(target, clock=target.clock)
    assert not times._replace(steady=True).disturbed
    assert times.disturbed


@pytest.mark.parametrize(
    ("rows", "disturbed"),
    [
        ({1: 10.0, 2: 16.0, 4: 17.0, 16: 50.0}, False),
        ({1: 10.0, 2: 9.0, 4: 8.0}, False),  # noise
        ({1: 10.0, 4: 61.0}, True),  # dearer than one by one
        ({1: 10.0, 4: 30.0, 8: 20.0}, True),
        ({4: 10.0}, False),
        ({}, False),
    ],
)
def test_times_that_cannot_be_right_are_found_out(rows: dict[int, float], disturbed: bool) -> None:  # noqa: FBT001
    assert DecodeTimes(rows, 0.0, Attention()).disturbed is disturbed


@pytest.mark.parametrize(("slower", "disturbed"), [((1.0, 1.0, 1.0), False), ((1.0, 1.4, 1.4), True)])
def test_fewer_rows_may_take_longer_if_they_always_do(
    slower: tuple[float, ...],
    disturbed: bool,  # noqa: FBT001
) -> None:
    """Some kernels are made for 9 rows and not for 8."""
    seconds = {1: 10, 2: 15, 3: 18, 4: 20, 5: 24, 8: 40, 9: 27, 16: 45}
    target = timed(lambda n, i: 1e-5 * seconds.get(n, 50) * (slower[max(0, i - 1) // N_PASS % 3] if n == 8 else 1.0))
    times = measured_rows(target, clock=target.clock)
    assert times.rows[8] > times.rows[9]
    assert times.disturbed is disturbed


@pytest.mark.parametrize("point", ["decode", "half-decoded", "decoded"])
@pytest.mark.parametrize("at", [0, 1, 5, 1 + N_PASS])
def test_memory_is_empty_when_a_decode_fails(point: str, at: int) -> None:
    target = timed(lambda _n, _i: 1e-5, fuse=Fuse(point, at))
    with pytest.raises(InjectedError):
        measured_rows(target, clock=target.clock)
    assert target.memory.length(0) == 0
