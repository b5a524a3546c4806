"""What was remembered of costs counts only if it is whole, and of this machine."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspec.engine.calibration import Remembered
from pyspec.folders import costs_dir
from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import Costs
from pyspec.speculation.curves import Attention

# What is remembered

ATTENTION = Attention(0.25, 0.125)
KEY = {"model": "m", "machine": ["cpu"], "n_cpus": 2}


def learned() -> tuple[Costs, Acceptance]:
    costs, acceptance = Costs({1: 0.5, 4: 0.75}, {"draft-simple": {1: 0.25, 4: 0.5}}, 0.125, ATTENTION), Acceptance()
    for i in range(5):
        acceptance.learn(0, "suffix", i, 12.0, right=i < 4)
    return costs, acceptance


def written(path: Path, **changes: Any) -> Remembered:
    """Write a file of costs, changed as said."""
    file = Remembered(KEY, path)
    file.write(*learned())
    if changes:
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    return file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "new" / "folder" / "costs.json")
    costs, acceptance = learned()
    assert file.read() == {
        "verify": {1: 0.5, 4: 0.75},
        "turn": 0.125,
        "attention": ATTENTION,
        "drafts": {"draft-simple": {1: 0.25, 4: 0.5}},
        "acceptance": acceptance.known(),
    }
    assert costs.to_dict()["verify"] == {1: 0.5, 4: 0.75}


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "7", '"x"', "[" * 100_000, "\ufeff{}", "{}"])
def test_a_file_that_is_none_of_ours_counts_for_nothing(tmp_path: Path, content: str) -> None:
    file = written(tmp_path / "costs")
    (tmp_path / "costs").write_text(content, encoding="utf-8")
    assert file.read() is None
    file.write(*learned())
    assert file.read() is not None


def test_half_a_file_counts_for_nothing(tmp_path: Path) -> None:
    file = written(tmp_path / "costs")
    whole = (tmp_path / "costs").read_bytes()
    for n_bytes in range(0, len(whole), 7):
        (tmp_path / "costs").write_bytes(whole[:n_bytes])
        assert file.read() is None, n_bytes
    (tmp_path / "costs").write_bytes(b"\xff\xfe" + whole)
    assert file.read() is None


DAMAGED: Mapping[str, list[Any]] = {
    "version": [0, 1, "2", None],
    "key": [{**KEY, "n_cpus": 3}, {}, None],
    "verify": [
        *({"1": took} for took in (0, -1.0, None, "x", float("inf"), float("nan"), 10**400)),
        *({count: 1.0} for count in ("0", "-1", "x", "1.5", "9999999")),
        *({"1": took} for took in (1e-300, 1e300, 1.7e308, "1", [1.0])),
        {str(n): 1.0 for n in range(1, 5000)},
        [],
        None,
        "x",
    ],
    "turn": [-1.0, float("nan"), float("inf"), None, "x", {}],
    "attention": [[-1.0, 1.0], [1.0, float("nan")], [1.0, 2.0, 3.0], [None, 1.0], [1e9, 1.0], 1.0, None, "xyz", "12"],
    "drafts": [{"suffix": {"1": -1}}, {"suffix": 1}, [], None],
    "acceptance": [
        None,
        1,
        [1],
        [[]],
        [["suffix", 104, 0, 2.0]],
        [["suffix", 104, 0, 3.0, 2.0]],
        [["suffix", 104, 0, -1.0, 2.0]],
        [["suffix", "x", 1, 1.0, 2.0]],
        [["suffix", 104, None, 1.0, 2.0]],
        [["suffix", float("inf"), 1, 1.0, 2.0]],
        [["suffix", 104, 0, 1.0, float("nan")]],
        [["suffix", 104, 0, 1.0, float("inf")]],
    ],
}
CASES = [(key, value) for key, values in DAMAGED.items() for value in values]


@pytest.mark.parametrize(("key", "value"), CASES)
def test_a_file_with_something_wrong_in_it_counts_for_nothing(tmp_path: Path, key: str, value: object) -> None:
    assert written(tmp_path / "costs", **{key: value}).read() is None


@pytest.mark.parametrize("key", ["version", "key", "verify", "turn", "attention", "drafts", "acceptance"])
def test_a_file_that_lacks_something_counts_for_nothing(tmp_path: Path, key: str) -> None:
    file, path = written(tmp_path / "costs"), tmp_path / "costs"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content[key]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert file.read() is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "costs")
    assert Remembered(KEY, tmp_path / "costs").read() is None


def test_costs_of_another_machine_are_not_ours(tmp_path: Path) -> None:
    written(tmp_path / "costs")
    assert Remembered({**KEY, "n_cpus": 4}, tmp_path / "costs").read() is None
    assert Remembered({"model": "m"}, tmp_path / "costs").read() is None


def test_a_place_that_cannot_be_read_or_written_is_no_error(tmp_path: Path) -> None:
    """A folder, something below a file, a folder that does not let us in, a name that is too long, no place at all."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0)
    try:
        for path in (tmp_path, tmp_path / "file" / "costs", closed / "costs", tmp_path / ("x" * 300), None):
            file = Remembered(KEY, path)
            assert file.read() is None
            file.write(*learned())
            if path is None or os.geteuid():  # nothing is closed to root
                assert file.read() is None
    finally:
        closed.chmod(0o700)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"


def test_a_place_that_was_named_and_is_none_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for named, n_warnings in (("", 0), (str(tmp_path / "file"), 1)):
        caplog.clear()
        monkeypatch.setenv("PYSPEC_COSTS", named)
        Remembered(KEY, tmp_path / "file" / "costs").write(*learned())
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == n_warnings


def test_an_inaccessible_place_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, also for root."""
    file = written(tmp_path / "costs")

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    for method in ("is_file", "read_text"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refuse)
            assert file.read() is None
    assert file.read() is not None


def test_numbers_that_json_lacks_are_not_remembered(tmp_path: Path) -> None:
    file = written(tmp_path / "costs")
    costs, acceptance = learned()
    acceptance.learn(0, "suffix", 0, 12.0, right=True)
    acceptance._all["suffix", 104, 0].n = float("nan")
    file.write(costs, acceptance)
    assert file.read() is not None  # the former ones


def test_writers_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    file = written(tmp_path / "costs")
    broken: list[object] = []

    def write() -> None:
        for _ in range(8):
            file.write(*learned())
            if file.read() is None:
                broken.append(file.path)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken
    assert [path.name for path in tmp_path.iterdir()] == ["costs"]


# Where


def test_the_folder_of_costs(tmp_path: Path) -> None:
    cache = {"PYSPEC_CACHE": str(tmp_path)}
    assert costs_dir(cache) == tmp_path / "costs"
    assert costs_dir({**cache, "PYSPEC_COSTS": ""}) == tmp_path / "costs"
    assert costs_dir({**cache, "PYSPEC_COSTS": "off"}) is None
    assert costs_dir({**cache, "PYSPEC_COSTS": str(tmp_path / "other")}) == tmp_path / "other"
    assert costs_dir({"PYSPEC_COSTS": "here"}) == Path.cwd() / "here"
    assert costs_dir({"PYSPEC_COSTS": "~nobody-of-this-name/costs"}) is None


@pytest.mark.skipif(sys.platform == "win32", reason="it has no folder of this name")
def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        msg = "Could not determine home directory."
        raise RuntimeError(msg)

    monkeypatch.setattr(Path, "home", homeless)
    assert costs_dir({}) is None
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert costs_dir({"PYSPEC_COSTS": "here"}) is None
