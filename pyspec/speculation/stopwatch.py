"""Seconds per stage of a round."""

from __future__ import annotations

import time


class Stopwatch:
    """Measures consecutive stages.

    Attributes:
        seconds: Per stage; ``stop`` adds "total".
    """

    __slots__ = ("_began", "_last", "seconds")

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """End a stage; the next one begins now."""
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now

    def stop(self) -> None:
        """Add the total."""
        self.seconds["total"] = time.perf_counter() - self._began
