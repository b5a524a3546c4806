"""Text of a running generation, released as soon as it is final."""

from __future__ import annotations

import codecs

from pyspec.speculation.ending import Ending, Finish


class TextStream:
    """Turns the bytes of an ``Ending`` into text.

    A UTF-8 character may span tokens and a stop string may span rounds: both are held back until they are
    complete. Bytes that are not UTF-8 become U+FFFD.
    """

    __slots__ = ("_decoder", "_released")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._released = 0

    def release(self, ending: Ending, finish: Finish | None) -> str:
        """Return the text that became final."""
        end = ending.settled(finish)
        data = bytes(ending.text[self._released : end])
        self._released = end
        return self._decoder.decode(data, final=finish is not None)
