"""States of drafters as bytes: a checksum and named arrays."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec.errors import StateError
from pyspec.llama.context import Context
from pyspec.llama.state import State

VERSION = 1
_CHECKSUM_BYTES = 4
Parts = Mapping[str, npt.NDArray[Any]]


def pack(**parts: npt.ArrayLike) -> bytes:
    """Return named arrays as bytes; see ``unpack``."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(part) for name, part in parts.items()}
    np.savez(file, version=np.array(VERSION), **arrays)
    content = file.getvalue()
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little") + content


def unpack(state: bytes, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a packed state, those named at least.

    Raises:
        StateError: It is damaged, of another version, or a part is missing.
    """
    if not isinstance(state, bytes):
        msg = f"A state of a drafter is bytes, not {type(state).__name__}."
        raise StateError(msg)
    checksum, content = state[:_CHECKSUM_BYTES], state[_CHECKSUM_BYTES:]
    if not content or zlib.crc32(content) != int.from_bytes(checksum, "little"):
        msg = f"This state of a drafter, {len(state)} bytes, is damaged: its checksum does not match."
        raise StateError(msg)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            parts = {name: file[name] for name in file.files}
    except Exception as error:  # zip files fail in many ways
        msg = f"This is no state of a drafter: {error}"
        raise StateError(msg) from error
    if int(parts.get("version", np.array(0))) != VERSION:
        msg = f"This state of a drafter has version {parts.get('version')}; readable is {VERSION}."
        raise StateError(msg)
    missing = [name for name in names if name not in parts]
    if missing:
        msg = f"This state of a drafter lacks {', '.join(missing)}."
        raise StateError(msg)
    return parts


def memory_parts(context: Context, seq_id: int) -> dict[str, npt.NDArray[Any]]:
    """Return what a draft model's memory holds of a sequence, for ``pack``."""
    if context.borrows_memory or context.memory.length(seq_id) == 0:
        return {"memory_length": np.array(0)}
    state = State.save(context, seq_id)
    return {
        "memory": np.frombuffer(state.data, np.uint8),
        "memory_length": np.array(state.length),
        "memory_checksum": np.array(state.checksum, np.int64),
        "memory_fingerprint": np.array(state.fingerprint),
    }


def restore_memory(context: Context, seq_id: int, parts: Parts) -> None:
    """Put back what ``memory_parts`` returned.

    Raises:
        StateError: It is of another model or another layout.
    """
    if context.borrows_memory:
        return
    try:
        length = int(parts["memory_length"])
        if length == 0:
            context.memory.clear(seq_id)
            return
        data, fingerprint = parts["memory"].tobytes(), str(parts["memory_fingerprint"])
        state = State(data, length, fingerprint, int(parts["memory_checksum"]))
    except (KeyError, TypeError, ValueError) as error:
        msg = f"This is no state of a drafter: {error}"
        raise StateError(msg) from error
    state.restore(context, seq_id)
