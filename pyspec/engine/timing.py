"""What decodes take on this machine, measured before anything runs.

The decodes go on from each other, as they will later: after a memory was emptied the next one is slower. Between the
first pass over all numbers of rows and the next ones the memory is made deeper, so that the passes also tell what a
position in it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from pyspec.llama.batch import Batch
from pyspec.speculation.costs import without_turn
from pyspec.speculation.curves import Attention, lower_median
from pyspec.speculation.target import Target

ROWS = (1, 4, 2, 8, 3, 16, 5, 9)  # what matters most first
MANY_ROWS = (32, 64)  # where several sequences share a decode
DEEPER = 64  # tokens between the passes
_ROWS_PER_SLOT = 8
_SECONDS = 0.75
_MOST_PASSES = 3
_N_ALONE = 3  # decodes of one row in a row: the first one shows what a turn costs
_LONGER = 1.15  # a pass in a deeper memory
_APART = 32  # positions between decodes that are compared
_WIDE = 4  # rows from which a position's cost shows
_LEAST_OF_FEWER, _MOST_OF_SINGLE = 0.75, 1.5  # of fewer rows, and of as many single ones
_ALIKE = 1.15  # times the least
_MUCH_QUICKER, _MOSTLY = 0.9, 0.8  # of what must have taken longer, and how often that may be


class DecodeTimes(NamedTuple):
    """What decodes take.

    Attributes:
        rows: Rows to seconds with an empty memory, as far as they could be measured in time.
        turn: Seconds that a decode takes longer after one with another number of entries.
        attention: What a position costs.
        steady: Hardly any decode was quicker than one of as many rows in a memory that was less deep.
        alike: Rows whose decodes took nearly the same each time.
    """

    rows: dict[int, float]
    turn: float
    attention: Attention
    steady: bool = True
    alike: frozenset[int] = frozenset()

    @property
    def disturbed(self) -> bool:
        """Whether they cannot be right: not steady, more rows that take much less, or much more than one by one.

        Fewer rows that take longer each time are no disturbance: some kernels are made for other numbers of rows.
        """
        one, longest = self.rows.get(1, 0.0), 0.0
        if not self.steady:
            return True
        for n, seconds in sorted(self.rows.items()):
            if seconds < _LEAST_OF_FEWER * longest or seconds > _MOST_OF_SINGLE * n * one > 0.0:
                return True
            if n not in self.alike:
                longest = max(longest, seconds)
        return False


class _Timed(NamedTuple):
    """A decode: its rows, the positions before each on average, whether the one before had other rows."""

    n_rows: int
    depth: float
    turned: bool
    seconds: float


class _Stopwatch:
    """Decodes rows, one decode after another, and notes what each takes."""

    def __init__(self, target: Target, clock: Callable[[], float]) -> None:
        self.timed: list[_Timed] = []
        self._target = target
        self._clock = clock
        self._last = 0
        self._position = 0

    def rows(self, n: int) -> None:
        """Time a decode of rows."""
        if self._position + n > self._target.n_ctx_seq:
            self._target.memory.clear(0)
            self._position = 0
        seconds = timed_decode(self._target, n, self._clock, self._position)
        self.timed.append(_Timed(n, self._position + (n - 1) / 2, n != self._last, seconds))
        self._last = n
        self._position += n

    def read(self, n: int) -> None:
        """Decode tokens without rows, if there is room."""
        most = min(self._target.n_batch, self._target.n_ubatch)
        end = min(self._position + n, self._target.n_ctx_seq)
        while self._position < end:
            piece = min(most, end - self._position)
            self._target.decode(_tokens(self._target, piece, self._position, output=False))
            self._position += piece
        self._last = 0

    def expected(self, n: int) -> float:
        """Return the seconds of a decode of so many rows, too many rather than too few."""
        exactly = [timed.seconds for timed in self.timed if timed.n_rows == n]
        return min(exactly or [max(1.0, n / timed.n_rows) * timed.seconds for timed in self.timed], default=0.0)


def measured_rows(
    target: Target, n_slots: int = 1, *, limit: float = _SECONDS, clock: Callable[[], float] = time.perf_counter
) -> DecodeTimes:
    """Measure decodes of 1 to some rows.

    Args:
        target: Its memory is empty before and after.
        n_slots: Sequences that will share decodes.
        limit: Seconds, after a first decode; none begins that would take longer.
        clock: Tells the time.

    Raises:
        PyspecError: A decode failed.
    """
    most = min(target.n_batch, target.n_ubatch, target.n_outputs_max, target.n_ctx_seq)
    rows = [n for n in ROWS if n <= most]
    many = [n for n in MANY_ROWS if n <= min(most, _ROWS_PER_SLOT * n_slots)]
    watch = _Stopwatch(target, clock)
    try:
        watch.rows(min(2, most))  # slower than it will be, by far if it reads the weights from a disk
        watch.timed.clear()
        end = (began := clock()) + limit
        _pass(watch, rows, end, clock)
        n_deeper = max(DEEPER, sum(many))
        if clock() + watch.expected(max(rows)) / max(rows) * n_deeper + _LONGER * (clock() - began) <= end:
            _pass(watch, many, end, clock)
            watch.read(n_deeper - sum(many))
            many = []
        for _ in range(_MOST_PASSES - 1):
            _pass(watch, rows, end, clock)
        _pass(watch, many, end, clock)
    finally:
        target.memory.clear(0)
    return _reckoned(watch.timed)


def _pass(watch: _Stopwatch, rows: Iterable[int], end: float, clock: Callable[[], float]) -> None:
    """Time a decode of each number of rows, as far as that is possible until then."""
    for n in rows:
        for _ in range(_N_ALONE if n == 1 else 1):
            if not watch.timed or clock() + watch.expected(n) <= end:
                watch.rows(n)


def _reckoned(timed: Sequence[_Timed]) -> DecodeTimes:
    """Return what the times come to; of several the least counts, since what else runs only makes them longer."""
    each = _slope([one for one in timed if one.n_rows >= _WIDE])
    alone = _slope([one for one in timed if one.n_rows == 1 and not one.turned])
    attention = Attention.believed(alone, each)
    least: dict[tuple[int, bool], float] = {}
    found: dict[int, list[float]] = {}
    for n, depth, turned, seconds in timed:
        bare = max(seconds / 2, seconds - attention.seconds(n, depth))
        least[n, turned] = min(bare, least.get((n, turned), bare))
        found.setdefault(n, []).append(bare)
    again = least.get((1, False), 0.0)
    turn = max(0.0, least.get((1, True), 0.0) - again) if again else 0.0
    rows: dict[int, float] = {}
    for (n, turned), seconds in least.items():
        seconds_again = without_turn(seconds, turn) if turned else seconds
        rows[n] = min(seconds_again, rows.get(n, seconds_again))
    alike = (n for n, each_time in found.items() if len(each_time) > 1 and max(each_time) <= _ALIKE * min(each_time))
    return DecodeTimes(rows, turn, attention, _are_steady(timed), frozenset(alike))


def _slope(timed: Sequence[_Timed]) -> float:
    """Return the seconds that a position adds to an entry: the median over pairs of decodes of as many rows."""
    slopes = [(two.seconds - one.seconds) / (one.n_rows * (two.depth - one.depth)) for one, two in _comparable(timed)]
    return max(0.0, lower_median(slopes)) if slopes else 0.0


def _are_steady(timed: Sequence[_Timed]) -> bool:
    """Return whether what must have taken longer did so, nearly always."""
    found = [two.seconds >= _MUCH_QUICKER * one.seconds for one, two in _comparable(timed) if one.n_rows >= _WIDE]
    return sum(found) >= _MOSTLY * len(found)


def _comparable(timed: Sequence[_Timed]) -> list[tuple[_Timed, _Timed]]:
    """Return pairs of decodes of as many rows, the second one in a deeper memory."""
    return [
        (one, two)
        for one, two in combinations(timed, 2)
        if one.n_rows == two.n_rows and two.depth - one.depth >= _APART
    ]


def timed_decode(
    target: Target, n_rows: int, clock: Callable[[], float] = time.perf_counter, position: int = 0
) -> float:
    """Return the seconds of a decode of so many rows.

    Args:
        target: Takes so many entries and rows in a decode.
        n_rows: Entries, each with a logits row.
        clock: Tells the time.
        position: Of the first one; what is there before stays.

    Raises:
        PyspecError: The decode failed.
    """
    batch = _tokens(target, n_rows, position, output=True)
    began = clock()
    target.decode(batch)
    return clock() - began


def _tokens(target: Target, n: int, position: int, *, output: bool) -> Batch:
    """Return tokens that differ: a mixture of experts is cheaper when all of them choose the same ones."""
    batch = Batch()
    for i in range(position, position + n):
        batch.add((7 * i + 1) % target.n_vocab, i, 0, output=output)
    return batch
