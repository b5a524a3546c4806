"""When a generation ends, decided token by token, so that a draft is cut where plain decoding would stop."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence


class Finish(enum.Enum):
    """Why a generation ended."""

    LENGTH = "length"  # max_tokens
    EOG = "eog"  # an end-of-generation token
    STOP = "stop"  # a stop string
    CONTEXT = "context"  # no room for the pending token
    CANCELLED = "cancelled"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


class Ending:
    """Text and length of what was emitted, and the conditions to stop.

    Args:
        eog: Tokens that end the generation; they are emitted, but have no text.
        max_tokens: Most tokens to emit.
        stops: Stop strings as bytes. The text is cut before the first one; the tokens are those emitted until
            it was complete.
        piece: Returns the bytes of a token.

    Attributes:
        text: Bytes emitted so far.
        cut: Where a stop string begins in ``text``, or None.
        n_released: Bytes that ``release`` has returned.
    """

    __slots__ = ("_eog", "_marks", "_max_tokens", "_piece", "_stops", "cut", "n_released", "text")

    def __init__(
        self,
        *,
        eog: Collection[int] = frozenset(),
        max_tokens: int,
        stops: Sequence[bytes] = (),
        piece: Callable[[int], bytes] = lambda _token: b"",
    ) -> None:
        self._eog = eog
        self._max_tokens = max_tokens
        self._stops = tuple(stops)
        self._piece = piece
        self._marks: list[int] = []  # length of text before each token
        self.text = bytearray()
        self.cut: int | None = None
        self.n_released = 0

    @property
    def n_tokens(self) -> int:
        """Tokens emitted so far."""
        return len(self._marks)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self._max_tokens - len(self._marks)

    def is_end(self, token: int) -> bool:
        """Return whether a token ends the generation by itself."""
        return token in self._eog

    def push(self, token: int) -> Finish | None:
        """Take in an emitted token and return why the generation ends with it, or None."""
        before = len(self.text)
        self._marks.append(before)
        if token in self._eog:
            return Finish.EOG
        self.text += self._piece(token)
        if self._stops and self._find_stop(before):
            return Finish.STOP
        return Finish.LENGTH if len(self._marks) >= self._max_tokens else None

    def rewind(self, n_tokens: int) -> None:
        """Forget all tokens after the first ``n_tokens``."""
        if n_tokens < len(self._marks):
            del self.text[self._marks[n_tokens] :]
            del self._marks[n_tokens:]
            self.cut = None

    def release(self, finish: Finish | None) -> bytearray:
        """Return what has become final since the last call; a round that was released is not rewound."""
        end = self.settled(finish) if self._stops else len(self.text)
        released = self.text[self.n_released : end]
        self.n_released = end
        return released

    def settled(self, finish: Finish | None) -> int:
        """Return how many bytes of the text are final: a stop string that has begun may still take the rest."""
        if self.cut is not None:
            return self.cut
        if finish is not None or not self._stops:
            return len(self.text)
        held = (
            n
            for stop in self._stops
            for n in range(min(len(stop) - 1, len(self.text)), 0, -1)
            if self.text.endswith(stop[:n])
        )
        return len(self.text) - max(held, default=0)

    def _find_stop(self, before: int) -> bool:
        """Look for a stop string that ends in the text after ``before``."""
        found = [at for stop in self._stops if (at := self.text.find(stop, max(0, before - len(stop) + 1))) >= 0]
        if found:
            self.cut = min(found)
        return bool(found)
