"""What is wrong with a grammar, said in one line with the place in the user's text."""

from __future__ import annotations

import re

from pyspec.errors import GrammarError

_MAX_SHOWN = 40
"""Characters of the user's text that a message quotes."""


def fault(kind: str, text: str, offset: int, trouble: str) -> GrammarError:
    """Make the error for a place in a grammar.

    Args:
        kind: What the text is, such as "GBNF grammar".
        text: The whole text.
        offset: Where, in characters; ``len(text)`` is its end.
        trouble: What is wrong there, without a full stop.
    """
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return GrammarError(f"The {kind} is wrong at line {line}, column {column}: {trouble}.", line, column)


def expected(wanted: str, text: str, offset: int) -> str:
    """Say what was wanted at a place and what stands there."""
    rest = text[offset : offset + _MAX_SHOWN].split("\n", 1)[0]
    if rest:
        return f"expected {wanted}, found {rest!r}"
    return f"expected {wanted}, found the end of the {'text' if offset >= len(text) else 'line'}"


def plain(message: str) -> str:
    """Return llguidance's message in one line, without the excerpts, dumps and backtraces that it adds."""
    if message.startswith("panic: "):
        return f"llguidance fails on it ({message.splitlines()[0]}); write it in another way"
    lines = re.sub(r"<(state|grammar|backtrace)>.*?(</\1>|\Z)|<non-verbose/>", "", message, flags=re.DOTALL)
    kept = [line.strip() for line in lines.splitlines() if not re.match(r"\s*\d+ \| |\s*\^+\s*$|~{5,}", line)]
    return " ".join(line for line in kept if line).rstrip(".")


def regex_trouble(message: str) -> tuple[str, int, int] | None:
    """Read a complaint about a regular expression.

    Returns:
        What is wrong, and where in the expression: the line, from 1, and the column, from 0, both in characters.
        None where the message is no such complaint.
    """
    found = re.search(r"regex parse error:\n(.*)\nerror: (.*)", message, flags=re.DOTALL)
    if not found:
        return None
    line, column, numbered = 1, 0, 0
    for shown in found[1].split("\n"):
        number = re.match(r" *(\d+): ", shown)
        if number:
            numbered, line = number.end(), int(number[1])
        if re.fullmatch(r" *\^+ *", shown):
            column = shown.index("^") - (numbered or len("    "))
            break
    return found[2].split("\n", 1)[0], line, column
