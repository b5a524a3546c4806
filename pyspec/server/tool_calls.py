"""Tool calls in what a model says.

Read are the two forms that models share:

* ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, anywhere, any number of times (Hermes, Qwen, SmolLM);
* an answer that is nothing but JSON: such an object, several one after the other, or a list of them (Llama, Mistral,
  and what a grammar forces). "parameters" may stand for "arguments".

What looks like a call and is none, because it is no JSON or names no function that was offered, stays text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from typing import Any, NamedTuple, NoReturn

from pyspec.server.answers import Call, Function
from pyspec.server.tools import CLOSING, OPENING

_SEPARATORS = " \t\r\n,;"


class Part(NamedTuple):
    """What became known of an answer: text, calls, or neither yet."""

    text: str
    calls: list[Call]


class CallReader:
    """Tells text from calls while the answer arrives.

    Args:
        names: Functions that may be called; none: everything is text.
        several: Whether more than one call counts; of others, only the first one does.

    Attributes:
        n_calls: Calls found so far.
    """

    __slots__ = ("_begun", "_held", "_in_call", "_is_json", "_names", "_several", "n_calls")

    def __init__(self, names: Collection[str], *, several: bool = True) -> None:
        self.n_calls = 0
        self._names = frozenset(names)
        self._several = several
        self._held = ""
        self._begun = False  # something other than space has come
        self._is_json = False
        self._in_call = False

    def push(self, text: str) -> Part:
        """Take in text, and return what is now known to be text or a call."""
        if not self._names:
            return Part(text, [])
        self._held += text
        if not self._begun:
            first = self._held.lstrip()[:1]
            if not first:
                return Part("", [])
            self._begun, self._is_json = True, first in "{["
        return Part("", []) if self._is_json else self._scan()

    def finish(self) -> Part:
        """Return the rest: the answer is complete."""
        held, self._held = self._held, ""
        if self._is_json:
            calls = _calls(held, self._names)
            return Part("" if calls else held, self._counted(calls))
        if self._in_call:  # the closing tag may be a token without text
            calls = _calls(held, self._names)
            return Part("" if calls else OPENING + held, self._counted(calls))
        return Part(held, [])

    def _scan(self) -> Part:
        text, calls = "", []
        while True:
            tag = CLOSING if self._in_call else OPENING
            before, found, after = self._held.partition(tag)
            if not found:
                break
            self._held = after
            if not self._in_call:
                text += before
            else:
                read = _calls(before, self._names)
                calls += self._counted(read)
                text += "" if read else f"{OPENING}{before}{CLOSING}"
            self._in_call = not self._in_call
        if not self._in_call:
            n_safe = len(self._held) - _overlap(self._held, OPENING)
            text, self._held = text + self._held[:n_safe], self._held[n_safe:]
        if self.n_calls and not text.strip():
            text = ""  # the lines between two calls
        return Part(text, calls)

    def _counted(self, calls: list[Call]) -> list[Call]:
        if not self._several:
            calls = calls[: 1 - min(self.n_calls, 1)]
        self.n_calls += len(calls)
        return calls


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of the text may be the beginning of a tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


def _calls(text: str, names: Collection[str]) -> list[Call]:
    """Return the calls that a text consists of; none if there is anything else in it."""
    found: list[Any] = []
    decoder, rest = json.JSONDecoder(parse_constant=_refuse), text.strip(_SEPARATORS)
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        found += value if isinstance(value, list) else [value]
        rest = rest[end:].strip(_SEPARATORS)
    calls = [_call(value, names) for value in found]
    return [call for call in calls if call is not None] if all(calls) else []


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN is no JSON


def _call(value: object, names: Collection[str]) -> Call | None:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str) or name not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, dict):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):  # 1e999 was read as infinity
            return None
    elif not isinstance(arguments, str):  # some models write an object as text
        return None
    function: Function = {"name": name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
