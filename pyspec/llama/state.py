"""Saved state of one sequence."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from pyspec._native import contexts as native
from pyspec.errors import ConfigError, StateError, UnsupportedError
from pyspec.llama.context import Context


@dataclass(frozen=True, slots=True)
class State:
    """What a context held for one sequence, in host memory.

    Attributes:
        data: The native state.
        length: Positions it holds.
        fingerprint: Identifies model and memory layout; it restores only into the same.
        checksum: CRC-32 of ``data``, because llama.cpp trusts its input.
    """

    data: bytes
    length: int
    fingerprint: str
    checksum: int

    @classmethod
    def save(cls, context: Context, seq_id: int = 0) -> State:
        """Save a sequence.

        Raises:
            SequenceError: There is no such sequence.
            StateError: The sequence is empty or cannot be saved.
        """
        sequence = _checked(context).memory.checked(seq_id)
        length = context.memory.length(sequence)
        if length == 0:
            msg = f"Sequence {sequence} is empty; there is no state to save."
            raise StateError(msg)
        window = context.model.info.n_swa
        if window and length > window:
            msg = (
                f"Sequence {seq_id} holds {length} positions, more than the model's sliding window of {window}; "
                f"llama.cpp saves the window only, and such a state cannot be trimmed later."
            )
            raise UnsupportedError(msg)
        data = native.state_save(context.handle, sequence, 0)
        return cls(data, length, context.fingerprint, zlib.crc32(data))

    def restore(self, context: Context, seq_id: int = 0) -> None:
        """Put the state into a sequence, replacing what it held.

        Raises:
            SequenceError: There is no such sequence.
            StateError: The state is damaged, or of another model or memory layout. The sequence is unchanged.
        """
        sequence = _checked(context).memory.checked(seq_id)
        if not isinstance(self.data, bytes) or zlib.crc32(self.data) != self.checksum:
            msg = "This state is damaged: its checksum does not match."
            raise StateError(msg)
        if self.fingerprint != context.fingerprint:
            msg = f"This state is of {self.fingerprint}; the context is of {context.fingerprint}."
            raise StateError(msg)
        if self.length > context.n_ctx_seq:
            msg = f"This state holds {self.length} positions; the context has room for {context.n_ctx_seq}."
            raise StateError(msg)
        held = context.memory.length(sequence)
        former = native.state_save(context.handle, sequence, 0) if held else None
        context.memory.clear(sequence)
        try:
            native.state_load(context.handle, sequence, 0, self.data)
        except BaseException:
            context.memory.clear(sequence)
            if former is not None:
                native.state_load(context.handle, sequence, 0, former)
            raise


def _checked(context: object) -> Context:
    if not isinstance(context, Context):
        msg = f"context must be a Context, not {type(context).__name__}."
        raise ConfigError(msg)
    return context
