"""Bytes of a running generation as text."""

from __future__ import annotations

import codecs

from pyspec.speculation.ending import Finish

_Utf8 = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Turns the bytes that an ``Ending`` releases into text.

    A UTF-8 character may span tokens: it is held back until it is complete. Bytes that are not UTF-8 become U+FFFD.
    """

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = _Utf8("replace")

    def take(self, released: bytes | bytearray, finish: Finish | None) -> str:
        """Return the text of what comes next; with a ``finish`` nothing is held back."""
        return self._decoder.decode(released, finish is not None)


def n_complete(text: bytes | bytearray) -> int:
    """Return how many bytes at the beginning are not held back: all but those of a character that is not complete."""
    return codecs.utf_8_decode(text, "replace", False)[1]  # noqa: FBT003 - it has no name
