"""What a round costs on this machine, learned from what runs anyway.

Words: a *curve* is seconds by a count, such as the rows of a verify batch or the steps of a draft. Its *points* are
running medians of what was measured at one count. The *level* is a factor that all curves share: how much slower the
machine is now, under its load and at the depth of its memory, than when the points were measured.

A point that moves takes the others along, by its share of the recent observations::

    only 1 row is observed, and takes 20 % longer      every count is taken to cost 20 % more
    1 and 4 rows are observed in turns, only 4 moves   the others go along by half of it (of its logarithm)

A decode takes longer when the one before it had another number of entries: llama.cpp builds its graph anew. That is the
*turn*, and curves do not contain it. A draft between plain rounds costs two: to its rows and back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TYPICAL = {1: 0.010, 2: 0.0145, 3: 0.0195, 4: 0.0215, 5: 0.029, 8: 0.040, 9: 0.046, 16: 0.070}
"""Seconds by rows on a small CPU, for an engine that measured nothing, or in this proportion if only one row."""

_WINDOW = 9  # observations of a median
_N_SEEDS = 1  # what is assumed counts like so many observations; so the first one counts if it is cheaper
_DOUBT_SEEN, _DOUBT_NEVER_SEEN = 0.25, 0.75
_USUAL = 0.4  # of the observations
_MOST_OF_TURN = 0.5  # of a decode of one row
_LEAST_OF_TURNED = 0.5  # of a decode is not the turn
_FADE = 0.95  # of the weight of an observation, per later one
_FRESH = 256  # observations


class Decoded(NamedTuple):
    """One decode of the target.

    Attributes:
        n_entries: Entries in its batch.
        reading: Pieces of prompts were among them.
        seconds: What it took.
    """

    n_entries: int
    reading: bool
    seconds: float


class _Point:
    """A running median. ``values`` and ``typical`` are seconds at level 1."""

    __slots__ = ("at", "typical", "values", "weight")

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.typical = _median(values) if values else 0.0
        self.weight = 0.0
        self.at = -_FRESH


class Level:
    """The factor that curves share; see the module.

    Attributes:
        value: The factor.
        n_seen: Observations of all curves.
    """

    __slots__ = ("_total", "n_seen", "value")

    def __init__(self) -> None:
        self.value = 1.0
        self.n_seen = 0
        self._total = 0.0

    def share(self, point: _Point) -> float:
        """Count an observation of a point, and return the point's share of the recent ones."""
        self.n_seen += 1
        self._total = self._total * _FADE + 1.0
        point.weight = point.weight * _FADE ** (self.n_seen - point.at) + 1.0
        point.at = self.n_seen
        return self.share_of(point)

    def share_of(self, point: _Point) -> float:
        """Return a point's share of the recent observations."""
        return min(1.0, point.weight * _FADE ** (self.n_seen - point.at) / self._total)


class CostCurve:
    """Seconds by a count.

    Args:
        level: Shared with other curves.
        points: What is known at the beginning: count to seconds.

    Example:
        >>> curve = CostCurve(Level(), {1: 10.0, 4: 22.0})
        >>> curve.seconds(2), curve.seconds(5)
        (14.0, 26.0)
    """

    __slots__ = ("_counts", "_level", "_points")

    def __init__(self, level: Level, points: Mapping[int, float] | None = None) -> None:
        self._level = level
        self._points = {n: _Point([seconds / level.value] * _N_SEEDS) for n, seconds in (points or {}).items()}
        self._counts = sorted(self._points)

    @property
    def points(self) -> dict[int, float]:
        """Count to seconds now, where something was measured."""
        return {n: self._points[n].typical * self._level.value for n in self._counts}

    def is_usual(self, count: int) -> bool:
        """Return whether most of the recent observations were of this count."""
        point = self._points.get(count)
        return point is not None and point.at >= 0 and self._level.share_of(point) > _USUAL

    def doubt(self, count: int) -> float:
        """Return the share that a count may cost less than is thought.

        It is none where it was observed lately, little where it was long ago, and much where it never was: what was
        measured before anything ran rests on one or two decodes, and the machine may have been busy then.
        """
        point = self._points.get(count)
        if point is None or point.at < 0:
            return _DOUBT_NEVER_SEEN
        return _DOUBT_SEEN if self._level.n_seen - point.at >= _FRESH else 0.0

    def observe(self, count: int, seconds: float) -> None:
        """Take in a measurement.

        Args:
            count: Of what the curve counts, at least 1.
            seconds: Measured; one that is not positive is ignored.
        """
        if seconds <= 0.0:
            return
        level, point = self._level, self._points.get(count)
        if point is None:
            expected = self.seconds(count) / level.value
            point = self._points[count] = _Point([expected] * _N_SEEDS if expected > 0.0 else [])
            insort(self._counts, count)
        values = point.values
        values.append(seconds / level.value)
        if len(values) > _WINDOW:
            del values[0]
        before, now = point.typical, _median(values)
        share = level.share(point)
        if before > 0.0 and now != before:
            move = (now / before) ** share
            level.value *= move
            now /= move
            point.values = [value / move for value in values]
        point.typical = now

    def seconds(self, count: int) -> float:
        """Return what a count costs now.

        Between two points the line from one to the other counts, so that a plateau stays one; beyond them, the line
        from the first to the last. With a single point, seconds are proportional to the count. 0 if nothing is known.

        A point that was not measured lately may have been measured while something else ran. So it is not believed to
        cost more than what is next, or than so many times 1.
        """
        point = self._points.get(count)
        if point is not None:
            typical = point.typical
            if self._level.n_seen - point.at >= _FRESH:
                typical = self._plausible(count, typical)
            return typical * self._level.value
        counts = self._counts
        if len(counts) < 2:  # noqa: PLR2004 - a line needs two
            return self._points[counts[0]].typical * count / counts[0] * self._level.value if counts else 0.0
        i = bisect_left(counts, count)
        if i == len(counts):
            first, last = counts[0], counts[-1]
            slope = max(0.0, self._slope(first, last))
            return (self._points[last].typical + slope * (count - last)) * self._level.value
        first, last = (counts[0], counts[1]) if i == 0 else (counts[i - 1], counts[i])
        at = self._points[first].typical + self._slope(first, last) * (count - first)
        return max(0.0, at) * self._level.value

    def _plausible(self, count: int, typical: float) -> float:
        """Return the most that a count is believed to cost."""
        counts, points = self._counts, self._points
        i = bisect_left(counts, count)
        if i + 1 < len(counts):
            typical = min(typical, points[counts[i + 1]].typical)
        return min(typical, points[counts[0]].typical * count / counts[0])

    def _slope(self, first: int, last: int) -> float:
        return (self._points[last].typical - self._points[first].typical) / (last - first)


