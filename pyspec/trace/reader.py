"""Reading and checking traces."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspec.errors import TraceError
from pyspec.files import read_whole, require_path
from pyspec.trace.writer import VERSION

_KEYS: dict[str, dict[str, type]] = {
    "run": {
        "type": str,
        "version": int,
        "model": str,
        "draft_model": object,
        "spec": dict,
        "sampling": dict,
        "prompt_tokens": list,
        "library": dict,
    },
    "round": {
        "type": str,
        "i": int,
        "seq": int,
        "pos": int,
        "pending": int,
        "drafter": object,
        "draft": list,
        "draft_probs": object,
        "accepted": int,
        "emitted": list,
        "rule": str,
        "rollback": str,
        "seconds": dict,
    },
    "end": {"type": str, "seq": int, "finish": str, "stats": dict},
}
_EXPECTED = {"drafter": (str, type(None)), "length": int}
_EXPECTED_NUMBERS = ("tokens", "seconds", "plain_seconds")
_MOST = 1e12  # seconds or tokens; an integer of JSON may be larger than any float


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a run that was read and checked.

    Attributes:
        run: The first line.
        rounds: The round lines.
        end: The last line, None when the run was cut off.
    """

    run: dict[str, Any]
    rounds: list[dict[str, Any]]
    end: dict[str, Any] | None

    @property
    def emitted(self) -> list[int]:
        """All emitted tokens."""
        return [token for line in self.rounds for token in line["emitted"]]


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read the trace of one run and check that its rounds fit together.

    A last line that was not finished, because the run was killed while it was written, does not count.

    Raises:
        ConfigError: ``path`` is no path.
        TraceError: It cannot be read, it is of several runs, or a line contradicts the format or the line before; the
            message has its number.
    """
    first, *others = read_traces(path)
    if others:
        msg = f"The trace {path} is of {1 + len(others)} runs; read_traces reads them all."
        raise TraceError(msg)
    return first


def read_traces(path: str | os.PathLike[str]) -> list[Trace]:
    """Read the traces of several runs, one after the other in a file; see ``read_trace``.

    Raises:
        ConfigError, TraceError: As in ``read_trace``.
    """
    parsed = [_parsed(number, line) for number, line in enumerate(_lines(path), 1)]
    if not parsed or parsed[0]["type"] != "run":
        msg = f"The trace {path} does not begin with a run line."
        raise TraceError(msg)
    starts = [i for i, line in enumerate(parsed) if line["type"] == "run"]
    return [_checked(parsed[start:end], start + 1) for start, end in pairwise([*starts, len(parsed)])]


def _lines(path: str | os.PathLike[str]) -> list[str]:
    file = require_path("path", path)
    try:
        with file.open(encoding="utf-8") as opened:
            text = read_whole(opened)
    except UnicodeDecodeError:
        msg = f"{file} is not a trace: it is not UTF-8 text."
        raise TraceError(msg) from None
    except OSError as error:
        msg = f"The trace {file} cannot be read: {error.strerror}."
        raise TraceError(msg) from None
    lines = text.splitlines()
    if len(lines) > 1 and not text.endswith("\n"):
        del lines[-1]
    return lines


def _parsed(number: int, line: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f"Line {number} of the trace is not JSON: {error}."
        raise TraceError(msg) from None
    keys = _KEYS.get(str(value.get("type"))) if isinstance(value, dict) else None
    if keys is None or not _has(value, keys):
        msg = f"Line {number} of the trace is not a run, round or end line with all its keys."
        raise TraceError(msg)
    if value["type"] == "run" and value["version"] != VERSION:
        msg = f"The trace has version {value['version']}; readable is version {VERSION}."
        raise TraceError(msg)
    if value["type"] == "round":
        _check_times(number, value)
    checked: dict[str, Any] = value
    return checked


def _has(value: dict[str, Any], keys: Mapping[str, Any]) -> bool:
    return all(key in value and isinstance(value[key], kind) for key, kind in keys.items())


def _check_times(number: int, line: dict[str, Any]) -> None:
    """Check what a round took and what was expected of it, which older traces and drafters by name have not."""
    expected, numbers = line.get("expected"), list(line["seconds"].values())
    known = expected is None or (isinstance(expected, dict) and _has(expected, _EXPECTED))
    if known and expected is not None:
        numbers += [expected.get(key) for key in _EXPECTED_NUMBERS]
    if not known or not all(isinstance(number, (int, float)) and abs(number) <= _MOST for number in numbers):
        msg = f"Line {number} of the trace has seconds or expectations that are none."
        raise TraceError(msg)


def _checked(lines: list[dict[str, Any]], first: int) -> Trace:
    """Return a run, whose first line has this number."""
    run, *rounds = lines
    end = rounds.pop() if rounds and rounds[-1]["type"] == "end" else None
    if not run["prompt_tokens"]:
        msg = f"Line {first} of the trace has no prompt tokens."
        raise TraceError(msg)
    position, pending = len(run["prompt_tokens"]) - 1, run["prompt_tokens"][-1]
    for i, line in enumerate(rounds):
        if line["type"] != "round" or not _follows(line, i, position, pending):
            msg = f"Line {first + 1 + i} of the trace does not follow from the line before."
            raise TraceError(msg)
        position, pending = position + len(line["emitted"]), line["emitted"][-1]
    return Trace(run, rounds, end)


def _follows(line: dict[str, Any], i: int, position: int, pending: object) -> bool:
    accepted, emitted = line["accepted"], line["emitted"]
    return (
        (line["i"], line["pos"], line["pending"]) == (i, position, pending)
        and len(emitted) == accepted + 1 > 0
        and emitted[:accepted] == line["draft"][:accepted]
    )
