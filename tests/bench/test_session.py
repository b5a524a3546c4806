from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from pyspec.bench import Plan, Workload, parse_setting
from pyspec.bench.reporting import Report
from pyspec.bench.session import Session
from pyspec.bench.suggesting import grid, thread_counts
from pyspec.errors import DrafterError, UnsupportedError
from tests.bench.fake_lab import FakeLab, Script

ONE = [Workload("one", ("a",))]
PLAN = Plan(n_tokens=5, n_pairs=2)
SETTINGS = [parse_setting(text) for text in ("suffix", "ngram-mod", "ngram-simple", "ngram-map-k", "auto")]


def speeds(**ratios: float) -> dict[str, Script]:
    """Return scripts that accept a token with each round and take so much less time."""
    scripts = ((label.replace("_", "-"), 1 / ratio) for label, ratio in ratios.items())
    return {label: Script((seconds,), n_drafted=1, n_accepted=1) for label, seconds in scripts}


def reported(session: Session, tried: Sequence[tuple[str, float]] = ()) -> Report:
    return Report(
        {},
        session.comparisons,
        SETTINGS,
        threads=session.threads,
        tried=tried,
        suggests=True,
        base=["pyspec"],
        interrupted=session.interrupted,
    )


def test_progress_ends_with_the_last_run() -> None:
    seen: list[tuple[int, int]] = []
    session = Session(FakeLab(), ONE, PLAN, lambda done, total: seen.append((done, total)))
    session.run(SETTINGS[:2])
    assert [done for done, _total in seen] == list(range(1, len(seen) + 1))
    assert {total for _done, total in seen} == {len(seen)}
    assert not session.suggests


def test_a_search_measures_the_best_ones_again() -> None:
    seen: list[tuple[int, int]] = []
    lab = FakeLab(
        speeds(suffix=1.5, ngram_mod=0.5, ngram_simple=1.2, ngram_map_k=0.9, auto=1.4), by_threads={1: 1.0, 2: 0.5}
    )
    session = Session(lab, ONE, PLAN, lambda done, total: seen.append((done, total)))
    session.search(SETTINGS, [1, 2, 4])
    assert [label for label, _ratio in session.tried] == ["suffix", "auto", "ngram-simple", "ngram-map-k", "ngram-mod"]
    assert [made.setting.label for made in session.comparisons] == ["suffix", "auto", "ngram-simple"]
    assert all(len(made.pairs) == PLAN.n_pairs for made in session.comparisons)
    assert (session.threads[0].n_threads, session.threads[0].speed.n) == (2, 3)  # the first run warms up
    assert {threads for label, threads in lab.opened[-4:]} == {2}
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert lab.n_open == 0


def test_the_suggestion_has_the_best_threads_and_setting() -> None:
    lab = FakeLab(speeds(suffix=1.1, auto=1.4), by_threads={1: 0.5, 2: 1.0})
    session = Session(lab, ONE, PLAN)
    session.search([SETTINGS[0], SETTINGS[4]], [1, 2])
    # with one thread plain decoding is twice as fast, so neither setting gains
    assert reported(session).suggestion() == ["pyspec", "-t", "1", "--spec-type", "none"]
    session = Session(FakeLab(speeds(suffix=1.1, auto=1.4)), ONE, PLAN)
    session.search([SETTINGS[0], SETTINGS[4]], [1])
    assert reported(session).suggestion() == ["pyspec", "-t", "1", "--spec-type", "auto"]


def test_a_search_leaves_out_what_cannot_work() -> None:
    session = Session(FakeLab(speeds(auto=1.5), impossible=["suffix"]), ONE, PLAN)
    session.search(SETTINGS, [1])
    assert "suffix" not in dict(session.tried)
    assert len(session.tried) == len(SETTINGS) - 1
    with pytest.raises(UnsupportedError):
        Session(FakeLab(impossible=["suffix"]), ONE, PLAN).search(SETTINGS[:1], [1])


@pytest.mark.parametrize("break_at", [1, 4, 9])
def test_what_was_measured_before_ctrl_c_stays(break_at: int) -> None:
    lab = FakeLab(break_at=break_at)
    session = Session(lab, ONE, PLAN)
    session.run(SETTINGS[:2])
    assert session.interrupted
    assert lab.n_open == 0
    n_pairs = [len(made.pairs) for made in session.comparisons]
    assert n_pairs == {1: [0, 0], 4: [0, 0], 9: [1, 1]}[break_at]  # 3 inspected, a pair each, and half a pair
    report = reported(session)
    assert report.rows()
    assert ("suffix is" in report.headline()) is (break_at == 9)
    if break_at == 9:
        assert report.headline().startswith("So far: ")
        missing = report.headline().partition("Outputs are")[2]
        assert [f" {setting.label}" in missing for setting in SETTINGS[:3]] == [False, False, True]