class DraftCost:
    """Seconds of a drafter's call, by the number of steps, for each number of sequences that draft together.

    The fixed part is what the curve says for no step at all.

    Args:
        level: Shared with other curves.
        points: Steps to seconds for one sequence.
    """

    __slots__ = ("_curves", "_level", "n_calls")

    def __init__(self, level: Level, points: Mapping[int, float] | None = None) -> None:
        self._level = level
        self._curves: dict[int, CostCurve] = {1: CostCurve(level, points)} if points else {}
        self.n_calls = 0

    @property
    def points(self) -> dict[int, float]:
        """Steps to seconds for one sequence."""
        return self._curves[1].points if 1 in self._curves else {}

    def observe(self, n_steps: int, n_sequences: int, seconds: float) -> None:
        """Take in a measurement."""
        self.n_calls += 1
        curve = self._curves.get(n_sequences)
        if curve is None:
            curve = self._curves[n_sequences] = CostCurve(self._level)
        curve.observe(n_steps, seconds)

    def seconds(self, n_steps: int, n_sequences: int, verify: CostCurve) -> float:
        """Return what a call costs now, 0 if nothing is known.

        Args:
            n_steps: Tokens of its longest draft.
            n_sequences: Sequences that draft.
            verify: Tells how a decode grows with its rows, where so many sequences have not drafted yet.
        """
        curve = self._curves.get(n_sequences)
        if curve is not None:
            return curve.seconds(n_steps)
        if not self._curves:
            return 0.0
        known = min(self._curves, key=lambda n: abs(n - n_sequences))
        growth = verify.seconds(n_sequences) / verify.seconds(known)
        return self._curves[known].seconds(n_steps) * growth


class Costs:
    """All that a round costs.

    Args:
        verify: Rows of a verify batch to seconds; see ``TYPICAL`` for what is too little.
        drafts: Per drafter, steps to seconds.
        turn: Seconds that a decode takes longer after one with another number of entries.

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
    ) -> None:
        self.level = Level()
        self.verify = CostCurve(self.level, _guessed(verify or {}))
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
        return min(max(0.0, self._turn) * self.level.value, _MOST_OF_TURN * self.verify.seconds(1))

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
            self._saving = _taken_in(self._checkpoint, rest)
        else:
            self._other = _taken_in(self._overhead, rest)
        return True

    def _take_decode(self, decoded: Decoded) -> None:
        """Take in a decode; one after a turn tells what turns cost, if what it costs without is well known."""
        count, seconds = decoded.n_entries, decoded.seconds
        turned, self.n_entries = count != self.n_entries, count
        if turned and self.verify.is_usual(count):
            self._turn = _taken_in(self._turns, (seconds - self.verify.seconds(count)) / self.level.value)
            return
        if turned:
            seconds = without_turn(seconds, self.turn)
        self.verify.observe(count, seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, for JSON."""
        drafts = {name: cost.points for name, cost in self.drafts.items()}
        return {"verify": self.verify.points, "turn": self.turn, "drafts": drafts}


def without_turn(seconds: float, turn: float) -> float:
    """Return what a decode takes without the turn before it."""
    return max(_LEAST_OF_TURNED * seconds, seconds - turn)


def _guessed(verify: Mapping[int, float]) -> Mapping[int, float]:
    """Return what was measured, or what is typical where that is too little to see how rows grow."""
    if verify.keys() - {1}:
        return verify
    times = verify.get(1, TYPICAL[1]) / TYPICAL[1]
    return {n: seconds * times for n, seconds in TYPICAL.items()}


def _taken_in(values: list[float], value: float) -> float:
    """Append to a window and return its median."""
    values.append(value)
    if len(values) > _WINDOW:
        del values[0]
    return _median(values)


def _median(values: Sequence[float]) -> float:
    """Return the lower median: an outlier among two counts for nothing."""
    return sorted(values)[(len(values) - 1) // 2]
