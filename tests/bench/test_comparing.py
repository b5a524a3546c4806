from __future__ import annotations

import itertools

import pytest

from pyspec.bench import Bench, Plan, Setting, Workload, figures_of, parse_setting
from pyspec.bench.comparing import Pair
from pyspec.bench.running import Run
from pyspec.engine import Result
from pyspec.errors import UnsupportedError
from pyspec.speculation.stats import GenerationStats
from pyspec.trace import Verdict
from tests.bench.fake_lab import PROMPT_SECONDS, RIVAL, RIVAL_OF, FakeLab, Script

PLAN = Plan(n_tokens=5, n_pairs=2)
TWO = Workload("two", ("a", "b"))
SUFFIX = parse_setting("suffix")
OTHER = parse_setting("ngram-mod")


def test_plain_and_the_settings_take_turns_prompt_by_prompt() -> None:
    lab, steps = FakeLab(), list[None]()
    Bench(lab, [TWO], PLAN, lambda: steps.append(None)).run([SUFFIX, OTHER])
    seen = ["plain?", "plain?"]
    inspected = ["suffix?", "suffix?", "ngram-mod?", "ngram-mod?"]
    pairs = [*["plain", "suffix"] * 2, *["plain", "ngram-mod"] * 2] * 2
    assert lab.log == [*seen, *inspected, *pairs]
    assert len(steps) == PLAN.n_runs([TWO], 2) == len(lab.log)
    assert lab.n_open == 0


def test_the_ratio_of_a_pair_is_that_of_all_its_prompts() -> None:
    lab = FakeLab({"plain": Script([1.0, 3.0]), "suffix": Script([1.0, 1.0])})
    comparison = Bench(lab, [TWO], PLAN).run([SUFFIX])[0]
    assert [pair.ratio for pair in comparison.pairs] == [2.0, 2.0]  # (1 + 3) / (1 + 1), 4 tokens after the first each


def test_the_median_forgets_a_disturbed_pair() -> None:
    plan = Plan(n_tokens=5, n_pairs=5)
    lab = FakeLab({"suffix": Script([0.5, 0.5, 50.0, 0.5, 0.5])})
    figures = figures_of(Bench(lab, [Workload("one", ("a",))], plan).run([SUFFIX])[0])
    assert figures.ratio is not None
    assert (figures.ratio.median, figures.ratio.low, figures.ratio.high, figures.ratio.n) == (2.0, 2.0, 2.0, 5)
    assert (figures.plain_speed, figures.speed) == (1.0, 2.0)


def run_of(tokens: list[int], rounds: list[tuple[int, float]], n_first: int = 1, first: float = 0.0) -> Run:
    """A prompt by itself that took what its rounds took, the first one with its draft, and a tenth more."""
    stats = GenerationStats(n_first=n_first, prompt_seconds=PROMPT_SECONDS + 1.1 * first)
    seconds = stats.prompt_seconds + 1.1 * sum(each for _n_tokens, each in rounds)
    return Run((Result(tokens=tokens, stats=stats),), seconds, tuple(rounds))


SAID = list(range(9))
PLAINLY = run_of(SAID, [(1, 1.0)] * 8)


@pytest.mark.parametrize(
    ("other", "plain_speed", "speed"),
    [
        (run_of(SAID, [(4, 2.0), (4, 2.0)]), 1.0, 2.0),
        (run_of([*SAID[:5], 77, 77], [(4, 2.0), (2, 9.0)]), 1.0, 2.0),  # parts with a round
        (run_of([*SAID[:7], 77, 77], [(4, 2.0), (4, 2.0)]), 1.0, 2.0),  # parts in the middle of one
        (run_of([*SAID[:5], 77, 77], [(1, 1.0), (3, 3.0)], n_first=3, first=1.0), 1.0, 4 / 3),  # drafted in the first
        (run_of([*SAID[:2], 77, 77, 77, 77], [(3, 1.0)], n_first=3, first=1.0), 1.0, 2.0),  # parts in it
        (run_of(SAID, [(8, 3.0)], first=1.0), 1.0, 2.0),  # drafted in it for nothing
        (run_of(SAID[:5], [(4, 2.0)]), 1.0, 2.0),  # ended early
        (run_of([77, 77], [(1, 2.0)]), 0.0, 0.0),
    ],
)
def test_where_texts_part_only_what_both_said_counts(other: Run, plain_speed: float, speed: float) -> None:
    pair = Pair((PLAINLY,), (other,))
    assert pair.speeds == pytest.approx((plain_speed / 1.1, speed / 1.1))
    assert pair.ratio == (pytest.approx(speed / plain_speed) if speed else None)


def test_one_prompt_counts_without_its_reading_and_several_with_it() -> None:
    lab = FakeLab()
    alone = Bench(lab, [TWO], PLAN).run([SUFFIX])[0].pairs[0].plain[0]
    assert (alone.counted_tokens, alone.counted_seconds) == (4, 4.0)
    slots = Plan(n_tokens=5, n_pairs=2, n_slots=2)
    together = Bench(lab, [TWO], slots).run([SUFFIX])[0].pairs[0].plain[0]
    assert (together.counted_tokens, together.counted_seconds) == (40, PROMPT_SECONDS + 32.0)


