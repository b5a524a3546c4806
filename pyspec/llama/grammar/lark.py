"""Grammars in Lark's syntax, which is what llguidance compiles. The other kinds become such texts too."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pyspec.errors import GrammarError
from pyspec.llama.grammar.faults import expected, fault, plain, regex_trouble

KIND = "Lark grammar"
# Without this llguidance would allow only one of the ways to tokenise what the grammar forces, and masks would say
# less than the grammar.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
_UNREAD = re.compile(r'"(?:\\.|[^"\\\n])*"|(?:#|//)[^\n]*|/(?:\\.|[^/\\\n])+/')
_UNSUPPORTED = re.compile(r"\b(max_tokens|stop|stop_capture|temperature)\s*=")
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar as llguidance takes it.

    Attributes:
        lark: The grammar in Lark's syntax.
        explain: Makes the error to raise of a complaint about it.
    """

    lark: str
    explain: Callable[[str], GrammarError]


def source(text: str) -> Source:
    """Make the source of a grammar in Lark's syntax.

    Raises:
        GrammarError: It asks for what cannot be rolled back, or what a grammar has no say in.
    """
    bare = _UNREAD.sub(lambda found: " " * len(found[0]), text)
    found = _UNSUPPORTED.search(bare)
    if found:
        instead = " (use suffix= or lazy)" if found[1].startswith("stop") else ""
        raise fault(KIND, text, found.start(), f"{found[1]}= is not supported{instead}")
    return Source(text + _OPTIONS, lambda message: _explain(text, message))


def wrap(body: str, explain: Callable[[str], GrammarError]) -> Source:
    """Make the source of a grammar that another kind became."""
    return Source(body + _OPTIONS, explain)


def without_place(kind: str) -> Callable[[str], GrammarError]:
    """Return the ``explain`` of a grammar of which llguidance cannot know the text."""
    return lambda message: GrammarError(f"The {kind} cannot be used: {trouble(message)}.")


def trouble(message: str) -> str:
    """Return what is wrong, without the place."""
    found = regex_trouble(message)
    if found:
        return f"a regular expression in it is wrong: {found[0]}"
    # llguidance lists all special tokens it knows, which may be hundreds
    return plain(re.split(r"; following special tokens", message)[0])


def _explain(text: str, message: str) -> GrammarError:
    found = _PLACE.match(message)
    if not found:
        return without_place(KIND)(message)
    what = trouble(found[3])
    offset = _offset(text, int(found[1]), int(found[2]))
    if what == "lexer error":
        what = expected("a symbol of Lark's syntax, or the rest of one", text, offset)
    if what.startswith("unknown special token"):
        what += " (control tokens have names here, without those that end a generation: leave these out)"
    return fault(KIND, text, offset, what)


def _offset(text: str, line: int, column: int) -> int:
    """Return the place in characters of a line and a column in bytes, both from 1."""
    lines = text.split("\n")
    if line > len(lines):
        return len(text)
    before = sum(len(earlier) + 1 for earlier in lines[: line - 1])
    return before + len(lines[line - 1].encode()[: column - 1].decode(errors="ignore"))
