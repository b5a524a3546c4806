"""How much to draft and to verify, against trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspec.speculation.costs import Costs
from pyspec.speculation.planning import (
    LEAST,
    MARGIN,
    TRIMS,
    Base,
    Judge,
    Plan,
    Prices,
    Restoring,
    best_lengths,
    best_prefix,
    least_chance,
)

chances = st.floats(0.01, 0.99)
steps = st.floats(0.0, 0.05)


def path_of(each: Sequence[float]) -> list[float]:
    return list(itertools.accumulate(each, lambda a, b: a * b))


def summed(seconds: Callable[[Sequence[int]], float]) -> Callable[[Sequence[int], int], float]:
    """Return a function that also is told the sum of the lengths, and insists on that."""

    def checked(lengths: Sequence[int], n_rows: int) -> float:
        assert n_rows == sum(lengths)
        return seconds(lengths)

    return checked


paths = st.lists(chances, max_size=6).map(path_of)
extras = st.lists(steps, min_size=7, max_size=7).map(lambda each: [0.0, *itertools.accumulate(each)])
restorings = st.one_of(
    st.just(TRIMS), st.builds(Restoring, st.integers(0, 4), st.floats(0.0, 0.02), st.floats(0.0, 0.02))
)


# One draft


@given(
    paths, extras, st.integers(1, 4), st.floats(1e-3, 0.1), restorings, st.integers(1, 4), st.floats(0.0, 0.05)
)  # fmt: skip
def test_the_best_prefix_is_the_one_with_the_best_rate(
    path: list[float],
    extra: list[float],
    n: int,
    plain: float,
    restoring: Restoring,
    least: int,
    spent: float,
) -> None:
    base = Base(n, plain)
    plan = best_prefix(path, extra, base, restoring, least=least, spent=spent)

    def rate(k: int) -> float:
        lost = restoring.seconds(k, path[k - 1], sum(path[:k])) if k else 0.0
        return (n + sum(path[:k])) / (plain + spent + extra[k] + lost)

    def worth(k: int) -> float:
        return rate(k) if k else (1 + MARGIN) * rate(k)

    allowed = [0, *range(least, len(path) + 1)]
    assert plan.length in allowed
    assert worth(plan.length) == pytest.approx(max(map(worth, allowed)))
    assert plan.rate == pytest.approx(rate(plan.length))
    if plan.length:
        assert plan.gain == pytest.approx(sum(path[: plan.length]) - plan.seconds * n / plain)
        assert plan.gain_at(0.0, base.rate) == pytest.approx(sum(path[: plan.length]))
    else:
        assert (plan.gain, plan.seconds) == (0.0, 0.0)


@given(paths, extras)
def test_even_if_nothing_is_worth_it_there_is_a_best_length_that_is_not_0(
    path: list[float], extra: list[float]
) -> None:
    base = Base(1, 1e-3)
    plan = best_prefix(path, extra, base, always=True)
    rates = {k: (1 + sum(path[:k])) / (1e-3 + extra[k]) for k in range(1, len(path) + 1)}
    assert bool(plan.length) is bool(path)
    if path:
        assert rates[plan.length] == pytest.approx(max(rates.values()))


@pytest.mark.parametrize(("chance", "length"), [(0.4, 0), (0.5, 1), (0.7, 1), (0.8, 3)])
def test_a_staircase_of_costs(chance: float, length: int) -> None:
    """A second row costs a third of a decode, a third one twice as much, and a fourth one next to nothing."""
    assert best_prefix(path_of([chance] * 3), [0.0, 0.3, 1.0, 1.01], Base(1, 1.0)).length == length


# A memory that restores


def test_what_restoring_costs() -> None:
    restoring = Restoring(2, 5.0, 0.5)
    assert restoring.seconds(2, 0.1, 0.5) == 0.0  # within the bound
    assert restoring.seconds(3, 0.25, 1.0) == 5.0 + 0.75 * 2.0 * 0.5
    assert restoring.seconds(3, 1.0, 3.0) == 5.0  # nothing is decoded again when all of it stands
    assert TRIMS.seconds(1000, 0.0, 0.0) == 0.0


# Several sequences


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[list[float]], list[bool]]:
    n = draw(st.integers(1, 3))
    found = [draw(st.lists(chances, max_size=4).map(path_of)) for _ in range(n)]
    return found, [draw(st.booleans()) if path else False for path in found]


@given(drafts(), st.lists(steps, min_size=16, max_size=16))
@example(([[0.5, 0.5], [0.5]], [False, False]), [0.0] * 16)
def test_rows_are_divided_as_well_as_trying_everything_would(
    offered: tuple[list[list[float]], list[bool]], costs: list[float]
) -> None:
    found, fixed = offered
    took = [0.01, *(0.01 + each for each in itertools.accumulate(costs))]

    def seconds(lengths: Sequence[int]) -> float:
        return took[sum(lengths)]

    def rate(lengths: Sequence[int]) -> float:
        tokens = sum(sum(path[:n]) for path, n in zip(found, lengths, strict=True))
        return (len(found) + tokens) / seconds(lengths) * (1 + MARGIN / len(found) if [*lengths] == none else 1.0)

    none = [len(path) if whole else 0 for path, whole in zip(found, fixed, strict=True)]
    lengths = best_lengths(found, fixed, summed(seconds))
    ranges = [
        [len(path)] if whole else range(len(path) + 1) for path, whole in zip(found, fixed, strict=True)
    ]  # fmt: skip
    for length, allowed in zip(lengths, ranges, strict=True):
        assert length in allowed
    likely = min((path[-1] for path in found if path), default=1.0) > LEAST  # others are not worth a thought
    if likely:
        assert rate(lengths) == pytest.approx(max(map(rate, itertools.product(*ranges))))


def test_a_memory_that_restores_makes_lengths_dearer() -> None:
    found = [path_of([0.9] * 4), path_of([0.9] * 4)]

    def seconds(lengths: Sequence[int]) -> float:
        return 1.0 + 0.1 * sum(lengths)

    assert best_lengths(found, [False, False], summed(seconds)) == [4, 4]
    assert best_lengths(found, [False, False], summed(seconds), Restoring(2, 3.0, 0.1)) == [2, 2]
    assert best_lengths(found, [False, False], summed(seconds), Restoring(0, 3.0, 0.1)) == [0, 0]


# The judge


def gain_of(drafted: Sequence[float], k: int, worth: float, extra: Sequence[float]) -> float:
    return sum(drafted[:k]) - worth * extra[k]


@given(
    st.lists(chances, min_size=1, max_size=6),
    st.lists(chances, min_size=6, max_size=6),
    extras,
    extras,
    st.floats(1.0, 300.0),
)
def test_the_judge_goes_on_while_some_longer_draft_is_expected_to_gain_more(
    signs: list[float], expected: list[float], extra: list[float], took: list[float], worth: float
) -> None:
    judge = Judge(lambda signal, _i: signal, expected, extra, took, worth)
    for n, sign in enumerate(signs, 1):
        goes_on = judge(sign)
        here = path_of(signs[:n])
        best = max([0.0, *(gain_of(here, k, worth, extra) for k in range(1, n + 1))])
        longer = [
            gain_of(path_of([*signs[:n], *expected[n:k]]), k, worth, extra) - worth * (took[k] - took[n])
            for k in range(n + 1, len(expected) + 1)
        ]
        margin = max(longer, default=best) - best
        if abs(margin) > 1e-9:
            assert goes_on is (margin > 0.0)
        assert judge.n_tokens == n


def test_the_judge_looks_behind_a_step() -> None:
    """A third row costs as much as a fourth: one more token does not pay, two do."""
    judge = Judge(lambda signal, _i: signal, [0.9] * 3, [0.0, 0.5, 1.5, 1.5], [0.0] * 4, 1.0)
    assert judge(0.9)


def test_the_judge_ends_with_the_limit_and_asks_with_the_tokens_number() -> None:
    asked: list[tuple[float, int]] = []

    def chance(signal: float, i: int) -> float:
        asked.append((signal, i))
        return 0.99

    judge = Judge(chance, [0.99] * 3, [0.0, 0.1, 0.1, 0.1], [0.0, 0.1, 0.2, 0.3], 1.0)
    assert [judge(signal) for signal in (0.7, 0.8, 0.9)] == [True, True, False]
    assert asked == [(0.7, 0), (0.8, 1), (0.9, 2)]


# What a first token must have


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
    st.lists(st.floats(0.0, 3.0), min_size=6, max_size=6),
    st.integers(1, 4),
)
def test_no_draft_is_chosen_whose_first_token_is_below_the_least_chance(
    chances: list[float], steps: list[float], n_sequences: int
) -> None:
    path, extra = list(itertools.accumulate(chances, lambda a, b: a * b)), [0.0, *itertools.accumulate(steps)]
    base = Base(n_sequences, 1.0)
    least = least_chance({n: extra[n] for n in range(1, 7)}, base)
    if best_prefix(path, extra, base).length:
        assert path[0] >= least - 1e-9


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=3),
    st.lists(st.floats(0.0, 3.0), min_size=3, max_size=3),
)
def test_that_holds_for_drafts_that_share_the_rows(chances: list[float], steps: list[float]) -> None:
    n, extra = len(chances), [0.0, *itertools.accumulate(steps)]
    base = Base(n, 1.0)
    lengths = best_lengths([[chance] for chance in chances], [False] * n, lambda _, n_rows: 1.0 + extra[n_rows])
    if any(lengths):
        assert max(chances) >= least_chance({k: extra[k] for k in range(1, n + 1)}, base) - 1e-9


def test_a_plateau_of_the_costs_asks_for_less() -> None:
    """Twice the time for up to three rows more: half of them must stand, and not all of a single one."""
    assert least_chance({1: 1.0}, Base(1, 1.0)) == pytest.approx(1.2)
    assert least_chance({1: 1.0, 3: 1.0}, Base(1, 1.0)) == pytest.approx(0.4)


# Prices


def test_prices_are_what_further_rows_cost() -> None:
    prices = Prices(Costs({1: 1.0, 2: 1.5, 4: 2.0, 8: 6.0}), 2, 2)
    assert prices.base == Base(2, 1.5)
    assert prices.base.rate == 2 / 1.5
    assert prices.more_rows(2) == [0.0, 0.25, 0.5]
    assert prices.more_rows(4)[:5] == [0.0, 0.25, 0.5, 1.5, 2.5]
    assert prices.more_rows(0)[0] == 0.0
    assert prices.shared(2, 2) == [0.0, 0.25, 1.25]


def test_what_rows_may_cost_less_is_known_beside_it() -> None:
    costs = Costs({1: 1.0, 2: 1.5, 4: 2.0, 8: 6.0})
    prices = Prices(costs, 1, 1)
    assert prices.doubts(3)[:4] == [0.0, *(costs.verify.doubt(n) for n in (2, 3, 4))]
    assert prices.doubts(0)[0] == 0.0


def test_a_draft_pays_for_turns_to_its_rows_and_back() -> None:
    costs = Costs({1: 1.0, 2: 1.5, 4: 2.0, 8: 6.0}, turn=0.125)

    def after(n_entries: int) -> Prices:
        costs.n_entries = n_entries
        return Prices(costs, 1, 1)

    plain, same, other = after(1), after(3), after(4)
    assert plain.base.seconds == 1.0
    assert plain.more_rows(3) == [0.0, 0.75, 1.0, 1.25]
    assert same.base.seconds == other.base.seconds == 1.125  # who turned has to turn back
    assert same.plain == 1.0
    assert same.more_rows(3) == [0.0, 0.625, 0.75, 1.125]  # again 3 rows: no turn
    assert other.more_rows(3) == [0.0, 0.625, 0.875, 1.0]


def test_a_plan_is_worth_less_where_a_second_is_worth_more() -> None:
    plan = Plan(3, 2.0, 0.5, 4.0)
    assert plan.gain_at(2.0, 2.0) == 2.0
    assert plan.gain_at(4.0, 2.0) == 1.0
