"""Seconds by a count, such as the rows of a verify batch or the steps of a draft: running medians and a level.

A curve's *points* are running medians of what was measured at one count. The *level* is a factor that all curves share:
how much slower the machine is now, under its load, than when the points were measured.

A point that moves takes the others along, by its share of the recent observations::

    only 1 row is observed, and takes 20 % longer      every count is taken to cost 20 % more
    1 and 4 rows are observed in turns, only 4 moves   the others go along by half of it (of its logarithm)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_WINDOW = 9  # observations of a median
_N_SEEDS = 1  # what is assumed counts like so many observations; so the first one counts if it is cheaper
_DOUBT_SEEN, _DOUBT_NEVER_SEEN = 0.25, 0.75
_USUAL = 0.4  # of the observations
_DEEP = 64  # positions from which what they cost shows
_MOST_ALONE = 2.0  # times what a position costs each of several entries, for one that is alone
_LEAST_ABOVE = 0.02  # of what a count takes is its point's
_FADE = 0.95  # of the weight of an observation, per later one
_FRESH = 1024  # observations


class _Point:
    """A running median. ``values`` and ``typical`` are seconds at level 1."""

    __slots__ = ("at", "typical", "values", "weight")

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.typical = lower_median(values) if values else 0.0
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
        """Return the seconds that a count may cost less than is thought.

        They are none where it was observed lately, few where it was long ago, and many where it never was: what was
        measured before anything ran rests on a few decodes, and the machine may have been busy then. But it costs no
        less than a lower count that was observed lately.
        """
        point, thought = self._points.get(count), self.seconds(count)
        if point is not None and self._is_fresh(point):
            return 0.0
        share = _DOUBT_NEVER_SEEN if point is None or point.at < 0 else _DOUBT_SEEN
        below = (n for n in reversed(self._counts) if n < count and self._is_fresh(self._points[n]))
        least = self.seconds(next(below, self._counts[0])) if self._counts else 0.0
        return min(share * thought, max(0.0, thought - least))

    def _is_fresh(self, point: _Point) -> bool:
        """Return whether a count was observed lately."""
        return self._level.n_seen - point.at < _FRESH

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
            expected = self._typical(count)
            point = self._points[count] = _Point([expected] * _N_SEEDS if expected > 0.0 else [])
            insort(self._counts, count)
        beside = self._beside(count)
        before, now = point.typical, taken_in(point.values, _above(seconds / level.value, beside))
        share = level.share(point)
        if before > 0.0 and now != before:
            move = ((now + beside) / (before + beside)) ** share
            level.value *= move
            point.values = [_above((value + beside) / move, beside) for value in point.values]
            now = lower_median(point.values)
        point.typical = now

    def seconds(self, count: int) -> float:
        """Return what a count costs now.

        Between two points the line from one to the other counts, so that a plateau stays one; beyond them, the line
        from the first to the last. With a single point, seconds are proportional to the count. 0 if nothing is known.

        A point that was not measured lately may have been measured while something else ran. So it is not believed to
        cost more than what is next, or than so many times 1.
        """
        return (self._typical(count) + self._beside(count)) * self._level.value

    def _beside(self, _count: int) -> float:
        """Return the seconds at level 1 that are no part of the points."""
        return 0.0

    def _typical(self, count: int) -> float:
        """Return the seconds at level 1."""
        point = self._points.get(count)
        if point is not None:
            return point.typical if self._is_fresh(point) else self._plausible(count, point.typical)
        counts = self._counts
        if len(counts) < 2:  # noqa: PLR2004 - a line needs two
            return self._points[counts[0]].typical * count / counts[0] if counts else 0.0
        i = bisect_left(counts, count)
        if i == len(counts):
            first, last = counts[0], counts[-1]
            return self._points[last].typical + max(0.0, self._slope(first, last)) * (count - last)
        first, last = (counts[0], counts[1]) if i == 0 else (counts[i - 1], counts[i])
        return max(0.0, self._points[first].typical + self._slope(first, last) * (count - first))

    def _plausible(self, count: int, typical: float) -> float:
        """Return the most that a count is believed to cost."""
        counts, points = self._counts, self._points
        i = bisect_left(counts, count)
        if i + 1 < len(counts):
            typical = min(typical, points[counts[i + 1]].typical)
        return min(typical, points[counts[0]].typical * count / counts[0])

    def _slope(self, first: int, last: int) -> float:
        return (self._points[last].typical - self._points[first].typical) / (last - first)


class Attention(NamedTuple):
    """Seconds that an entry of a decode takes for each position before it.

    Attributes:
        alone: The only entry of a decode.
        each: Each of several.
    """

    alone: float = 0.0
    each: float = 0.0

    @classmethod
    def believed(cls, alone: float, each: float) -> Attention:
        """Return what was found, with a single entry taking as long as one of several at least, and at most twice.

        Its own times are too much alike to tell more.
        """
        return cls(min(max(alone, each), _MOST_ALONE * each), each)

    def seconds(self, n_entries: int, depth: float) -> float:
        """Return what entries take with so many positions before each of them."""
        return depth * (self.alone if n_entries == 1 else n_entries * self.each)


class DecodeCurve(CostCurve):
    """Seconds of a decode by its entries, at a depth.

    An entry attends to all positions before it. So the deeper a memory, the more a row costs, while the weights are
    read once for all of them: at its beginning a text allows longer drafts than later. The points are those of an empty
    memory.

    Args:
        level: Shared with other curves.
        points: Entries to seconds with an empty memory.
        attention: What a position costs.

    Attributes:
        depth: Positions before an entry, of the decodes that are asked about and observed.
    """

    __slots__ = ("_attention", "depth")

    def __init__(self, level: Level, points: Mapping[int, float], attention: Attention) -> None:
        super().__init__(level, points)
        self._attention = attention
        self.depth = 0.0

    @property
    def attention(self) -> Attention:
        """What a position costs now."""
        return Attention(*(seconds * self._level.value for seconds in self._attention))

    def observe(self, count: int, seconds: float) -> None:
        """Take in a measurement at this depth; attention that takes longer than all of it was thought too dear."""
        beside, most = self._beside(count) * self._level.value, (1.0 - _LEAST_ABOVE) * seconds
        if beside > most > 0.0:
            self._attention = Attention(*(most / beside * each for each in self._attention))
        super().observe(count, seconds)
        if count > 1 and self.depth >= _DEEP and seconds > 0.0:
            self._correct(self._points[count], count)

    def shallow(self, count: int) -> float:
        """Return what so many entries cost now with an empty memory."""
        return self._typical(count) * self._level.value

    def _correct(self, point: _Point, count: int) -> None:
        """Let positions cost less if several entries seem to take less than one in an empty memory."""
        one, (alone, each) = self._typical(1), self._attention
        if point.typical >= one:
            return
        right = max(0.0, each - (one - point.typical) / (count * self.depth))
        self._attention = Attention.believed(alone, right)
        moved = (right - each) * count * self.depth
        point.values = [max(_LEAST_ABOVE * one, value - moved) for value in point.values]
        point.typical = lower_median(point.values)

    def _beside(self, count: int) -> float:
        return self._attention.seconds(count, self.depth)


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


def _above(seconds: float, beside: float) -> float:
    """Return what is a point's own part of some seconds."""
    return max(_LEAST_ABOVE * seconds, seconds - beside)


def taken_in(values: list[float], value: float) -> float:
    """Append to a window of observations, and return its median."""
    values.append(value)
    if len(values) > _WINDOW:
        del values[0]
    return lower_median(values)


def lower_median(values: Sequence[float]) -> float:
    """Return the lower median: an outlier among two counts for nothing."""
    return sorted(values)[(len(values) - 1) // 2]
