"""``pyspec bench`` with the zoo's target."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from pyspec.errors import DrafterError
from tests.cli.conftest import Run

QUICK = ("-t", "1", "--no-timing", "--pairs", "1", "-n", "6")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "mine.txt"
    file.write_text("the name of the name of the\n%%\nthe sea and the sea\n", encoding="utf-8")
    return file


def test_reports(run: Run, target_path: Path, prompts: Path, tmp_path: Path) -> None:
    files = {flag: tmp_path / f"report.{flag}" for flag in ("json", "markdown", "svg")}
    ran = run(
        "bench", "-m", target_path, *QUICK, "--workload", prompts, "--check",
        "--spec-type", "suffix:n_match=1:factor=4", "--spec-type", "none", "--json", files["json"],
        "--markdown", files["markdown"], "--plot", files["svg"],
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert "times as fast as plain decoding" in ran.out
    assert "4 same" in ran.out
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    suffix, none = report["figures"]
    assert (suffix["workload"], suffix["setting"], none["setting"]) == ("mine", "suffix:n_match=1:factor=4", "none")
    assert suffix["n_tokens"] == none["n_tokens"] == 12
    assert none["lengths"] == {"0": 12}
    assert suffix["lengths"].keys() - {"0"}  # something was drafted
    assert files["markdown"].read_text(encoding="utf-8").startswith("# ")
    assert files["svg"].read_text(encoding="utf-8").startswith("<svg")


def test_json_on_stdout_is_alone_there(run: Run, target_path: Path, prompts: Path) -> None:
    ran = run(
        "bench", "-m", target_path, *QUICK[:-4], "--workload", prompts, "--check", "--pairs", "0", "-n", "4",
        "--spec-type", "suffix", "-np", "2", "--json", "-",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    assert report["figures"][0]["verdicts"] == {"same": 8, "tie": 0, "different": 0}
    assert report["headline"] == "No speed was measured. Outputs are equal."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--spec-type", "sufix"), "--spec-type"),
        (("--spec-type", "suffix", "--spec-type", "suffix"), "given twice"),
        (("--spec-type", "draft-simple:n_max=x"), "--spec-type"),
        (("--workload", "nothing"), "--workload"),
        (("--pairs", "0"), "--pairs"),
        (("--pairs", "0", "--check", "--suggest"), "--pairs"),
        (("--tie", "1"), "--tie"),
        (("--plot", "ratios.png"), "--plot"),
        (("--json", "/nothing/report.json"), "--json"),
        (("--markdown", "/dev/null"), "is no file"),
        (("--markdown", "-"), "name a file"),
        (("--markdown", "same", "--json", "./same"), "is another report"),
        (("--workload", "mine.txt", "--json", "mine.txt"), "is another report, or what is measured with"),
        (("-n", "100000"), "was trained on"),
        (("-c", "-1"), "--ctx-size"),
    ],
)
def test_wrong_usage(run: Run, target_path: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in run("bench", "-m", target_path, *QUICK, "-md", target_path, *arguments).usage_error


def test_a_report_that_cannot_be_written_takes_no_other_along(
    run: Run, target_path: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspec import files

    write = files.replace_file

    def write_unless_full(path: Path, parts: list[bytes]) -> None:
        if path.suffix == ".md":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, parts)

    monkeypatch.setattr(files, "replace_file", write_unless_full)
    ran = run(
        "bench", "-m", target_path, *QUICK, "--workload", prompts, "--spec-type", "suffix",
        "--json", tmp_path / "a.json", "--markdown", tmp_path / "a.md", "--plot", tmp_path / "a.svg",
    )  # fmt: skip
    assert ran.code == 1
    assert ran.err == f"error: {tmp_path / 'a.md'} cannot be written: {os.strerror(errno.ENOSPC)}\n"
    assert "Measured" in ran.out
    assert {path.name for path in tmp_path.glob("a.*")} == {"a.json", "a.svg"}


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [(KeyboardInterrupt(), 130, ""), (DrafterError("The drafter failed."), 1, "error: The drafter failed.\n")],
    ids=["Ctrl-C", "failure"],
)
def test_what_breaks_it_off_leaves_what_was_measured(
    run: Run,
    target_path: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    code: int,
    said: str,
) -> None:
    from pyspec.bench.engines import EngineRunner

    calls, answer = [], EngineRunner.run

    def run_until(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) > 8:  # 4 inspected, and a pair of two prompts
            raise raised
        return answer(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineRunner, "run", run_until)
    report, again = prompts.with_name("report.json"), ("--pairs", "2", "--spec-type", "suffix")
    ran = run("bench", "-m", target_path, *QUICK, "--workload", prompts, *again, "--json", report)
    assert ran.code == code
    assert ran.err == f"Broken off; this is what was measured until then.\n{said}"
    assert "suffix" in ran.out
    assert [len(each["pairs"]) for each in json.loads(report.read_text(encoding="utf-8"))["ratios"]] == [1]