def test_slots_get_different_prompts() -> None:
    plan = Plan(n_tokens=5, n_pairs=1, n_slots=5)
    (batch,) = plan.batches(TWO)
    assert batch[:5] == ("a", "b", "2. a", "3. b", "4. a")
    assert len(set(batch)) == len(batch) == 20  # a slot whose answer ends goes on with another one
    many = Workload("many", tuple("abcdefghij"))
    assert Plan(n_tokens=5, n_pairs=1, n_slots=2).batches(many) == [many.prompts]
    assert Plan(n_tokens=5, n_pairs=1).batches(TWO) == [("a",), ("b",)]


def test_an_answer_that_ends_at_once_has_no_ratio() -> None:
    lab = FakeLab({"plain": Script(answer=lambda _prompt: [2]), "suffix": Script(answer=lambda _prompt: [2])})
    comparison = Bench(lab, [TWO], PLAN).run([SUFFIX])[0]
    assert comparison.pairs[0].ratio is None
    assert figures_of(comparison).ratio is None


@pytest.mark.parametrize("settings", [[SUFFIX], [OTHER, SUFFIX], [SUFFIX, OTHER]])
def test_runners_are_closed_when_a_setting_cannot_work(settings: list[Setting]) -> None:
    lab = FakeLab(impossible=["suffix"])
    with pytest.raises(UnsupportedError):
        Bench(lab, [TWO], PLAN).run(settings)
    assert lab.n_open == 0


def test_outputs_are_compared() -> None:
    lab = FakeLab({"suffix": Script(answer=lambda prompt: [1, 2, RIVAL if prompt == "b" else 3, 4, 1])})
    comparison = Bench(lab, [TWO], PLAN).run([SUFFIX])[0]
    assert comparison.verdicts == []  # nobody asked
    assert figures_of(comparison).equal == (0, 2)


@pytest.mark.parametrize(("tie", "expected"), [(0.1, Verdict.DIFFERENT), (0.75, Verdict.TIE)])
def test_a_check_explains_the_first_difference(tie: float, expected: Verdict) -> None:
    lab = FakeLab({"suffix": Script(answer=lambda prompt: [1, 2, RIVAL if prompt == "b" else RIVAL_OF, 4, 1])})
    plan = Plan(n_tokens=5, n_pairs=0, tie=tie)
    first, second = Bench(lab, [TWO], plan).run([SUFFIX])[0].verdicts
    assert first.verdict is Verdict.SAME
    assert (second.index, second.plain_token, second.other_token) == (2, RIVAL_OF, RIVAL)
    assert (second.plain_gap, second.other_gap, second.verdict) == (0.5, 0.5, expected)


@pytest.mark.parametrize(("tie", "expected"), [(0.1, Verdict.DIFFERENT), (0.75, Verdict.TIE)])
def test_a_check_looks_at_all_runs(tie: float, expected: Verdict) -> None:
    """The first one, which is inspected, says what plain decoding says."""
    calls = itertools.count()
    lab = FakeLab({"suffix": Script(answer=lambda _prompt: [1, 2, RIVAL if next(calls) else RIVAL_OF, 4, 1])})
    comparison = Bench(lab, [Workload("one", ("a",))], Plan(n_tokens=5, n_pairs=2, tie=tie)).run([SUFFIX])[0]
    assert [each.verdict for each in comparison.verdicts] == [Verdict.SAME, expected, expected]
    assert (comparison.verdicts[1].plain_gap, comparison.verdicts[1].other_gap) == (0.5, None)
    assert figures_of(comparison).verdicts[expected.value] == 2


def test_both_have_answered_the_same_before_each_pair() -> None:
    lab = FakeLab({"suffix": Script(), "none": Script()})
    settings, plan = [SUFFIX, parse_setting("none")], Plan(n_tokens=5, n_pairs=1)
    one, two = Workload("one", ("a",)), Workload("two", ("b",))
    Bench(lab, [one, two], plan).run(settings)
    each = ["plain?", "suffix?", "none?", "plain", "suffix", "plain", "none"]
    assert lab.log == each * 2
    assert len(lab.log) == plan.n_runs([one, two], 2)


@pytest.mark.parametrize("n_workloads", [1, 2])
@pytest.mark.parametrize(("n_settings", "groups"), [(1, [1]), (5, [5]), (6, [5, 1]), (11, [5, 5, 1])])
def test_a_few_settings_hold_memory_at_once(n_settings: int, groups: list[int], n_workloads: int) -> None:
    names = [f"suffix:n_max={i + 1}" for i in range(n_settings)]
    lab, plan = FakeLab({name: Script() for name in names}), Plan(n_tokens=5, n_pairs=2)
    workloads = [Workload(f"w{i}", (f"p{i}",)) for i in range(n_workloads)]
    found = Bench(lab, workloads, plan).run([parse_setting(name) for name in names])
    assert lab.most_open == 1 + max(groups)
    assert lab.n_open == 0
    assert len(lab.log) == plan.n_runs(workloads, n_settings)
    assert len(found) == n_workloads * n_settings
    assert {len(comparison.pairs) for comparison in found} == {2}
    assert all(comparison.plain_inspected and comparison.inspected for comparison in found)
