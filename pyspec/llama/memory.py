"""The memory of a context: which positions of which sequence it holds, and how they can be dropped."""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, NamedTuple

from pyspec._native import Handle
from pyspec._native import contexts as native
from pyspec.config import MAX_INT32, as_index, require_bool, require_int, shown
from pyspec.errors import BrokenError, ConfigError, PositionError, RollbackError, SequenceError, UnsupportedError

if TYPE_CHECKING:
    from pyspec.llama.context import Context


class RollbackKind(enum.Enum):
    """How a memory gives up the newest positions of a sequence."""

    NONE = "none"  # there is no memory, or it cannot be probed
    TRIM = "trim"  # any suffix can be dropped
    BOUNDED = "bounded"  # a suffix of at most n_rs_seq positions of the last decode, but not all of it
    WHOLE = "whole"  # only everything


_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: what cannot be trimmed, such as a recurrent state
_ON_DEVICE = 2  # LLAMA_STATE_SEQ_FLAGS_ON_DEVICE: the tensors stay where they are computed with


class Checkpoint(NamedTuple):
    """What a memory cannot drop of one sequence, saved to return to; small, because the rest is trimmed.

    Attributes:
        length: Positions that were held.
        data: The native state; without the tensors where they stay on a device.
        owner: The context's handle; a checkpoint is good for nothing else.
        seq_id: The sequence.
        flags: How it was saved.
    """

    length: int
    data: bytes
    owner: Handle
    seq_id: int
    flags: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes in host memory."""
        return len(self.data)

    def __repr__(self) -> str:
        return f"<Checkpoint of sequence {self.seq_id}: {self.length} positions, {self.n_bytes} bytes>"


class Memory:
    """Memory of one context.

    Nothing here can be ignored by accident: a removal that the memory refuses raises.
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def length(self, seq_id: int) -> int:
        """Return the number of positions of a sequence: one more than its last one."""
        return native.memory_range(self._context.handle, self.checked(seq_id))[1] + 1

    def range(self, seq_id: int) -> tuple[int, int]:
        """Return first and last position of a sequence, (-1, -1) when it is empty."""
        return native.memory_range(self._context.handle, self.checked(seq_id))

    def trim(self, seq_id: int, length: int) -> None:
        """Drop all positions of a sequence from ``length`` on.

        Ask ``reaches`` before, where ``reuses_cells``: what is left may lack a part of its window, and nothing tells.

        Raises:
            SequenceError: There is no such sequence.
            PositionError: ``length`` is negative.
            RollbackError: The memory cannot drop them; it is unchanged.
        """
        sequence = self.checked(seq_id)
        keep = require_int("length", length, 0, MAX_INT32)
        held = self.length(sequence)
        if held <= keep:
            return
        self._require_undoable(sequence, held, keep)
        native.memory_remove(self._context.handle, sequence, keep, -1)
        left = self.length(sequence)
        if left != keep:
            msg = f"Sequence {sequence} ends at position {left} after it was trimmed from {held} to {keep}."
            raise RollbackError(msg)

    def n_bytes(self, seq_id: int, *, checkpoint: bool = False) -> int:
        """Return how many bytes a sequence takes when it is saved, or a checkpoint of it."""
        flags = _PARTIAL if require_bool("checkpoint", checkpoint) else 0
        return native.state_size(self._context.handle, self.checked(seq_id), flags)

    def checkpoint(self, seq_id: int, *, lasting: bool = False) -> Checkpoint:
        """Save what ``trim`` could not take back.

        Args:
            seq_id: The sequence.
            lasting: Whether it must stay good when the sequence has its next one; then its tensors leave the device.

        Raises:
            StateError: It cannot be saved.
        """
        sequence = self.checked(seq_id)
        length, handle = self.length(sequence), self._context.handle
        flags = _PARTIAL if lasting or not self._context.on_device else _PARTIAL | _ON_DEVICE
        data = native.state_save(handle, sequence, flags) if length else b""
        return Checkpoint(length, data, handle, sequence, flags)

    def restore(self, seq_id: int, checkpoint: Checkpoint) -> None:
        """Return to a checkpoint of this sequence: positions after it are dropped.

        Raises:
            ConfigError: It is no checkpoint of this sequence.
            StateError, RollbackError: It does not fit; the sequence must be cleared.
        """
        sequence = self.checked(seq_id)
        if not isinstance(checkpoint, Checkpoint) or checkpoint[2:4] != (self._context.handle, sequence):
            msg = f"checkpoint must be one of sequence {sequence} of this context, not {shown(checkpoint)}."
            raise ConfigError(msg)
        if not checkpoint.length:
            self.clear(sequence)
            return
        native.state_load(self._context.handle, sequence, checkpoint.flags, checkpoint.data)
        self._context.undoable.pop(sequence, None)
        native.memory_remove(self._context.handle, sequence, checkpoint.length, -1)
        left = self.length(sequence)
        if left != checkpoint.length:
            msg = f"Sequence {sequence} ends at position {left} after its checkpoint at {checkpoint.length}."
            raise RollbackError(msg)

    def remove(self, seq_id: int, begin: int, end: int) -> None:
        """Drop positions ``begin`` to ``end - 1`` of a sequence.

        Raises:
            RollbackError: The memory cannot drop them; it is unchanged.
        """
        sequence = self.checked(seq_id)
        low = require_int("begin", begin, 0, MAX_INT32)
        high = require_int("end", end, low, MAX_INT32)
        held = self.length(sequence)
        if self._keeps_state and high < held:  # llama.cpp would say yes and remove nothing
            msg = f"A recurrent state cannot forget positions {low} to {high - 1} of sequence {sequence}."
            raise RollbackError(msg)
        self._require_undoable(sequence, held, low)
        native.memory_remove(self._context.handle, sequence, low, high)

    def clear(self, seq_id: int | None = None) -> None:
        """Drop a sequence, or everything. This never fails."""
        if seq_id is None:
            native.memory_clear(self._context.handle, data=True)
            self._context.undoable.clear()
        else:
            sequence = self.checked(seq_id)
            native.memory_remove(self._context.handle, sequence, -1, -1)
            self._context.undoable.pop(sequence, None)

    def clear_if_in_doubt(self) -> None:
        """Drop everything if a computation that stopped midway may have left any sequence wrong.

        llama.cpp keeps the recurrent states of the sequences of a decode side by side. It notes where each one goes,
        also those that are in the way, and then moves them as a part of the computation.
        """
        if self._keeps_state and not self._context.reads_rows_beside_tokens:  # a head's memory is attention
            with contextlib.suppress(BrokenError):  # nobody can use it any more
                self.clear()

    def copy(self, source: int, destination: int, length: int) -> None:
        """Let ``destination`` share the first ``length`` positions of ``source``.

        Raises:
            PositionError: ``source`` is shorter, or ``destination`` is not empty.
            UnsupportedError: A part was asked for, and the sequences do not share one buffer, or the model is
                recurrent.
        """
        here, there = self.checked(source), self.checked(destination)
        count = require_int("length", length, 0, MAX_INT32)
        if count > self.length(here):
            msg = f"Sequence {here} holds {self.length(here)} positions; {count} cannot be copied."
            raise PositionError(msg)
        if here == there or self.length(there):
            msg = f"Sequence {there} must be another sequence, and empty, to receive a copy."
            raise PositionError(msg)
        if count == 0:
            return
        whole = count == self.length(here)
        if not whole and not self._context.config.kv_unified:
            msg = "Sequences with buffers of their own can only be copied whole; use kv_unified=True to copy a part."
            raise UnsupportedError(msg)
        if not whole and self._keeps_state:
            msg = "A recurrent state can only be copied whole."
            raise UnsupportedError(msg)
        if self._context.n_rs_seq:  # llama.cpp would forget that positions were dropped
            handle = self._context.handle
            native.state_load(handle, there, 0, native.state_save(handle, here, 0))
        else:
            native.memory_copy(self._context.handle, here, there, 0, -1 if whole else count)

    def keep(self, seq_id: int) -> None:
        """Drop every sequence but one."""
        kept = self.checked(seq_id)
        self._context.handle.require_usable()
        for other in range(self._context.n_seq_max):
            if other != kept:
                self.clear(other)

    def shift(self, seq_id: int, begin: int, delta: int) -> None:
        """Add ``delta`` to all positions of a sequence from ``begin`` on.

        Raises:
            PositionError: A position would become negative.
            RollbackError: The memory cannot shift.
        """
        sequence = self.checked(seq_id)
        low = require_int("begin", begin, 0, MAX_INT32)
        step = require_int("delta", delta, -MAX_INT32, MAX_INT32)
        others = (other for other in range(self._context.n_seq_max) if other != sequence)
        if self._context.config.kv_unified and any(self.length(other) for other in others):
            msg = "With kv_unified another sequence may share these positions and would be shifted too; clear it first."
            raise UnsupportedError(msg)
        if low + step < 0:
            msg = f"Shifting position {low} by {step} would make it negative."
            raise PositionError(msg)
        if self.length(sequence) + step > MAX_INT32:
            msg = f"Shifting by {step} would move positions past {MAX_INT32}."
            raise PositionError(msg)
        native.memory_shift(self._context.handle, sequence, low, -1, step)

    @property
    def shares_cells(self) -> bool:
        """Whether a sequence can be given a part of another one for nothing, by ``copy``."""
        return bool(self._context.config.kv_unified) and not self._keeps_state and not self.one_ubatch

    @property
    def can_shift(self) -> bool:
        """Whether positions can be shifted."""
        return native.memory_can_shift(self._context.handle)

    @property
    def rollback(self) -> RollbackKind:
        """How this memory rolls back, found by trying it once while the memory is empty.

        Raises:
            PositionError: The memory was never probed and holds something now.
            MemoryError: There was none left to try it with.
        """
        context = self._context
        if context.rollback_kind is None:
            context.rollback_kind = self._known_kind() or self._probe()
        return context.rollback_kind

    @property
    def bound(self) -> int:
        """The most positions that a bounded memory can drop."""
        return self._context.n_rs_seq

    @property
    def one_ubatch(self) -> bool:
        """Whether positions can only be dropped again when they were computed at once.

        Snapshots of a recurrent state and a sliding window that keeps nothing else are both moved on by each
        physical batch.
        """
        windowed = self._context.model.info.n_swa > 0 and not self._context.config.swa_full
        return windowed or self._context.n_rs_seq > 0

    @property
    def reuses_cells(self) -> bool:
        """Whether what a sliding window has left may be overwritten by other sequences.

        In a buffer that sequences share, llama.cpp gives the cells of positions that no further token of a sequence
        attends to, as it ends now, to whatever is computed next. So drafts have to be computed at once with all that
        stands beside them: else they move the window on for the next physical batch, and cannot be dropped any more.
        """
        info, config = self._context.model.info, self._context.config
        return info.n_swa > 0 and bool(config.kv_unified) and not self.one_ubatch and not self._keeps_state

    def reaches(self, seq_id: int, length: int) -> bool:
        """Return whether a sequence still has all that a token behind its first ``length`` positions attends to.

        Where ``reuses_cells``, it may not: its sliding window has moved on and cannot go back.
        """
        if not self.reuses_cells or not length:
            return True
        return self.range(seq_id)[0] <= max(0, length - self._context.model.info.n_swa + 1)

    @property
    def consecutive(self) -> bool:
        """Whether only sequences whose numbers follow each other are computed at once.

        It is so with recurrent states, unless sequences share one buffer beside them.
        """
        return self._keeps_state and (self._context.model.info.is_recurrent or not self._context.config.kv_unified)

    @property
    def _keeps_state(self) -> bool:
        info = self._context.model.info
        return info.is_recurrent or info.is_hybrid

    def _known_kind(self) -> RollbackKind | None:
        """Return what need not be tried."""
        context = self._context
        if not context.has_memory:
            return RollbackKind.NONE
        if context.n_rs_seq > 0:
            return RollbackKind.BOUNDED
        # A head's memory is attention, and it cannot decode bare tokens.
        return RollbackKind.TRIM if context.reads_rows_beside_tokens else None

    def _probe(self) -> RollbackKind:
        """Decode two tokens one by one, try to drop the second, and clear.

        There is no call that tells; one token at a time also fits ``n_batch = 1``.
        """
        context = self._context
        if any(self.length(seq_id) for seq_id in range(context.n_seq_max)):
            msg = "How a memory rolls back can only be probed while it is empty; ask before the first decode."
            raise PositionError(msg)
        context.n_decodes += 1  # rows of an earlier decode end here
        try:
            for position in range(min(2, context.n_ctx_seq)):
                native.decode(context.handle, [0], [position], [(0,)], [False])
        except MemoryError:  # the machine's fault, not the model's
            self.clear()
            raise
        except Exception:  # noqa: BLE001 - a model that cannot decode cannot roll back either
            return RollbackKind.NONE
        try:
            native.memory_remove(context.handle, 0, 1, -1)
        except RollbackError:
            return RollbackKind.WHOLE
        else:
            return RollbackKind.TRIM
        finally:
            self.clear()

    def _require_undoable(self, sequence: int, held: int, keep: int) -> None:
        """Refuse to drop positions before which the state was not kept; llama.cpp would drop them.

        Raises:
            RollbackError: It was not.
        """
        context = self._context
        if not context.n_rs_seq or not 0 < keep < held:
            return
        most = context.undoable.get(sequence, 0)
        if held - keep > most:
            msg = f"Sequence {sequence} holds {held} positions and can drop the last {most}, not {held - keep}."
            raise RollbackError(msg)
        del context.undoable[sequence]  # only once until its next decode

    def checked(self, seq_id: int) -> int:
        """Return the number of a sequence that exists.

        Raises:
            SequenceError: There is no such sequence.
        """
        n_seq_max = self._context.n_seq_max
        number = as_index(seq_id)
        if number is None or not 0 <= number < n_seq_max:
            msg = f"There is no sequence {shown(seq_id)}; this context has the sequences 0 to {n_seq_max - 1}."
            raise SequenceError(msg)
        return number
