from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from pyspec.bench import Plan, Workload, parse_setting
from pyspec.bench.plotting import ratio_chart
from pyspec.bench.reporting import HEADER, Report
from pyspec.bench.session import Session
from tests.bench.fake_lab import RIVAL, RIVAL_OF, FakeLab, Script

WORKLOADS = [Workload("one", ("a",)), Workload("<two>", ("b", "c"))]
SETTINGS = [parse_setting("suffix"), parse_setting("draft-simple:n_max=7")]
GAINS = Script((0.5,), n_drafted=1, n_accepted=1)
SVG = "{http://www.w3.org/2000/svg}"


def report(suffix: Script, *, tie: float | None = None, curve: tuple[float, ...] = (), n_pairs: int = 3) -> Report:
    slower = Script((2.0,))
    lab = FakeLab({"suffix": suffix, "draft-simple:n_max=7": slower})
    session = Session(lab, WORKLOADS, Plan(n_tokens=5, n_pairs=n_pairs, tie=tie))
    session.run(SETTINGS)
    return Report({"model": "a|b"}, session.comparisons, SETTINGS, curve=curve, piece=lab.piece)


def rival(prompt: str) -> list[int]:
    return [1, 2, RIVAL if prompt == "c" else RIVAL_OF, 4, 1]


def test_the_headline_says_what_to_use() -> None:
    head = report(GAINS).headline()
    assert head == (
        "suffix is 2.00 times as fast as plain decoding over all workloads (2.00 on <two>, 2.00 on one)."
        " Outputs are equal."
    )


def test_a_time_that_nothing_explains_was_disturbed() -> None:
    """Nothing was drafted, and yet it took half the time."""
    head = report(Script((0.5,)), curve=(1.0, 1.25)).headline()
    assert "SOMETHING DISTURBED IT (suffix on one: 2.00, expected 1.00)" in head
    assert head.endswith("The ceiling here is 1.60 (2 rows at most).")


@pytest.mark.parametrize(("seconds", "disturbed"), [(0.2, True), (0.4, False)])
def test_no_draft_makes_a_round_faster_than_a_plain_one(seconds: float, disturbed: bool) -> None:  # noqa: FBT001 - a case
    """Rounds of two tokens and a half: five times as fast cannot be their merit, whatever decodes cost."""
    head = report(Script((seconds,), n_drafted=1, n_accepted=1)).headline()
    assert ("SOMETHING DISTURBED IT (suffix on one: 5.00, with 2.50 tokens per round)" in head) is disturbed


def test_the_headline_says_to_turn_it_off() -> None:
    head = report(Script((1.25,))).headline()
    assert head.startswith(
        "Leave speculation off: at best, suffix is 0.80 times as fast as plain decoding by noise, or by"
    )
    assert report(Script((1.0,))).headline().startswith("Leave speculation off")


@pytest.mark.parametrize("n_drafted", [0, 1])
def test_without_an_accepted_draft_a_gain_is_noise(n_drafted: int) -> None:
    lucky = report(Script((0.5,), n_drafted=n_drafted))
    lucky.suggests = True
    assert lucky.headline().startswith(
        "Leave speculation off: at best, suffix is 2.00 times as fast as plain decoding by noise alone "
        "(no draft of it was accepted) over all workloads (2.00 on <two>, 2.00 on one)."
    )
    assert lucky.suggestion() == ["--spec-type", "none"]


def test_the_noise_is_of_the_setting_that_is_named() -> None:
    settings = [parse_setting("none"), parse_setting("auto")]
    lab = FakeLab({"none": Script((0.9,)), "auto": Script((1.25,), n_drafted=2, n_accepted=1)})
    session = Session(lab, WORKLOADS, Plan(n_tokens=5, n_pairs=3))
    session.run(settings)
    head = Report({}, session.comparisons, settings).headline()
    assert head.startswith("Leave speculation off: at best, auto is 0.80 times as fast as plain decoding over all")
    assert "noise" not in head


def test_what_remembers_answers_is_warned_of() -> None:
    settings = [parse_setting("suffix:share=true"), parse_setting("ngram-mod:share=false")]
    lab = FakeLab({"suffix:share=true": GAINS})
    session = Session(lab, WORKLOADS, Plan(n_tokens=5, n_pairs=3))
    session.run(settings)
    head = Report({}, session.comparisons, settings).headline()
    assert " suffix:share=true remembers its earlier answers, so its ratio says nothing of new prompts." in head


def test_luck_does_not_hide_what_gains() -> None:
    lab = FakeLab({"suffix": Script((0.5,)), "draft-simple:n_max=7": Script((0.625,), n_drafted=1, n_accepted=1)})
    session = Session(lab, WORKLOADS, Plan(n_tokens=5, n_pairs=3))
    session.run(SETTINGS)
    assert Report({}, session.comparisons, SETTINGS).headline().startswith("draft-simple:n_max=7 is 1.60 times as fast")


def test_the_headline_names_auto_too() -> None:
    settings = [parse_setting("suffix"), parse_setting("auto")]
    lab = FakeLab({"suffix": GAINS, "auto": Script((0.625,), n_drafted=1, n_accepted=1)})
    session = Session(lab, WORKLOADS, Plan(n_tokens=5, n_pairs=3))
    session.run(settings)
    head = Report({}, session.comparisons, settings).headline()
    assert "suffix is 2.00 times" in head
    assert ", auto 1.60 times." in head


