"""Traces: what is written can be read, and what contradicts itself is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyspec.engine.result import Result, RunInfo
from pyspec.errors import TraceError
from pyspec.speculation import Candidates, Draft, Finish, Outcome, Proposal
from pyspec.trace import Trace, TraceWriter, read_trace, read_traces, writer
from tests.fakes import HashLogits
from tests.playing import DraftModelSpec, ScriptedSpec, Table
from tests.reference import Request
from tests.scripted import Move
from tests.workplace import generation, workplace

ROUND_KEYS = [
    "type", "i", "seq", "pos", "pending", "drafter", "draft", "draft_probs", "accepted", "emitted", "rule", "rollback",
    "checkpoint_bytes",
    "seconds",
]  # fmt: skip


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is loaded to name it."""
    monkeypatch.setattr(writer, "library_info", lambda: {"llama_cpp": "b0"})


def write(path: Path, *, n_chunks: int | None = None, stops: tuple[bytes, ...] = ()) -> Result:
    """Trace a generation over fakes, all of it or its first chunks."""
    request = Request(
        HashLogits(3, 8), 8, (1, 2, 3), max_tokens=20, stops=stops, pieces={token: b"%d" % token for token in range(8)}
    )
    table = Table([request], [ScriptedSpec((Move(), Move(2, (0,)), Move(3))), DraftModelSpec(HashLogits(4, 8))])
    with TraceWriter(path) as trace, generation(workplace(table), request, observer=trace) as running:
        for i, _chunk in enumerate(running):
            if n_chunks is not None and i + 1 == n_chunks:
                break
    return running.result


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    result = write(path)
    trace = read_trace(path)
    assert trace.emitted == result.tokens
    assert trace.run["prompt_tokens"] == [1, 2, 3]
    assert len(trace.rounds) == result.stats.n_rounds
    assert trace.end is not None
    assert trace.end["finish"] == "length"
    assert trace.end["stats"]["n_emitted"] == 20
    assert trace.end["stats"]["drafters"]["scripted-0"]["n_drafts"] > 0


def test_the_lines_have_the_keys_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    run, *rounds, end = lines_of(path)
    assert list(run) == ["type", "version", "model", "draft_model", "spec", "sampling", "prompt_tokens", "library"]
    assert (run["type"], run["version"]) == ("run", 1)
    assert list(end) == ["type", "seq", "finish", "stats"]
    for i, line in enumerate(rounds):
        assert list(line) == ROUND_KEYS
        assert list(line["seconds"]) == ["draft", "verify", "accept", "rollback", "total"]
        assert (line["type"], line["i"], line["seq"], line["rule"]) == ("round", i, 0, "match")
        assert (line["drafter"] is None) == (line["draft"] == [])
        assert line["draft_probs"] is None
        assert line["rollback"] == ("trim" if line["accepted"] < len(line["draft"]) else "none")


@pytest.mark.parametrize(("n_chunks", "finish"), [(1, "cancelled"), (4, "cancelled"), (None, "length")])
def test_the_last_line_says_why_it_ended(tmp_path: Path, n_chunks: int | None, finish: str) -> None:
    result = write(tmp_path / "t", n_chunks=n_chunks)
    trace = read_trace(tmp_path / "t")
    assert trace.end is not None
    assert trace.end["finish"] == finish
    assert trace.emitted == result.tokens


def test_a_result_without_a_finish_is_an_error(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t") as trace:
        trace.begin(RunInfo("m", None, {}, {}, [1]))
        trace.end(Result())
        trace.end(Result(finish=Finish.STOP))
    assert [line["finish"] for line in lines_of(tmp_path / "t")[1:]] == ["error", "stop"]


def test_draft_probabilities_are_written() -> None:
    candidates = Candidates(np.array([5, 7], np.int32), np.array([0.75, 0.25]))
    proposal = Proposal(Draft((5,), (candidates,)), "x")
    outcome = Outcome(0, 3, 1, proposal, 0, (6,), None, "match", "trim", (), {"total": 0.1234567891234})
    line = writer.round_line(4, outcome)
    assert (line["i"], line["draft_probs"], line["seconds"]) == (4, [[[5, 0.75], [7, 0.25]]], {"total": 0.123456789})


def test_each_round_is_on_disk_when_it_happened(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=5)
    trace = TraceWriter(path)
    running = generation(workplace(Table([request])), request, observer=trace)
    for n_rounds in range(1, 4):
        next(running)
        assert len(read_trace(path).rounds) == n_rounds
    assert read_trace(path).end is None
    running.close()
    trace.close()
    trace.close()


def test_a_writer_numbers_each_generation_from_zero(tmp_path: Path) -> None:
    request = Request(HashLogits(3, 8), 8, (1,), max_tokens=2)
    with TraceWriter(tmp_path / "t") as trace:
        place = workplace(Table([request]))
        for _ in range(2):
            list(generation(place, request, observer=trace))
    assert [line.get("i") for line in lines_of(tmp_path / "t")] == [None, 0, 1, None] * 2


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"missing.* cannot be written"):
        TraceWriter(tmp_path / "missing" / "t")


def test_a_full_disk_is_a_trace_error(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "t")

    class Full:
        name = "t"

        def write(self, _text: str) -> None:
            raise OSError(28, "No space left on device")

    trace.close()
    trace._file = Full()  # type: ignore[assignment]
    with pytest.raises(TraceError, match="t cannot be written: No space left on device"):
        trace.begin(RunInfo("m", None, {}, {}, [1]))


# Reading what is not right


