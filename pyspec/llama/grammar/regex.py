r"""Regular expressions: the whole output matches one. The syntax is that of Rust's regex package.

There are neither backward references nor looking around, so that ``^``, ``$`` and ``\b`` mean something only at the
ends, where they change nothing.
"""

from __future__ import annotations

import re

from pyspec.errors import GrammarError
from pyspec.llama.grammar import lark
from pyspec.llama.grammar.faults import fault, regex_trouble

KIND = "regular expression"
_LOOKING = re.compile(r"lookarounds not supported yet; (\w+)")
_SIGNS = {"WordAsciiNegate": r"\\B", "WordUnicodeNegate": r"\\B", "Word": r"\\b", "Start": r"\^|\\A", "End": r"\$|\\z"}


def source(text: str) -> lark.Source:
    """Make the source of a regular expression.

    Raises:
        GrammarError: It ends within an escape.
    """
    pieces = re.findall(r"\\.|[^\\]|\\$", text, flags=re.DOTALL)
    if pieces and pieces[-1] == "\\":
        raise fault(KIND, text, len(text) - 1, "expected a character after the backslash, found the end of the text")
    # "/" ends an expression in Lark, and "." does not match an escaped end of line there
    escaped = "".join({"/": "\\/", "\\\n": "\\n"}.get(piece, piece) for piece in pieces)
    return lark.wrap(f"start: /{escaped}/" if text else 'start: ""', lambda message: _explain(text, escaped, message))


def _explain(text: str, escaped: str, message: str) -> GrammarError:
    found = regex_trouble(message)
    if found:
        trouble, line, column = found
        return fault(KIND, text, _offset(text, escaped, line, column), trouble)
    looking = _LOOKING.search(message)
    if looking:
        sign = next((sign for name, sign in _SIGNS.items() if looking[1].startswith(name)), "$^")
        place = re.search(rf"(?<!\\)(?:\\\\)*({sign})", text)
        if place:
            return fault(KIND, text, place.start(1), f"looking around is not supported: {place[1]}")
    return lark.without_place(KIND)(message)


def _offset(text: str, escaped: str, line: int, column: int) -> int:
    """Return the place in the text for a place in what Lark is given; lines count from 1, columns from 0."""
    lines = escaped.split("\n")
    place = sum(len(earlier) + 1 for earlier in lines[: line - 1]) + column
    added = sum(1 for slash in re.finditer(r"\\/", escaped[:place]) if not text.startswith("\\/", slash.start()))
    return min(max(place - added, 0), len(text))
