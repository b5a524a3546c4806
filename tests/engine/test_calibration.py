"""What decodes and drafts cost is measured within a limit, and what was remembered counts only if it is whole."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine.calibration import MANY_ROWS, ROWS, Remembered, measured_drafts, measured_rows
from pyspec.folders import costs_dir
from pyspec.llama.batch import Batch
from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import Costs
from pyspec.speculation.draft import Draft, Needs
from tests.fakes import FakeRows, FakeTarget, Fuse, HashLogits, InjectedError
from tests.scripted import make_draft_simple
from tests.simulation import Clock, Process, SimulatedDrafter, SimulatedModel

LOGITS = HashLogits(3, 8, order=2)
GOOD = Process(lambda _p: 1.0)


@dataclass
class TimedTarget(FakeTarget):
    """A target whose decodes take their time.

    Attributes:
        clock: What they add to.
        takes: Rows, and how many decodes there were before, to seconds.
    """

    clock: Clock = field(default_factory=Clock)
    takes: Callable[[int, int], float] = lambda n, _i: 0.001 * n

    def decode(self, batch: Batch) -> FakeRows:
        self.clock.now += self.takes(len(batch), self.n_decodes)
        return super().decode(batch)


def timed(takes: Callable[[int, int], float], size: int = 64, **sizes: Any) -> TimedTarget:
    given_sizes = {"n_ctx_seq": size, "n_batch": size, "n_ubatch": size, "n_outputs_max": size, **sizes}
    return TimedTarget(LOGITS, 8, takes=takes, **given_sizes)


# Rows


def test_of_several_passes_the_least_counts() -> None:
    n_rows = len(ROWS) + 1  # one row twice
    slow = {0: 3.0, 1: 1.0, 2: 2.0}  # by pass; what else runs only makes it longer
    target = timed(lambda n, i: 1e-5 * (10 + n) * slow.get((i - 1) // n_rows, 1.0))
    rows, turn = measured_rows(target, clock=target.clock)
    assert rows == pytest.approx({n: 1e-5 * (10 + n) for n in ROWS})
    assert turn == pytest.approx(0.0, abs=1e-9)
    assert target.n_decodes == 1 + 3 * n_rows
    assert all(decoded.n_outputs == len(decoded.tokens) for decoded in target.decodes)


def test_tokens_differ_so_that_experts_do() -> None:
    target = timed(lambda _n, _i: 1e-5)
    measured_rows(target, clock=target.clock)
    assert all(len(set(decoded.tokens)) == min(len(decoded.tokens), target.n_vocab) for decoded in target.decodes)


def test_the_first_decode_does_not_count_however_slow_it_is() -> None:
    target = timed(lambda n, i: 1e-5 * n if i else 30.0)
    assert measured_rows(target, clock=target.clock)[0] == pytest.approx({n: 1e-5 * n for n in ROWS})


def test_what_a_turn_costs_is_measured_and_taken_off() -> None:
    last: list[int] = []

    def takes(n: int, _i: int) -> float:
        turned = bool(last) and last[-1] != n
        last.append(n)
        return 1e-5 * (10 + n) + 3e-5 * turned

    target = timed(takes)
    rows, turn = measured_rows(target, clock=target.clock)
    assert turn == pytest.approx(3e-5)
    assert rows == pytest.approx({n: 1e-5 * (10 + n) for n in ROWS})


@given(st.floats(1e-5, 0.5), st.floats(0.0, 1.0), st.floats(0.01, 2.0))
def test_nothing_begins_that_would_pass_the_limit(one: float, slope: float, limit: float) -> None:
    """The first decodes of one row are always made: without them nothing is known."""
    target = timed(lambda n, _i: one * (1 + slope * (n - 1)))
    found, _turn = measured_rows(target, limit=limit, clock=target.clock)
    two = one * (1 + slope)
    assert target.clock.now <= two + max(one, limit) + one + 1e-9  # a single row is decoded twice
    assert found[1] == pytest.approx(one)


def test_where_time_is_short_what_matters_most_is_measured() -> None:
    target = timed(lambda n, _i: 0.1 * n)
    assert list(measured_rows(target, limit=0.61, clock=target.clock)[0]) == [1, 4]
    assert target.n_decodes == 1 + 3


@pytest.mark.parametrize("size", ["n_ctx_seq", "n_batch", "n_ubatch", "n_outputs_max"])
@pytest.mark.parametrize("limit", [1, 3, 9])
def test_no_more_rows_than_any_size_allows(size: str, limit: int) -> None:
    target = timed(lambda _n, _i: 1e-5, **{size: limit})
    assert sorted(measured_rows(target, 8, clock=target.clock)[0]) == [n for n in sorted(ROWS) if n <= limit]


@pytest.mark.parametrize(("n_slots", "most"), [(1, 16), (3, 16), (4, 32), (7, 32), (8, 64), (64, 64)])
def test_many_rows_are_for_many_slots(n_slots: int, most: int) -> None:
    target = timed(lambda _n, _i: 1e-5, n_seq_max=n_slots)
    found, _turn = measured_rows(target, n_slots, clock=target.clock)
    assert sorted(found) == [n for n in sorted((*ROWS, *MANY_ROWS)) if n <= most]


def test_memory_is_empty_afterwards() -> None:
    target = timed(lambda _n, _i: 1e-5)
    measured_rows(target, clock=target.clock)
    assert target.memory.length(0) == 0


@pytest.mark.parametrize("point", ["decode", "half-decoded", "decoded"])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_memory_is_empty_when_a_decode_fails(point: str, at: int) -> None:
    target = timed(lambda _n, _i: 1e-5, fuse=Fuse(point, at))
    with pytest.raises(InjectedError):
        measured_rows(target, clock=target.clock)
    assert target.memory.length(0) == 0


# Drafts


class Heard(SimulatedModel):
    """A drafter with a model that keeps what it was told, and may fail or be slow at first."""

    first = 0.0
    fails = False
    shorter = 0

    def __init__(self, clock: Clock, **settings: Any) -> None:
        super().__init__("heard", GOOD, clock, **{"fixed": 0.001, "step": 0.002, **settings})
        self.calls: list[Any] = []

    def begin(self, seq_id: int, tokens: Any) -> None:
        self.calls.append(("begin", seq_id, len(tokens)))
        super().begin(seq_id, tokens)

    def draft(self, requests: Any) -> list[Draft]:
        self.calls.append("draft")
        if self.fails:
            raise ZeroDivisionError
        if not self.n_calls:
            self.clock.now += self.first
        return [draft.cut(len(draft.tokens) - self.shorter) for draft in super().draft(requests)]

    def discard(self, seq_id: int) -> None:
        self.calls.append(("discard", seq_id))


def test_drafts_are_measured_and_discarded() -> None:
    drafter = Heard(Clock())
    drafter.first = 20.0  # the first one reads the weights
    assert measured_drafts(drafter, clock=drafter.clock) == pytest.approx({1: 0.003, 4: 0.009})
    one = ["draft", ("discard", 0)]
    assert drafter.calls == [("begin", 0, 4), *one, *one, *one, ("begin", 0, 0)]


def test_long_drafts_that_would_take_too_long_are_not_made() -> None:
    drafter = Heard(Clock(), step=0.2)
    assert measured_drafts(drafter, clock=drafter.clock) == pytest.approx({1: 0.201})
    assert measured_drafts(drafter, clock=drafter.clock, limit=10.0) == pytest.approx({1: 0.201, 4: 0.801})


@pytest.mark.parametrize(("n_max", "shorter", "lengths"), [(2, 0, [1, 2]), (8, 1, [3]), (8, 4, [])])
def test_what_counts_is_the_length_of_the_draft(n_max: int, shorter: int, lengths: list[int]) -> None:
    drafter = Heard(Clock(), n_max=n_max)
    drafter.shorter = shorter
    assert list(measured_drafts(drafter, clock=drafter.clock)) == lengths


def test_a_drafter_that_fails_is_told_that_nothing_is_there() -> None:
    drafter = Heard(Clock())
    drafter.fails = True
    with pytest.raises(ZeroDivisionError):
        measured_drafts(drafter, clock=drafter.clock)
    assert drafter.calls[-1] == ("begin", 0, 0)


def test_only_drafters_with_a_model_of_their_own_are_measured() -> None:
    clock = Clock()
    assert measured_drafts(SimulatedDrafter("lookup", GOOD, clock), clock=clock) == {}
    assert measured_drafts(Heard(clock, needs=Needs.LAYER_INPUTS), clock=clock) == {}
    assert measured_drafts(Heard(clock, n_max=0), clock=clock) == {}
    assert clock.now == 0.0


def test_the_memory_of_a_draft_model_is_empty_afterwards() -> None:
    drafter, draft_target = make_draft_simple(FakeTarget(LOGITS, 8), LOGITS)
    assert list(measured_drafts(drafter)) == [1, 3]
    assert draft_target.memory.length(0) == 0
    assert draft_target.n_decodes > 0


# What is remembered

KEY = {"model": "m", "machine": ["cpu"], "n_cpus": 2}


def learned() -> tuple[Costs, Acceptance]:
    costs, acceptance = Costs({1: 0.5, 4: 0.75}, {"draft-simple": {1: 0.25, 4: 0.5}}, 0.125), Acceptance()
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
        *({count: 1.0} for count in ("0", "-1", "x", "1.5")),
        [],
        None,
        "x",
    ],
    "turn": [-1.0, float("nan"), float("inf"), None, "x", {}],
    "drafts": [{"suffix": {"1": -1}}, {"suffix": 1}, [], None],
    "acceptance": [
        None,
        1,
        [1],
        [[]],
        [["suffix", 104, 1, 2.0]],
        [["suffix", 104, 1, 3.0, 2.0]],
        [["suffix", 104, 1, -1.0, 2.0]],
        [["suffix", "x", 1, 1.0, 2.0]],
        [["suffix", 104, None, 1.0, 2.0]],
        [["suffix", float("inf"), 1, 1.0, 2.0]],
        [["suffix", 104, 1, 1.0, float("nan")]],
        [["suffix", 104, 1, 1.0, float("inf")]],
    ],
}
CASES = [(key, value) for key, values in DAMAGED.items() for value in values]


@pytest.mark.parametrize(("key", "value"), CASES)
def test_a_file_with_something_wrong_in_it_counts_for_nothing(tmp_path: Path, key: str, value: object) -> None:
    assert written(tmp_path / "costs", **{key: value}).read() is None


@pytest.mark.parametrize("key", ["version", "key", "verify", "turn", "drafts", "acceptance"])
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
    acceptance._all["suffix", 104, 1].n = float("nan")
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