def test_what_was_broken_off_says_what_it_lacks() -> None:
    made = report(GAINS)
    made.comparisons = [each for each in made.comparisons if each.workload == "one"]
    only = Report({}, made.comparisons[:1], SETTINGS, interrupted=True, workloads=["one", "<two>"])
    assert only.headline().startswith("So far: suffix is 2.00 times as fast")
    assert only.headline().endswith(" draft-simple:n_max=7, suffix on <two> were not measured.")


def test_only_what_was_measured_is_counted_among_the_pairs() -> None:
    settings = [*SETTINGS, parse_setting("auto")]
    session = Session(FakeLab({"suffix": GAINS}), WORKLOADS, Plan(n_tokens=5, n_pairs=2))
    session.run(settings)
    session.comparisons[-1].pairs.clear()
    head = Report({}, session.comparisons, settings, interrupted=True, workloads=["one", "<two>"]).headline()
    assert "That is from 2 pairs only" in head


def test_plain_decoding_beside_itself_is_noise() -> None:
    settings = [parse_setting("none")]
    session = Session(FakeLab({"none": Script((0.5,))}), WORKLOADS, Plan(n_tokens=5, n_pairs=3))
    session.run(settings)
    assert Report({}, session.comparisons, settings).headline().startswith("Plain decoding beside itself: 2.00 times")


@pytest.mark.parametrize(("n_pairs", "words"), [(1, "from 1 pair only"), (2, "from 2 pairs only"), (3, "")])
def test_a_few_pairs_may_be_noise(n_pairs: int, words: str) -> None:
    head = report(GAINS, n_pairs=n_pairs).headline()
    assert ("noise" in head) is (words != "")
    assert words in head


def test_what_was_not_compared_is_not_called_equal() -> None:
    made = report(Script(answer=rival), n_pairs=0)
    assert made.headline() == "No speed was measured. No outputs were compared."
    for row in made.rows():
        cells = dict(zip(HEADER, row, strict=True))
        assert (cells["outputs"], cells["rounds"], cells["ratio"]) == ("-", "-", "-")


def test_differences_are_counted_and_explained() -> None:
    unchecked = report(Script(answer=rival))
    assert "equal in 9 of 12 pairs; --check" in unchecked.headline()
    assert (unchecked.has_difference, unchecked.differences) == (False, [])
    tied = report(Script(answer=rival), tie=0.75)
    assert "equal but for 4 ties." in tied.headline()  # in the inspected run and in each pair
    assert not tied.has_difference
    different = report(Script(answer=rival), tie=0.25)
    assert "OUTPUTS DIFFER" in different.headline()
    assert different.has_difference
    (line,) = different.differences
    for words in ("<two>, prompt 2, suffix", "token 2", "0.5000", "'<3>' and '<99>'", ", 4 times"):
        assert words in line


def test_rows_fit_the_header() -> None:
    rows = report(Script((0.5,), n_drafted=2, n_accepted=1)).rows()
    assert len(rows) == 4
    assert {len(row) for row in rows} == {len(HEADER)}
    cells = dict(zip(HEADER, rows[0], strict=True))
    assert (cells["plain t/s"], cells["t/s"], cells["ratio"]) == ("1.0", "2.0", "2.00")
    assert (cells["accepted"], cells["draft/verify/python"], cells["outputs"]) == ("50%", "25%/50%/25%", "equal")


def test_json_has_everything() -> None:
    made = report(Script((0.5,)), tie=0.1, curve=(1.0, 1.5))
    parsed = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert parsed["headline"] == made.headline()
    assert parsed["overall"]["suffix"] == 2.0
    assert parsed["figures"][0]["ratio"] == {"median": 2.0, "low": 2.0, "high": 2.0, "n": 3}
    assert parsed["ratios"][0] == {"workload": "one", "setting": "suffix", "pairs": [2.0, 2.0, 2.0]}
    assert (parsed["suggestion"], parsed["interrupted"]) == (None, False)


def test_markdown_keeps_its_tables() -> None:
    page = report(Script((0.5,), n_drafted=2, n_accepted=1), curve=(1.0, 1.5)).markdown()
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert f"| {' | '.join(HEADER)} |" in tables
    assert r"| model | a\|b |" in tables
    assert "## Accepted by position in the draft" in page


def test_the_chart_has_a_bar_per_ratio() -> None:
    made = report(GAINS)
    drawn = ET.fromstring(ratio_chart(made.figures, "a & b"))  # noqa: S314 - our own
    bars = [each for each in drawn.iter(f"{SVG}rect") if each.get("width") == "22"]
    heights = sorted(float(each.get("height", "0")) for each in bars)
    assert len(heights) == 4
    assert heights[3] == pytest.approx(4 * heights[0], rel=0.01)  # ratios 0.5 and 2
    texts = {each.text for each in drawn.iter(f"{SVG}text")}
    assert {"a & b", "<two>", "suffix", "draft-simple:n_max=7", "1"} <= texts


def test_a_chart_of_nothing_is_a_chart() -> None:
    ET.fromstring(ratio_chart([], "nothing"))  # noqa: S314
    empty = Report({}, [], SETTINGS)
    assert empty.headline() == "No speed was measured."
    assert empty.suggestion() is None
