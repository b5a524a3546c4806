"""What a round costs on this machine, learned from what runs anyway; see ``pyspec.speculation.curves`` for how.

A decode takes longer when the one before it had another number of entries: llama.cpp builds its graph anew. That is the
*turn*, and curves do not contain it. A draft between plain rounds costs two: to its rows and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspec.speculation.curves import Attention, DecodeCurve, DraftCost, Level, taken_in

TYPICAL = {1: 0.010, 2: 0.0145, 3: 0.0195, 4: 0.0215, 5: 0.029, 8: 0.040, 9: 0.046, 16: 0.070}
"""Seconds by rows on a small CPU, for an engine that measured nothing, or in this proportion if only one row."""

_MOST_OF_TURN = 0.5  # of a decode of one row
_LEAST_OF_TURNED = 0.5  # of a decode is not the turn
_NO_ATTENTION = Attention()


class Decoded(NamedTuple):
    """One decode of the target.

    Attributes:
        n_entries: Entries in its batch.
        reading: Pieces of prompts were among them.
        seconds: What it took.
        depth: Positions before an entry, the mean of all.
    """

    n_entries: int
    reading: bool
    seconds: float
    depth: float = 0.0


class Costs:
    """All that a round costs.

    Args:
        verify: Rows of a verify batch to seconds; see ``TYPICAL`` for what is too little.
        drafts: Per drafter, steps to seconds.
        turn: Seconds that a decode takes longer after one with another number of entries.
        attention: What a position of the memory costs.

    Attributes:
        level: What all curves share.
        verify: Seconds of a decode by its entries; decodes with pieces of prompts do not count.
        drafts: Per drafter what its calls cost.
        n_entries: Entries of the last decode.
    """

    def __init__(
        self,
        verify: Mapping[int, float] | None = None,
        drafts: Mapping[str, Mapping[int, float]] | None = None,
        turn: float = 0.0,
        attention: Attention = _NO_ATTENTION,
    ) -> None:
        self.level = Level()
        self.verify = DecodeCurve(self.level, _guessed(verify or {}), attention)
        self.drafts = {name: DraftCost(self.level, points) for name, points in (drafts or {}).items()}
        self.n_entries = 0
        self._turns = [turn]
        self._turn = turn
        self._overhead: list[float] = []
        self._checkpoint: list[float] = []
        self._other = 0.0
        self._saving = 0.0

    @property
    def overhead(self) -> float:
        """Seconds of a round beside drafts, decodes and checkpoints."""
        return self._other

    @property
    def turn(self) -> float:
        """Seconds that a decode takes longer after one with another number of entries.

        More than half a decode is not believed: it was measured while something else ran, and where nothing is drafted
        because of it, nothing would show that.
        """
        return min(max(0.0, self._turn) * self.level.value, _MOST_OF_TURN * self.verify.shallow(1))

    @property
    def checkpoint(self) -> float:
        """Seconds that a round takes longer when a checkpoint is taken for a draft, or restored."""
        return max(0.0, self._saving - self._other)

    def draft(self, name: str) -> DraftCost:
        """Return the costs of a drafter."""
        if name not in self.drafts:
            self.drafts[name] = DraftCost(self.level)
        return self.drafts[name]

    def take(self, decodes: Sequence[Decoded], seconds: Mapping[str, float], *, saved: bool) -> bool:
        """Take in a round, and return whether it counts: one that reads prompts does not.

        Args:
            decodes: Its decodes.
            seconds: Its stages.
            saved: A checkpoint was taken or restored in it.
        """
        if any(decoded.reading for decoded in decodes):
            self.n_entries = decodes[-1].n_entries
            return False
        for decoded in decodes:
            self._take_decode(decoded)
        rest = max(0.0, seconds["total"] - seconds["draft"] - seconds["verify"])
        if saved:
            self._saving = taken_in(self._checkpoint, rest)
        else:
            self._other = taken_in(self._overhead, rest)
        return True

    def _take_decode(self, decoded: Decoded) -> None:
        """Take in a decode; one after a turn tells what turns cost, if what it costs without is well known."""
        count, seconds = decoded.n_entries, decoded.seconds
        self.verify.depth = decoded.depth
        turned, self.n_entries = count != self.n_entries, count
        if turned and self.verify.is_usual(count):
            self._turn = taken_in(self._turns, (seconds - self.verify.seconds(count)) / self.level.value)
            return
        if turned:
            seconds = without_turn(seconds, self.turn)
        self.verify.observe(count, seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, for JSON."""
        drafts = {name: cost.points for name, cost in self.drafts.items()}
        return {"verify": self.verify.points, "turn": self.turn, "attention": self.verify.attention, "drafts": drafts}


def without_turn(seconds: float, turn: float) -> float:
    """Return what a decode takes without the turn before it."""
    return max(_LEAST_OF_TURNED * seconds, seconds - turn)


def _guessed(verify: Mapping[int, float]) -> Mapping[int, float]:
    """Return what was measured, or what is typical where that is too little to see how rows grow."""
    if verify.keys() - {1}:
        return verify
    times = verify.get(1, TYPICAL[1]) / TYPICAL[1]
    return {n: seconds * times for n, seconds in TYPICAL.items()}
