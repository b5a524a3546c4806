"""A target without a model: its logits are a pure function of the tokens in its memory.

The fakes refuse what a real context refuses, so a loop that works on them keeps the rules: positions without
gaps, sizes within limits, rows read before the next decode. A ``Fuse`` lets any step fail.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspec.errors import (
    BatchError,
    ContextFullError,
    LifetimeError,
    PositionError,
    PyspecError,
    RollbackError,
    SequenceError,
    TokenError,
)
from pyspec.llama.batch import Batch
from pyspec.llama.memory import RollbackKind

Row = npt.NDArray[np.float32]
Logits = Callable[[tuple[int, ...]], Row]
"""Tokens in memory, the newest last, to the row that decides what follows, [n_vocab]."""


class InjectedError(PyspecError):
    """What a fuse raises unless told otherwise."""


class Fuse:
    """Counts how often each named point is passed, and raises at one of these passes.

    Args:
        point: The point to fail at; None never fails.
        at: Which pass of it, from 0.
        error: What to raise.

    Attributes:
        counts: Passes per point.
        armed: Without it, nothing is counted and nothing fails.
    """

    def __init__(self, point: str | None = None, at: int = 0, error: type[BaseException] = InjectedError) -> None:
        self.counts: Counter[str] = Counter()
        self.armed = True
        self._trigger = (point, at)
        self._error = error

    def burn(self, point: str) -> None:
        if not self.armed:
            return
        n_before = self.counts[point]
        self.counts[point] += 1
        if (point, n_before) == self._trigger:
            raise self._error(f"{point} {n_before}")


@dataclass(frozen=True)
class HashLogits:
    """A target that is random, but always the same.

    Attributes:
        seed: Which one.
        n_vocab: Size of the vocabulary, at most 64.
        order: How many of the newest tokens count; None means all, so that any wrong token in memory shows.
        levels: How many different logits there are; few of them make ties frequent.
    """

    seed: int
    n_vocab: int
    order: int | None = None
    levels: int = 64

    def __call__(self, tokens: tuple[int, ...]) -> Row:
        return _hashed_row(
            self.seed, self.n_vocab, self.levels, tokens if self.order is None else tokens[-self.order :]
        )


@functools.lru_cache(maxsize=1 << 16)
def _hashed_row(seed: int, n_vocab: int, levels: int, tokens: tuple[int, ...]) -> Row:
    digest = hashlib.blake2b(repr((seed, tokens)).encode(), digest_size=n_vocab).digest()
    return np.array([8.0 * (byte % levels) / levels for byte in digest], np.float32)


def cycle_logits(tokens: list[int], n_vocab: int) -> Logits:
    """Return a target that says ``tokens`` round and round, by position: after n tokens it says ``tokens[n]``."""

    def row(held: tuple[int, ...]) -> Row:
        logits = np.zeros(n_vocab, np.float32)
        logits[tokens[len(held) % len(tokens)]] = 5.0
        return logits

    return row


class FakeCheckpoint(NamedTuple):
    """A checkpoint of a fake memory."""

    length: int
    tokens: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return 100 + len(self.tokens)


class FakeMemory:
    """Positions and tokens per sequence.

    Args:
        n_seq_max: Number of sequences.
        kind: How it rolls back. TRIM drops any suffix; BOUNDED at most the last ``n_snapshots`` positions, not the
            whole last decode, only once before the next one, and nothing when sequences had unequal shares in it, or
            numbers that do not follow each other, with ``consecutive``; WHOLE only everything.
        n_snapshots: See ``kind``.
        fuse: Fails at "trim" before, at "trimmed" after a suffix was dropped; likewise at "checkpoint", "restore" and
            "restored".

    Attributes:
        n_checkpoints: How many were taken.
    """

    def __init__(
        self,
        n_seq_max: int = 1,
        *,
        kind: RollbackKind = RollbackKind.TRIM,
        n_snapshots: int = 0,
        consecutive: bool = False,
        fuse: Fuse | None = None,
    ) -> None:
        self.rollback = kind
        self.consecutive = consecutive
        self.cells: list[dict[int, int]] = [{} for _ in range(n_seq_max)]
        self.pending = [False] * n_seq_max  # BOUNDED: a trim since the last decode
        self.n_checkpoints = 0
        self._n_snapshots = n_snapshots
        self._ring = [0] * n_seq_max  # BOUNDED: newest positions that can be dropped
        self._fuse = fuse if fuse is not None else Fuse()

    def length(self, seq_id: int) -> int:
        return len(self._of(seq_id))

    def tokens(self, seq_id: int) -> tuple[int, ...]:
        """Return the tokens of a sequence in order; ``put`` leaves no holes."""
        return tuple(self._of(seq_id).values())

    def put(self, seq_id: int, position: int, token: int) -> None:
        cells = self._of(seq_id)
        assert position == len(cells)
        cells[position] = token
        self.pending[seq_id] = False

    def begin_decode(self, shares: dict[int, int]) -> None:
        """Sequences are about to get so many positions each."""
        equal = len(set(shares.values())) == 1
        if self.consecutive and list(shares) != [*range(min(shares), min(shares) + len(shares))]:
            equal = False
        self._ring = [0] * len(self._ring)  # others may move the states on
        for seq_id, n_positions in shares.items():
            self._ring[seq_id] = min(n_positions - 1, self._n_snapshots) if equal else 0

    def trim(self, seq_id: int, length: int) -> None:
        assert length >= 0
        self._fuse.burn("trim")
        cells, held = self._of(seq_id), self.length(seq_id)
        if held > length:
            self._refuse(seq_id, held - length, keeps=length > 0)
            while len(cells) > length:
                cells.popitem()  # the newest
            self.pending[seq_id] = True
            self._ring[seq_id] = max(0, self._ring[seq_id] - (held - length))
        self._fuse.burn("trimmed")

    def clear(self, seq_id: int | None = None) -> None:
        for each in range(len(self.cells)) if seq_id is None else [seq_id]:
            self._of(each).clear()
            self._ring[each] = 0
            self.pending[each] = False

    can_shift = True
    reuses_cells = False

    @property
    def shares_cells(self) -> bool:
        return self.rollback is RollbackKind.TRIM

    def copy(self, source: int, destination: int, length: int) -> None:
        assert source != destination
        assert not self._of(destination)
        self._of(destination).update(list(self._of(source).items())[:length])

    def remove(self, seq_id: int, begin: int, end: int) -> None:
        cells = self._of(seq_id)
        for position in range(begin, end):
            del cells[position]

    def shift(self, seq_id: int, begin: int, delta: int) -> None:
        cells = self._of(seq_id)
        moved = {position + delta if position >= begin else position: token for position, token in cells.items()}
        assert sorted(moved) == list(range(len(cells))), "no holes, and nothing twice"
        cells.clear()
        cells.update(moved)

    @property
    def bound(self) -> int:
        return self._n_snapshots

    @property
    def one_ubatch(self) -> bool:
        return self.rollback is RollbackKind.BOUNDED

    def reaches(self, seq_id: int, length: int) -> bool:
        return length <= self.length(seq_id)

    def checkpoint(self, seq_id: int, *, lasting: bool = False) -> FakeCheckpoint:  # noqa: ARG002 - all last
        self._fuse.burn("checkpoint")
        self.n_checkpoints += 1
        return FakeCheckpoint(self.length(seq_id), self.tokens(seq_id))

    def restore(self, seq_id: int, checkpoint: FakeCheckpoint) -> None:
        self._fuse.burn("restore")
        cells = self._of(seq_id)
        assert self.tokens(seq_id)[: checkpoint.length] == checkpoint.tokens, "a checkpoint of another history"
        while len(cells) > checkpoint.length:
            cells.popitem()  # the newest
        self._ring[seq_id] = 0
        self.pending[seq_id] = False
        self._fuse.burn("restored")

    def _refuse(self, seq_id: int, n_dropped: int, *, keeps: bool) -> None:
        whole_only = self.rollback is RollbackKind.WHOLE
        bounded = self.rollback is RollbackKind.BOUNDED
        too_far = bounded and (n_dropped > self._ring[seq_id] or self.pending[seq_id])
        if keeps and (whole_only or too_far):
            msg = f"Sequence {seq_id} cannot drop {n_dropped} positions."
            raise RollbackError(msg)

    def _of(self, seq_id: int) -> dict[int, int]:
        if not isinstance(seq_id, int) or not 0 <= seq_id < len(self.cells):
            msg = f"There is no sequence {seq_id!r}."
            raise SequenceError(msg)
        return self.cells[seq_id]


class FakeRows:
    """Rows of one decode, [n_rows, n_vocab]; they refuse to work after the next one."""

    def __init__(self, target: FakeTarget, block: Row) -> None:
        self._target = target
        self._block = block
        self._n_decodes = target.n_decodes

    def __len__(self) -> int:
        return len(self._block)

    def split(self, counts: Iterable[int]) -> list[FakeRows]:
        self._check()
        ends = list(itertools.accumulate(counts, initial=0))
        assert ends[-1] <= len(self)
        return [FakeRows(self._target, self._block[first:end]) for first, end in itertools.pairwise(ends)]

    def logits(self, i: int) -> Row:
        self._check()
        assert 0 <= i < len(self)
        row: Row = self._block[i]
        return row

    def argmax(self, i: int) -> int:
        return int(np.argmax(self.logits(i)))

    def top_k(self, i: int, k: int) -> tuple[npt.NDArray[np.int32], Row]:
        row = self.logits(i)
        best = np.argsort(-row, kind="stable")[:k].astype(np.int32)
        return best, row[best]

    def logprobs(self, i: int, tokens: Iterable[int]) -> npt.NDArray[np.float64]:
        row = self.logits(i).astype(np.float64)
        logs: npt.NDArray[np.float64] = row - np.logaddexp.reduce(row)
        return logs[list(tokens)]

    def _check(self) -> None:
        if self._n_decodes != self._target.n_decodes:
            msg = "These logits rows were overwritten by a later decode."
            raise LifetimeError(msg)


@dataclass(frozen=True)
class Decoded:
    """One recorded decode."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    seq_ids: tuple[tuple[int, ...], ...]
    n_outputs: int


