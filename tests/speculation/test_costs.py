"""Medians and a level: costs follow the machine, and outliers count for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.speculation.costs import TYPICAL, Costs, Decoded
from pyspec.speculation.curves import CostCurve, DraftCost, Level

PLAIN = {"draft": 0.0, "verify": 0.0, "total": 0.0}
curves = st.dictionaries(st.integers(1, 64), st.floats(1e-4, 10.0), min_size=1, max_size=8)
seconds = st.floats(1e-4, 10.0)


def curve(points: dict[int, float]) -> CostCurve:
    return CostCurve(Level(), points)


# Curves


def test_between_points_a_line_counts_and_beyond_them_the_line_through_all() -> None:
    known = curve({2: 10.0, 4: 20.0, 8: 28.0})
    assert [known.seconds(n) for n in (2, 3, 4, 6, 8, 11)] == [10.0, 15.0, 20.0, 24.0, 28.0, 37.0]
    assert known.seconds(1) == 5.0


def test_a_plateau_stays_one() -> None:
    known = curve({1: 10.0, 3: 22.0, 4: 22.0})
    assert [known.seconds(n) for n in (2, 3, 4)] == [16.0, 22.0, 22.0]


def test_little_is_known() -> None:
    assert curve({}).seconds(3) == 0.0
    assert [curve({4: 8.0}).seconds(n) for n in (1, 4, 6)] == [2.0, 8.0, 12.0]  # proportional


def test_times_that_fall_are_not_continued() -> None:
    """Noise may make more rows look cheaper; it must not make very many of them look free."""
    known = curve({1: 10.0, 4: 8.0})
    assert known.seconds(64) == 8.0
    assert curve({4: 2.0, 5: 10.0}).seconds(1) == 0.0  # nor less than nothing


@given(curves, st.integers(1, 200))
def test_a_cost_is_never_negative_and_known_points_are_their_own(points: dict[int, float], count: int) -> None:
    known = curve(points)
    assert known.seconds(count) >= 0.0
    for n, took in known.points.items():
        assert took == pytest.approx(points[n])


def test_what_is_no_time_is_ignored() -> None:
    known = curve({1: 1.0})
    for took in (0.0, -1.0):
        known.observe(1, took)
        known.observe(7, took)
    assert known.points == {1: 1.0}


def test_an_outlier_counts_for_nothing() -> None:
    known = curve({1: 1.0, 2: 1.5})
    for took in (1.0, 100.0, 1.0, 0.001, 1.0):
        known.observe(1, took)
        assert known.points == pytest.approx({1: 1.0, 2: 1.5})


def test_a_first_observation_is_weighed_against_what_was_expected() -> None:
    """A count that was never measured starts from what the line says, so one hiccup does not make it look dear."""
    known = curve({1: 1.0, 4: 4.0})
    known.observe(2, 50.0)
    assert known.seconds(2) == pytest.approx(2.0)
    for _ in range(3):
        known.observe(2, 3.0)
    assert known.seconds(2) == pytest.approx(3.0)


# The level


def test_what_slows_one_down_slows_all_down() -> None:
    known = curve({1: 1.0, 4: 2.0, 8: 3.0})
    for _ in range(12):
        known.observe(1, 1.2)
    assert known.points == pytest.approx({1: 1.2, 4: 2.4, 8: 3.6})


def test_a_point_that_moves_alone_takes_the_others_along_by_its_share() -> None:
    """1 and 4 are observed in turns and only 4 moves: at first the others go along by half of it, of its logarithm."""
    known = curve({1: 1.0, 4: 2.0, 8: 4.0})
    for _ in range(40):
        known.observe(1, 1.0)
        known.observe(4, 2.0)
    for _ in range(5):
        known.observe(1, 1.0)
        known.observe(4, 4.0)
    assert known.points == pytest.approx({1: 2**0.5, 4: 4.0, 8: 4.0 * 2**0.5}, rel=0.02)
    for _ in range(40):  # then 1 tells that it did not
        known.observe(1, 1.0)
        known.observe(4, 4.0)
    assert (known.seconds(1), known.seconds(4)) == pytest.approx((1.0, 4.0), rel=0.02)


@given(curves, st.lists(st.tuples(st.integers(1, 20), seconds), max_size=30), st.integers(1, 20), seconds)
def test_what_is_always_the_same_is_learned(
    points: dict[int, float], observed: list[tuple[int, float]], count: int, took: float
) -> None:
    known = curve(points)
    for each in observed:
        known.observe(*each)
    for _ in range(9):
        known.observe(count, took)
    assert known.seconds(count) == pytest.approx(took)


@given(curves, st.lists(st.tuples(st.integers(1, 20), seconds), max_size=30), st.floats(0.1, 10.0))
def test_a_machine_that_is_so_many_times_slower_has_costs_so_many_times_higher(
    points: dict[int, float], observed: list[tuple[int, float]], times: float
) -> None:
    known, slower = curve(points), curve({n: took * times for n, took in points.items()})
    for count, took in observed:
        known.observe(count, took)
        slower.observe(count, took * times)
    for count in range(1, 25):
        assert slower.seconds(count) == pytest.approx(times * known.seconds(count), rel=1e-6)


def test_curves_share_their_level() -> None:
    level = Level()
    verify, draft = CostCurve(level, {1: 1.0, 2: 1.5}), CostCurve(level, {1: 0.1})
    for _ in range(10):
        verify.observe(1, 2.0)
    assert draft.seconds(1) == pytest.approx(0.2)
    late = CostCurve(level, {1: 7.0})
    assert late.seconds(1) == pytest.approx(7.0)  # what is told now holds now


# Doubt


def test_a_count_is_in_doubt_until_it_is_observed_and_again_long_after_it() -> None:
    known = curve({1: 1.0, 4: 4.0})
    assert known.doubt(4) == pytest.approx(3.0)
    known.observe(4, 4.0)
    for _ in range(1023):
        assert known.doubt(4) == 0.0
        known.observe(1, 1.0)
    known.observe(1, 1.0)
    assert 0.0 < known.doubt(4) <= 1.0
    assert curve({}).doubt(4) == 0.0


def test_more_rows_cost_no_less_than_fewer_that_were_observed() -> None:
    """So on a straight line there is little to try, and behind a step that was only measured once there is much."""
    known = curve({1: 4.0, 2: 5.0, 8: 8.0, 9: 20.0})
    known.observe(8, 8.0)
    assert known.doubt(9) == pytest.approx(12.0)
    assert known.doubt(4) == pytest.approx(2.0)  # no less than one row takes
    known.observe(2, 5.0)
    assert known.doubt(3) == pytest.approx(0.5)
    assert known.doubt(1) == 0.0


def test_a_first_observation_counts_if_it_is_cheaper() -> None:
    """So trying something once is enough to learn of it: what else runs only makes times longer."""
    known = curve({1: 1.0, 4: 4.0})
    known.observe(4, 2.0)
    assert known.seconds(4) == pytest.approx(2.0)
    known.observe(2, 0.75)
    assert known.seconds(2) == pytest.approx(0.75)


def test_what_was_not_measured_lately_is_not_believed_to_be_dearer_than_what_is_next() -> None:
    """4 rows were measured while something else ran."""
    known = curve({1: 1.0, 4: 9.0, 8: 5.0})
    assert known.seconds(4) == pytest.approx(4.0)  # than so many decodes
    assert curve({1: 2.0, 4: 7.0, 8: 5.0}).seconds(4) == pytest.approx(5.0)  # than more rows
    for _ in range(8):
        known.observe(4, 9.0)
    assert known.seconds(4) == pytest.approx(9.0)  # it was, so that is believed


# Drafts and rounds


def test_drafts_of_several_sequences_are_kept_apart() -> None:
    verify, cost = curve({1: 1.0, 4: 2.0}), DraftCost(Level(), {1: 0.1, 4: 0.4})
    assert cost.seconds(4, 1, verify) == pytest.approx(0.4)
    assert cost.seconds(4, 4, verify) == pytest.approx(0.8)  # they grow like a decode, before any was seen
    for _ in range(5):
        cost.observe(4, 4, 0.6)
    assert cost.seconds(4, 4, verify) == pytest.approx(0.6)
    assert cost.n_calls == 5
    assert cost.points.keys() == {1, 4}


def test_a_drafter_of_which_nothing_is_known() -> None:
    cost = DraftCost(Level())
    assert cost.seconds(3, 1, curve({1: 1.0})) == 0.0
    assert cost.points == {}
    cost.observe(2, 1, 0.5)
    assert cost.points == {2: 0.5}


def test_too_little_to_see_how_rows_grow_is_filled_up_with_what_is_typical() -> None:
    assert Costs().verify.points == pytest.approx(TYPICAL)
    assert Costs({}).verify.points == pytest.approx(TYPICAL)
    slow = Costs({1: 1.0}).verify.points
    assert slow == pytest.approx({n: took / TYPICAL[1] for n, took in TYPICAL.items()})
    assert Costs({1: 1.0, 2: 1.1}).verify.points == pytest.approx({1: 1.0, 2: 1.1})
    assert Costs({4: 1.0}).verify.points == pytest.approx({4: 1.0})


def test_a_round_that_reads_prompts_does_not_count() -> None:
    costs = Costs({1: 1.0, 2: 1.5})
    decodes = [Decoded(1, reading=False, seconds=9.0), Decoded(2, reading=True, seconds=9.0)]
    for _ in range(10):
        assert not costs.take(decodes, {**PLAIN, "total": 50.0}, saved=False)
    assert costs.verify.points == pytest.approx({1: 1.0, 2: 1.5})
    assert costs.overhead == 0.0


def test_what_a_round_takes_beside_is_its_overhead_and_checkpoints_are_what_comes_on_top() -> None:
    costs = Costs({1: 1.0, 2: 1.5})
    for total in (1.75, 1.75, 9.0):
        took = {"draft": 0.5, "verify": 1.0, "total": total}
        assert costs.take([Decoded(1, reading=False, seconds=1.0)], took, saved=False)
    assert (costs.overhead, costs.checkpoint) == (0.25, 0.0)
    costs.take([Decoded(2, reading=False, seconds=1.5)], {"draft": 0.5, "verify": 1.5, "total": 3.0}, saved=True)
    assert (costs.overhead, costs.checkpoint) == (0.25, 0.75)
    costs.take([], {"draft": 2.0, "verify": 2.0, "total": 3.0}, saved=False)  # clocks are no better than that
    assert costs.overhead >= 0.0


def test_what_is_known_can_be_written_down() -> None:
    costs = Costs({1: 1.0, 4: 2.0}, {"draft-simple": {1: 0.1}})
    costs.draft("other").observe(3, 2, 0.5)
    drafts = {"draft-simple": {1: 0.1}, "other": {}}
    assert costs.to_dict() == {"verify": {1: 1.0, 4: 2.0}, "turn": 0.0, "attention": (0.0, 0.0), "drafts": drafts}
    again = Costs(costs.to_dict()["verify"], costs.to_dict()["drafts"])
    assert again.draft("draft-simple").points == {1: 0.1}
    assert again.draft("other").seconds(2, 1, again.verify) == 0.0


# Turns


def test_what_turns_cost_is_learned_and_is_no_part_of_what_rows_cost() -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    for _ in range(40):
        for n_entries, took in ((4, 2.25), (1, 1.25), (1, 1.0), (1, 1.0), (1, 1.0)):
            costs.take([Decoded(n_entries, reading=False, seconds=took)], PLAIN, saved=False)
    assert costs.turn == pytest.approx(0.25)
    assert costs.verify.seconds(1) == pytest.approx(1.0)
    assert costs.verify.seconds(4) == pytest.approx(2.0, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 5), seconds), max_size=60), st.floats(0.0, 3.0))
def test_times_are_never_negative_whatever_turns_seem_to_cost(decodes: list[tuple[int, float]], turn: float) -> None:
    costs = Costs({1: 1.0, 4: 2.0}, turn=turn)
    for n_entries, took in decodes:
        costs.take([Decoded(n_entries, reading=False, seconds=took)], PLAIN, saved=False)
        assert costs.turn >= 0.0
        assert all(costs.verify.seconds(n) > 0.0 for n in range(1, 8))


def test_after_a_prompt_there_is_a_turn() -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    costs.take([Decoded(64, reading=True, seconds=9.0)], PLAIN, saved=False)
    assert costs.n_entries == 64


def test_a_turn_that_was_measured_while_something_else_ran_is_not_believed() -> None:
    costs = Costs({1: 1.0, 4: 2.0}, turn=50.0)
    assert costs.turn == 0.5
    for _ in range(3):  # and forgotten when turns are seen
        for n_entries, took in ((1, 1.0), (1, 1.0), (1, 1.0), (64, 9.0), (1, 1.125)):
            costs.take([Decoded(n_entries, reading=n_entries == 64, seconds=took)], PLAIN, saved=False)
    assert costs.turn == pytest.approx(0.125)
