"""Text of a running generation, released as soon as it is final."""

from __future__ import annotations

import codecs

from pyspec.speculation.ending import Ending, Finish


class TextStream:
    """Turns the bytes of an ``Ending`` into text.

    A UTF-8 character may span tokens and a stop string may span rounds: both are held back until they are
    complete. Bytes that are not UTF-8 become U+FFFD.

    Attributes:
        n_released: Bytes that were released.
    """

    __slots__ = ("n_released",)

    def __init__(self) -> None:
        self.n_released = 0

    def release(self, ending: Ending, finish: Finish | None) -> str:
        """Return the text that became final."""
        settled = ending.text[self.n_released : ending.settled(finish)]
        text, n_used = codecs.utf_8_decode(settled, "replace", finish is not None)
        self.n_released += n_used
        return text
