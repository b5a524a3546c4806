"""The flags of suffix reach it, and what is shared is only shared when asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspec.drafters import suffix_file
from tests.cli.conftest import Run

PROMPT = ("-p", "the name of the", "-n", "60", "--json")


def result(ran: Any) -> dict[str, Any]:
    assert (ran.code, ran.err) == (0, "")
    parsed: dict[str, Any] = json.loads(ran.out)
    return parsed


def test_every_flag_sets_its_option(generate: Run, tmp_path: Path) -> None:
    options = {
        "n_max": 5,
        "n_min": 1,
        "n_match": 3,
        "factor": 1.5,
        "p_min": 0.25,
        "share": True,
        "max_tokens": 1000,
        "file": str(tmp_path / "requests.bin"),
    }
    flags: list[str] = []
    for option, value in options.items():
        flags += [f"--spec-suffix-{option.replace('_', '-')}", "on" if value is True else str(value)]
    run = result(generate(*PROMPT, "--spec-type", "suffix", *flags))
    assert run["spec"] == {"types": ["suffix"], "options": {"suffix": options}}


def test_past_requests_are_used_only_when_asked(generate: Run, tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    plain = result(generate(*PROMPT))
    shared = ("--spec-type", "suffix", "--spec-suffix-share", "on", "--spec-suffix-file", path)
    runs = [result(generate(*PROMPT, *flags)) for flags in (("--spec-type", "suffix"), shared, shared)]
    assert all(run["tokens"] == plain["tokens"] for run in runs)
    n_accepted = [run["stats"]["n_accepted"] for run in runs]
    assert n_accepted[2] > 30 > n_accepted[1] == n_accepted[0]
    said = [*plain["prompt_tokens"], *plain["tokens"]]
    for request in suffix_file.read(path):
        assert request.tolist() == said[: len(request)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--spec-suffix-n-max", "0"), "Invalid value for --spec-suffix-n-max: n_max must be"),
        (
            ("--spec-suffix-file", "x.bin"),
            "--spec-suffix-file: past requests are only kept with --spec-suffix-share on",
        ),
        (("--spec-suffix-file", "x", "--spec-suffix-share", "off"), "--spec-suffix-file: past requests are only kept"),
        (("--spec-set", "suffix.file=x.bin"), "Invalid value for --spec-set: file is x.bin, but past requests"),
    ],
)
def test_a_wrong_flag_is_named(generate: Run, flags: tuple[str, ...], message: str) -> None:
    for types in (("--spec-type", "suffix"), ()):  # auto has it, too
        assert message in generate("-p", "x", "-n", "1", *types, *flags).usage_error


def test_sharing_may_be_set_in_either_way(generate: Run, tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    result(generate(*PROMPT, "--spec-set", "suffix.share=true", "--spec-suffix-file", path))
    assert suffix_file.read(path)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="takes a folder where nothing can be made")
def test_what_cannot_be_saved_is_an_error_after_all_is_printed(generate: Run) -> None:
    shared = ("--spec-type", "suffix", "--spec-suffix-share", "on", "--spec-suffix-file", "/proc/requests.bin")
    ran = generate(*PROMPT, *shared)
    assert ran.code == 1
    assert json.loads(ran.out)["tokens"]
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")
    assert "/proc/requests.bin" in line