def broken(tmp_path: Path, change: dict[str, Any], line: int) -> Path:
    """Return a trace one of whose lines was changed."""
    path = tmp_path / "trace.jsonl"
    write(path)
    lines = lines_of(path)
    lines[line - 1].update(change)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="missing cannot be read"):
        read_trace(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="binary is not a trace"):
        read_trace(tmp_path / "binary")


@pytest.mark.parametrize("text", ["", '{"type":"end","seq":0,"finish":"eog","stats":{}}\n'])
def test_a_trace_begins_with_a_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match="does not begin with a run line"):
        read_trace(tmp_path / "t")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "5",
        "null",
        "[]",
        '"run"',
        "{}",
        '{"type":"round"}',
        '{"type":"other"}',
        '{"type":[]}',
        "[" * 100_000,
        "1" * 5_000,
    ],
)
def test_a_line_that_is_none_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[2] = line
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"Line 3 "):
        read_trace(path)


@pytest.mark.parametrize("key", [key for key in ROUND_KEYS if key not in ("type", "checkpoint_bytes")])
def test_every_key_is_needed(tmp_path: Path, key: str) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    lines = lines_of(path)
    del lines[3][key]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    with pytest.raises(TraceError, match=r"Line 4 .* all its keys"):
        read_trace(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has version 2; readable is version 1"):
        read_trace(broken(tmp_path, {"version": 2}, 1))


@pytest.mark.parametrize(
    "change",
    [
        {"i": 7},
        {"pos": 1},
        {"pending": 7},
        {"accepted": 5},
        {"accepted": -1, "emitted": []},
        {"accepted": "2"},
        {"accepted": 0, "emitted": []},
        {"accepted": 1, "emitted": [7, 7], "draft": [6]},
        {"emitted": 5},
        {"emitted": None},
        {"draft": None, "accepted": 1, "emitted": [1, 2]},
        {"pending": [[]]},
        {"type": "end", "finish": "eog", "stats": {}},
    ],
)
def test_a_round_that_does_not_follow_is_named_by_its_number(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=r"Line 4 of the trace "):
        read_trace(broken(tmp_path, change, 4))


@pytest.mark.parametrize("prompt_tokens", [[], None, 5, "ab", {}])
def test_a_run_needs_a_prompt(tmp_path: Path, prompt_tokens: object) -> None:
    with pytest.raises(TraceError, match="Line 1 "):
        read_trace(broken(tmp_path, {"prompt_tokens": prompt_tokens}, 1))


def test_a_run_that_was_cut_off_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    lines = path.read_text(encoding="utf-8").splitlines()[:4]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    trace: Trace = read_trace(path)
    assert (len(trace.rounds), trace.end) == (3, None)


@pytest.mark.parametrize("n_left", [1, 20, -1])
def test_a_line_that_was_not_finished_does_not_count(tmp_path: Path, n_left: int) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    lines = path.read_text(encoding="utf-8").splitlines()[:5]
    path.write_text("\n".join([*lines[:4], lines[4][:n_left]]), encoding="utf-8")
    trace: Trace = read_trace(path)
    assert (len(trace.rounds), trace.end) == (3, None)


def write_runs(path: Path, *n_tokens: int) -> None:
    """Trace some generations, one after the other."""
    with TraceWriter(path) as trace:
        for n in n_tokens:
            request = Request(HashLogits(3, 8), 8, (1, 2), max_tokens=n)
            list(generation(workplace(Table([request])), request, observer=trace))


def test_several_runs_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_runs(path, 2, 1, 3)
    assert [len(run.emitted) for run in read_traces(path)] == [2, 1, 3]
    assert all(run.end is not None for run in read_traces(path))
    with pytest.raises(TraceError, match="of 3 runs; read_traces"):
        read_trace(path)


def test_runs_that_were_broken_off_among_others(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_runs(path, 2, 3)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    del lines[3]  # the first one's end
    path.write_text("".join(lines), encoding="utf-8")
    assert [run.end is None for run in read_traces(path)] == [True, False]


@pytest.mark.parametrize(("number", "wrong"), [(2, 3), (3, 4), (4, 4), (6, 7), (7, 8), (8, 8)])
def test_a_line_in_the_wrong_place_is_named_by_its_number(tmp_path: Path, number: int, wrong: int) -> None:
    """Of two runs of two rounds each; a line's copy follows nothing, and nothing follows an end."""
    path = tmp_path / "t"
    write_runs(path, 2, 2)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.insert(number, lines[number - 1])
    path.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(TraceError, match=f"Line {wrong} of the trace"):
        read_traces(path)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400, "NaN", "Infinity", '"1"', "null"])
@pytest.mark.parametrize("key", ["tokens", "seconds", "plain_seconds"])
def test_what_was_expected_are_numbers(tmp_path: Path, key: str, number: str) -> None:
    expected = {"drafter": None, "length": 0, "tokens": 1, "seconds": 1, "plain_seconds": 1, "explores": False}
    path = broken(tmp_path, {"expected": {**expected, key: "ODD"}}, 4)
    path.write_text(path.read_text(encoding="utf-8").replace('"ODD"', number), encoding="utf-8")
    with pytest.raises(TraceError, match=r"Line 4 .* seconds or expectations"):
        read_trace(path)


def test_runs_beside_each_other_need_writers_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with TraceWriter(path) as trace:
        first, second = (Request(HashLogits(3, 8), 8, (1, 2), max_tokens=3) for _ in range(2))
        running = generation(workplace(Table([first])), first, observer=trace)
        next(running)
        with pytest.raises(TraceError, match="has not ended; use a writer for each"):
            list(generation(workplace(Table([second])), second, observer=trace))
        list(running)
    assert len(read_trace(path).emitted) == 3
