"""Text to stdout as it comes, with accepted drafts in another colour."""

from __future__ import annotations

import codecs
import itertools
from collections import deque
from typing import TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from pyspec.engine import Chunk


class TextPrinter:
    """Prints what is final.

    The characters are those of the chunks, whatever the colours do: the tokens' own bytes only tell which
    token completed each character, in a queue as long as what a chunk holds back.

    Args:
        out: Where to print.
        color: Show what came from accepted drafts in another colour.

    Attributes:
        ends_line: Whether the last one ended a line; true while there is none.
    """

    def __init__(self, out: TextIO, *, color: bool) -> None:
        self.ends_line = True
        self._out = out
        self._color = color
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drafted: deque[bool] = deque()  # per character that is not printed yet

    def show(self, chunk: Chunk) -> None:
        """Print a chunk's text."""
        if self._color:
            for source, piece in zip(chunk.sources, chunk.pieces, strict=True):
                self._drafted.extend([source.startswith("draft:")] * len(self._decoder.decode(piece)))
        self._write(chunk.text)

    def _write(self, text: str) -> None:
        if not text:
            return
        self.ends_line = text.endswith("\n")
        self._out.write(self._painted(text) if self._color else text)
        self._out.flush()

    def _painted(self, text: str) -> str:
        marks = [self._drafted.popleft() if self._drafted else False for _ in text]
        runs = itertools.groupby(zip(marks, text, strict=True), key=lambda pair: pair[0])
        return "".join(_paint("".join(character for _, character in run), drafted) for drafted, run in runs)


def _paint(text: str, drafted: bool) -> str:  # noqa: FBT001 - one of two colours
    return typer.style(text, fg=typer.colors.CYAN) if drafted else text