@pytest.mark.parametrize(
    ("lab", "reason"),
    [(FakeLab(fail_at=9), "suffix failed."), (FakeLab(fails_to_close=["ngram-mod"]), "ngram-mod cannot be saved.")],
    ids=["run", "close"],
)
def test_what_was_measured_before_a_setting_failed_stays(lab: FakeLab, reason: str) -> None:
    session = Session(lab, ONE, PLAN)
    session.run(SETTINGS[:2])
    assert session.interrupted
    assert str(session.failure) == reason
    assert lab.n_open == 0
    assert all(made.pairs for made in session.comparisons)
    assert reported(session).headline().startswith("So far: ")


@pytest.mark.parametrize("option", ["break_at", "fail_at"])
@pytest.mark.parametrize(
    ("run", "suggests"), [(1, False), (4, False), (6, False), (7, True)]
)  # 4 inspected, and a pair
def test_a_search_that_was_broken_off_in_its_final_has_its_first_round(
    option: str, run: int, *, suggests: bool
) -> None:
    whole = FakeLab(speeds(suffix=1.5, auto=1.4))
    Session(whole, ONE, PLAN).search(SETTINGS, [1])
    n_final = PLAN.n_runs(ONE, 3)
    lab = FakeLab(speeds(suffix=1.5, auto=1.4), **{option: len(whole.log) - n_final + run})  # type: ignore[arg-type]
    session = Session(lab, ONE, PLAN)
    session.search(SETTINGS, [1])
    assert session.interrupted
    assert (session.failure is None) is (option == "break_at")
    assert [label for label, _ratio in session.tried[:2]] == ["suffix", "auto"]
    assert (reported(session, tried=session.tried).suggestion() is not None) is suggests  # by what the final measured


def test_a_check_without_pairs_that_fails_keeps_its_verdicts() -> None:
    plan = dataclasses.replace(PLAN, n_pairs=0, tie=0.01)
    session = Session(FakeLab(fail_at=3), ONE, plan)
    session.run(SETTINGS[:2])
    assert str(session.failure) == "ngram-mod failed."
    assert [len(made.verdicts) for made in session.comparisons] == [1, 0]


def test_a_setting_that_fails_before_anything_was_measured_is_an_error() -> None:
    lab = FakeLab(fail_at=2)
    with pytest.raises(DrafterError, match=r"suffix failed\."):
        Session(lab, ONE, PLAN).run(SETTINGS[:2])
    assert lab.n_open == 0


def test_settings_that_draft_nothing_do_not_get_into_the_final_by_noise() -> None:
    scripts = {"suffix": Script((0.4,)), "ngram-mod": Script((0.5,), n_drafted=2)}
    lab = FakeLab(scripts | speeds(ngram_simple=0.9, ngram_map_k=1.2, auto=1.1))
    session = Session(lab, ONE, PLAN)
    session.search(SETTINGS, [1])
    tried = [label for label, _ratio in session.tried]
    assert tried == ["ngram-map-k", "auto", "ngram-simple", "suffix", "ngram-mod"]
    assert [made.setting.label for made in session.comparisons] == tried[:3]


@pytest.mark.parametrize("break_at", [9, 11])
def test_a_search_that_was_broken_off_before_all_were_tried_suggests_nothing(break_at: int) -> None:
    session = Session(FakeLab(speeds(suffix=1.5, auto=1.4), break_at=break_at), ONE, PLAN)
    session.search(SETTINGS, [1])
    report = reported(session)
    assert session.interrupted
    assert not session.tried
    assert report.suggestion() is None


def test_ctrl_c_during_a_search() -> None:
    session = Session(FakeLab(break_at=3), ONE, PLAN)
    session.search(SETTINGS, [1])
    assert session.interrupted
    assert reported(session).suggestion() is None


def test_numbers_of_threads() -> None:
    assert thread_counts(1, 1) == [1]
    assert thread_counts(6, 12) == [1, 2, 4, 6, 8, 12]
    assert thread_counts(2, 2) == [1, 2]


def test_the_grid_has_a_draft_model_where_there_is_one() -> None:
    alone, with_model = grid(None), grid("draft-simple")
    assert alone[0].label == "auto"
    assert [setting.label for setting in with_model[len(alone) :]] == [f"draft-simple:n_max={n}" for n in (2, 3, 5, 7)]
    assert not any(setting.label.startswith("draft-") for setting in alone)