@dataclass
class FakeTarget:
    """A context that computes ``logits``.

    Its fuse fails at "decode" before, at "half-decoded" amid, and at "decoded" after the entries enter memory. Amid, a
    memory that does not drop any suffix is emptied.
    """

    logits: Logits
    n_vocab: int
    n_ctx_seq: int = 64
    n_batch: int = 32
    n_ubatch: int = 8
    n_outputs_max: int = 32
    n_seq_max: int = 1
    kind: RollbackKind = RollbackKind.TRIM
    n_snapshots: int = 0
    consecutive: bool = False
    fuse: Fuse = field(default_factory=Fuse)
    decodes: list[Decoded] = field(default_factory=list)
    n_decodes: int = 0
    closed: bool = False
    hidden: Any = None

    def __post_init__(self) -> None:
        bounds: dict[str, Any] = {"n_snapshots": self.n_snapshots, "consecutive": self.consecutive}
        self.memory = FakeMemory(self.n_seq_max, kind=self.kind, fuse=self.fuse, **bounds)

    def decode(self, batch: Batch) -> FakeRows:
        self._check_sizes(batch)
        self._check_positions(batch)
        self.fuse.burn("decode")
        self.n_decodes += 1
        self.decodes.append(Decoded(tuple(batch.tokens), tuple(batch.positions), tuple(batch.seq_ids), batch.n_outputs))
        self.memory.begin_decode(Counter(seq_id for seq_ids in batch.seq_ids for seq_id in seq_ids))
        rows = []
        for i, token in enumerate(batch.tokens):
            if i == len(batch) // 2:
                self._half_decoded()
            for seq_id in batch.seq_ids[i]:
                self.memory.put(seq_id, batch.positions[i], token)
            if batch.outputs[i]:
                rows.append(self.logits(self.memory.tokens(batch.seq_ids[i][0])))
        self.fuse.burn("decoded")
        block = np.stack(rows) if rows else np.zeros((0, self.n_vocab), np.float32)
        block.flags.writeable = False
        return FakeRows(self, block)

    def close(self) -> None:
        self.closed = True

    def _half_decoded(self) -> None:
        try:
            self.fuse.burn("half-decoded")
        except BaseException:
            if self.kind is not RollbackKind.TRIM:  # states that lie side by side
                self.memory.clear()
            raise

    def _check_sizes(self, batch: Batch) -> None:
        if not 1 <= len(batch) <= self.n_batch or batch.n_outputs > self.n_outputs_max:
            msg = f"{len(batch)} entries and {batch.n_outputs} rows do not fit."
            raise BatchError(msg)
        assert len(batch) == len(batch.positions) == len(batch.seq_ids) == len(batch.outputs)
        assert batch.n_outputs == sum(batch.outputs)
        for token in batch.tokens:
            if not isinstance(token, int) or not 0 <= token < self.n_vocab:
                msg = f"There is no token {token!r}."
                raise TokenError(msg)

    def _check_positions(self, batch: Batch) -> None:
        expected: dict[int, int] = {}
        for position, seq_ids in zip(batch.positions, batch.seq_ids, strict=True):
            for seq_id in seq_ids:
                wanted = expected.setdefault(seq_id, self.memory.length(seq_id))
                if position != wanted:
                    msg = f"Sequence {seq_id} continues at {wanted}, not at {position}."
                    raise PositionError(msg)
                expected[seq_id] = wanted + 1
        if max(expected.values()) > self.n_ctx_seq:
            msg = f"A sequence may hold {self.n_ctx_seq} tokens."
            raise ContextFullError(msg)
