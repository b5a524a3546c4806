"""What the drafters that are fed by the target share: its hidden states, kept until the draft model has read them.

Rows arrive with every batch that the target evaluates (``observe``). Which of them stand is told by positions alone:

* a batch that begins at position p makes the rows before p certain and replaces those from p on
* a draft request at position n makes the rows before n certain

So nothing needs to be undone here when a draft is rejected or a round is left half way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec.drafters.saved import memory_parts, pack, restore_memory, unpack
from pyspec.errors import StateError, UnsupportedError
from pyspec.llama.batch import NO_TOKEN
from pyspec.llama.context import Context
from pyspec.speculation.draft import EvaluatedBatch
from pyspec.speculation.target import TargetHidden

_N_DIMENSIONS = 2
_logger = logging.getLogger(__name__)

Features = npt.NDArray[np.float32]
"""Rows of hidden states, [n, width]."""


@dataclass(slots=True)
class Waiting:
    """Rows of one sequence that the draft model has not read yet.

    Attributes:
        first: Position of the first row.
        rows: One per position, each [width].
        tokens: The target's token at each of these positions.
        lost: A row is missing, or there was input without tokens; nothing more can be drafted for this request.
        newest: The row and token that were taken last.
        drafted_at: Position of the draft for which they were taken.
    """

    first: int = 0
    rows: list[Features] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    lost: bool = False
    newest: tuple[Features, int] | None = None
    drafted_at: int | None = None

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.first + len(self.rows)

    def cut(self, end: int) -> None:
        """Forget the rows from position ``end`` on."""
        count = max(0, end - self.first)
        del self.rows[count:]
        del self.tokens[count:]

    def add(self, position: int, rows: Features, tokens: Sequence[int]) -> None:
        """Add rows that follow each other from ``position`` on; what was there is replaced, what was read is not."""
        self.cut(position)
        if position > self.end or NO_TOKEN in tokens:
            self.lost = True
        if self.lost:
            self.rows.clear()
            self.tokens.clear()
            return
        known = self.end - position  # these were read before, and still stand
        self.rows += list(rows[known:])
        self.tokens += tokens[known:]

    def parts(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything for ``saved.pack``."""
        rows = np.stack(self.rows) if self.rows else np.zeros((0, 0), np.float32)
        return {
            "first": np.array(self.first),
            "rows": rows,
            "tokens": np.array(self.tokens, np.int64),
            "lost": np.array(self.lost),
        }

    @classmethod
    def of_parts(cls, parts: Mapping[str, npt.NDArray[Any]]) -> Waiting:
        """Return what ``parts`` was called on.

        Raises:
            StateError: The parts do not fit together.
        """
        rows, tokens, first, lost = parts["rows"], parts["tokens"], parts["first"], parts["lost"]
        fit = rows.ndim == _N_DIMENSIONS and rows.dtype == np.float32 and tokens.shape == (len(rows),)
        if not fit or tokens.dtype.kind != "i" or first.shape or first.dtype.kind != "i" or lost.shape:
            msg = "The parts of this state of a drafter do not fit together."
            raise StateError(msg)
        return cls(int(first), list(rows), tokens.tolist(), bool(lost))

    def take(self, count: int) -> None:
        """Drop the oldest rows, because the draft model has read them."""
        if count:
            self.newest = self.rows[count - 1], self.tokens[count - 1]
        del self.rows[:count]
        del self.tokens[:count]
        self.first += count

    def put_back(self) -> None:
        """Take back the row that the draft at ``drafted_at`` was made from; it is read again for the next one."""
        if self.newest is not None and self.first == self.drafted_at:
            self.rows.insert(0, self.newest[0])
            self.tokens.insert(0, self.newest[1])
            self.first -= 1
            self.newest = None


class FeatureFeed:
    """Collects the target's hidden states per sequence.

    Args:
        features: Takes what is needed from the target's hidden states, one row per entry of the batch.
        read: Called with a sequence and a position when many rows before that position are certain: reads them.
        capacity: Positions that the draft model's memory has for a sequence; a longer one is not drafted for.
        drafter: Its name, for the warning then.
        most: So many certain rows are many.
    """

    def __init__(
        self,
        features: Callable[[TargetHidden], Features],
        read: Callable[[int, int], None],
        *,
        capacity: int,
        drafter: str,
        most: int = 64,
    ) -> None:
        self._features = features
        self._capacity = capacity
        self._drafter = drafter
        self._warned = False
        self._read = read
        self._most = most
        self._waiting: dict[int, Waiting] = {}

    def begin(self, seq_id: int, waiting: Waiting | None = None) -> None:
        """A new request starts, with these rows or none."""
        self._waiting[seq_id] = waiting if waiting is not None else Waiting()

    def rewind(self, seq_id: int, length: int) -> None:
        """A new request starts with what is before ``length``; those rows do not come again.

        When some are missing, nothing can be drafted for it.
        """
        waiting = self.of(seq_id)
        waiting.cut(length)
        if waiting.newest is not None and waiting.first == length and not waiting.rows:
            waiting.drafted_at = length  # the first draft starts from the last row
            waiting.put_back()
        waiting.newest = waiting.drafted_at = None
        waiting.first = min(waiting.first, length)
        waiting.lost = waiting.end < length

    def observe(self, batch: EvaluatedBatch) -> None:
        """Collect the rows of a batch."""
        if batch.hidden is None:
            return
        rows = self._features(batch.hidden)
        for seq_id, first, end in batch.spans():
            waiting = self.of(seq_id)
            position = batch.positions[first]
            waiting.add(position, rows[first:end].copy(), batch.tokens[first:end])
            if position > self._capacity:
                self._give_up(waiting)
            if not waiting.lost and min(position, waiting.end) - waiting.first >= self._most:
                self._read(seq_id, position)

    def _give_up(self, waiting: Waiting) -> None:
        """Draft no more for a sequence that the draft model's memory has no room for, and say so once."""
        waiting.lost = True
        waiting.rows.clear()
        waiting.tokens.clear()
        if not self._warned:
            self._warned = True
            _logger.warning(
                "The draft context holds %d tokens per sequence; a longer sequence goes on without %s.",
                self._capacity,
                self._drafter,
            )

    def of(self, seq_id: int) -> Waiting:
        """Return the rows of a sequence."""
        return self._waiting.setdefault(seq_id, Waiting())

    def save(self, context: Context, seq_id: int) -> bytes | None:
        """Return the rows of a sequence and what the draft model's memory holds of it; None where that cannot be."""
        try:
            memory = memory_parts(context, seq_id)
        except UnsupportedError:  # a sliding window has moved on
            return None
        return pack(**self.of(seq_id).parts(), **memory)

    def load(self, context: Context, seq_id: int, state: bytes) -> None:
        """Take back what ``save`` returned.

        Raises:
            StateError: It is damaged, or of another draft model.
        """
        parts = unpack(state, "first", "rows", "tokens", "lost", "memory_length")
        restore_memory(context, seq_id, parts)
        self.begin(seq_id, Waiting.of_parts(parts))

    def ready(self, seq_id: int, position: int) -> Waiting | None:
        """Return the rows of a sequence when they reach just up to ``position``; what goes further is forgotten."""
        waiting = self.of(seq_id)
        waiting.cut(position)
        if position > self._capacity and not waiting.lost:
            self._give_up(waiting)
        return waiting if waiting.end == position and not waiting.lost else None
