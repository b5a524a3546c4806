"""Reading and checking traces."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspec.errors import TraceError
from pyspec.files import require_path
from pyspec.trace.writer import VERSION

_NUMBER = (int, float)
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
_EXPECTED = {
    "drafter": (str, type(None)),
    "length": int,
    "tokens": _NUMBER,
    "seconds": _NUMBER,
    "plain_seconds": _NUMBER,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read and checked.

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
    """Read a trace and check that its rounds fit together.

    A last line that was not finished, because the run was killed while it was written, does not count.

    Raises:
        ConfigError: ``path`` is no path.
        TraceError: It cannot be read, or a line contradicts the format or the line before; the message has its
            number.
    """
    file = require_path("path", path)
    if file.is_char_device():
        msg = f"{file} is a device, not a trace."
        raise TraceError(msg)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        msg = f"{file} is not a trace: it is not UTF-8 text."
        raise TraceError(msg) from None
    except OSError as error:
        msg = f"The trace {file} cannot be read: {error}."
        raise TraceError(msg) from None
    lines = text.splitlines()
    if len(lines) > 1 and not text.endswith("\n"):
        del lines[-1]
    parsed = [_parsed(number, line) for number, line in enumerate(lines, 1)]
    if not parsed or parsed[0]["type"] != "run":
        msg = f"The trace {file} does not begin with a run line."
        raise TraceError(msg)
    end = parsed[-1] if parsed[-1]["type"] == "end" else None
    rounds = parsed[1:-1] if end is not None else parsed[1:]
    _check_rounds(parsed[0], rounds)
    return Trace(parsed[0], rounds, end)


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
    expected = line.get("expected")
    timed = all(isinstance(seconds, _NUMBER) for seconds in line["seconds"].values())
    if not timed or not (expected is None or (isinstance(expected, dict) and _has(expected, _EXPECTED))):
        msg = f"Line {number} of the trace has seconds or expectations that are none."
        raise TraceError(msg)


def _check_rounds(run: dict[str, Any], rounds: list[dict[str, Any]]) -> None:
    if not run["prompt_tokens"]:
        msg = "Line 1 of the trace has no prompt tokens."
        raise TraceError(msg)
    position, pending = len(run["prompt_tokens"]) - 1, run["prompt_tokens"][-1]
    for i, line in enumerate(rounds):
        accepted, emitted = line["accepted"], line["emitted"]
        consistent = (
            line["type"] == "round"
            and (line["i"], line["pos"], line["pending"]) == (i, position, pending)
            and len(emitted) == accepted + 1 > 0
            and emitted[:accepted] == line["draft"][:accepted]
        )
        if not consistent:
            msg = f"Line {i + 2} of the trace does not follow from the line before."
            raise TraceError(msg)
        position, pending = position + len(emitted), emitted[-1]
