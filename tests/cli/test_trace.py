"""``pyspec trace explain`` on traces as ``pyspec generate`` writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pyspec.trace import read_trace
from tests.cli.conftest import Run

REPEATING = [1, *([60, 75, 112, 264, 300, 91, 130] * 4)]


def traced(generate: Run, tmp_path: Path, *arguments: object, n: int = 24) -> Path:
    (tmp_path / "tokens.json").write_text(json.dumps(REPEATING), encoding="utf-8")
    path = tmp_path / "run.jsonl"
    ran = generate("--prompt-tokens", tmp_path / "tokens.json", "-n", n, "--trace", path, *arguments)
    assert ran.code == 0, ran.err
    return path


def test_a_run_with_auto(generate: Run, run: Run, tmp_path: Path, draft: tuple[object, ...]) -> None:
    path = traced(generate, tmp_path, *draft)
    trace = read_trace(path)
    assert trace.run["spec"]["types"][0] == "auto"
    expected = [line for line in trace.rounds if "expected" in line]
    assert expected
    assert all(line["expected"]["length"] == len(line["draft"]) for line in expected)
    ran = run("trace", "explain", path)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert sum("expected" in each for each in lines[: len(trace.rounds)]) == len(expected)
    after = trace.rounds[1:]
    n_drafted, n_accepted = sum(len(each["draft"]) for each in after), sum(each["accepted"] for each in after)
    assert f"{n_accepted} of {n_drafted} tokens accepted" in ran.out
    assert re.search(r"^expected .* s, \d+\.\d\d times plain decoding$", ran.out, re.MULTILINE)


def test_the_same_as_json(generate: Run, run: Run, tmp_path: Path) -> None:
    path = traced(generate, tmp_path)
    report: dict[str, Any] = json.loads(run("trace", "explain", path, "--json").out)
    trace = read_trace(path)
    assert report["rounds"] == trace.rounds
    assert report["totals"]["tokens"] == len(trace.emitted) - len(trace.rounds[0]["emitted"])
    assert json.loads(run("trace", "explain", path, "--json", "--no-rounds").out) == {**report, "rounds": []}


def test_the_sum_alone(generate: Run, run: Run, tmp_path: Path) -> None:
    path = traced(generate, tmp_path)
    whole, lines = (run("trace", "explain", path, *flags).out.splitlines() for flags in ((), ("--no-rounds",)))
    assert whole[-len(lines) :] == lines
    assert len(whole) - len(lines) == len(read_trace(path).rounds)


@pytest.mark.parametrize("types", ["none", "ngram-simple"])
def test_a_run_with_drafters_by_name_says_what_came(generate: Run, run: Run, tmp_path: Path, types: str) -> None:
    options = ("--spec-ngram-simple-size-n", 2, "--spec-ngram-simple-size-m", 3) if types != "none" else ()
    ran = run("trace", "explain", traced(generate, tmp_path, "--spec-type", types, *options))
    assert (ran.code, ran.err) == (0, "")
    assert "expected" not in ran.out
    assert ("by ngram-simple" in ran.out) is (types != "none")
    assert "measured 1.00 times plain decoding" in ran.out or types != "none"


def test_a_run_that_was_killed_can_be_explained(generate: Run, run: Run, tmp_path: Path) -> None:
    path = traced(generate, tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:2]), encoding="utf-8")
    assert "0 tokens in 0 rounds after the first" in run("trace", "explain", path).out
    path.write_text(lines[0], encoding="utf-8")
    assert run("trace", "explain", path).code == 0


def damaged(lines: list[str], how: str) -> str:
    """Return a trace that is not one any more."""
    if how == "empty":
        return ""
    if how == "half a line":
        return "".join([*lines[:2], lines[2][:-20], "\n", *lines[3:]])
    if how == "a line is missing":
        return "".join([*lines[:2], *lines[3:]])
    changes: dict[str, Any] = {
        "no time": {"seconds": {"total": "long"}},
        "no expectation": {"expected": {"tokens": 1.0}},
        "expects text": {"expected": {**json.loads(lines[2])["expected"], "tokens": "many"}},
        "expects a list": {"expected": [1]},
    }
    changed = json.dumps({**json.loads(lines[2]), **changes[how]}) + "\n"
    return "".join([*lines[:2], changed, *lines[3:]])


@pytest.mark.parametrize(
    "how",
    ["empty", "half a line", "a line is missing", "no time", "no expectation", "expects text", "expects a list"],
)
def test_a_damaged_trace_is_an_error(generate: Run, run: Run, tmp_path: Path, how: str) -> None:
    path = traced(generate, tmp_path, n=6)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text(damaged(lines, how), encoding="utf-8")
    ran = run("trace", "explain", path)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1


def test_what_there_is_of_a_run_that_was_killed_is_explained(generate: Run, run: Run, tmp_path: Path) -> None:
    path = traced(generate, tmp_path, n=6)
    whole = run("trace", "explain", path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text[:-20], encoding="utf-8")
    ran = run("trace", "explain", path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == whole.out + "the run was broken off: its trace has no end line\n"


def test_a_file_that_is_not_there_is_an_error(run: Run, tmp_path: Path) -> None:
    ran = run("trace", "explain", tmp_path / "missing")
    assert (ran.code, ran.out) == (1, "")
    assert "missing cannot be read" in ran.err
    assert run("trace", "explain", tmp_path).code == 2


def test_several_runs_are_explained_in_turn(generate: Run, run: Run, tmp_path: Path) -> None:
    path = traced(generate, tmp_path)
    path.write_text(path.read_text(encoding="utf-8") * 2, encoding="utf-8")
    out = run("trace", "explain", path, "--no-rounds").out
    first, second = out.removeprefix("run 1 of 2\n").split("run 2 of 2\n")
    assert first == second
    report: dict[str, Any] = json.loads(run("trace", "explain", path, "--json").out)
    assert report["runs"][0] == report["runs"][1]
