"""Native calls about contexts, memory and state. Arguments were checked by ``pyspec.llama``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec._native import log
from pyspec._native.batches import BatchBuffer, Int32s
from pyspec._native.buffers import Int32Out, address_of
from pyspec._native.declarations import ContextInfo, ContextParams
from pyspec._native.handles import Handle, array_interface
from pyspec._native.library import lib
from pyspec._native.status import check


def type_id(name: str) -> int:
    out = Int32Out()
    check(lib().pys_type_id(name.encode(), out.ref))
    return out.value


class ContextHandle(Handle):
    """A context's handle with cells for arguments and small results; one thread owns it, so they can be used again."""

    __slots__ = ("batch", "decode", "encode", "first", "lengths", "second")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.first = Int32Out()
        self.second = Int32Out()
        self.batch = BatchBuffer()
        self.decode, self.encode = lib().pys_context_decode, lib().pys_context_encode
        self.lengths: dict[int, int] = {}  # positions per sequence, where known; forgotten by all that changes memory


def create(model: Handle, other: Handle | None = None, **params: Any) -> ContextHandle:
    """Create a context; ``params`` are the fields of ``pys_context_params``."""
    log.sync_threshold()
    address = ctypes.c_void_p()
    native_other = None if other is None else other.pointer
    raw = ContextParams(other=native_other, **params)
    native_model = model.pointer  # another thread may close the model meanwhile; this keeps it
    model.check(lib().pys_context_create(native_model, ctypes.byref(raw), ctypes.byref(address)))
    log.forward_pending()
    return ContextHandle(
        address.value or 0,
        lib().pys_context_free,
        what="context",
        keeps=(native_model, native_other),
        thread_bound=True,
    )


def info(context: Handle) -> ContextInfo:
    out = ContextInfo()
    context.check(lib().pys_context_get_info(context.pointer, ctypes.byref(out)))
    return out


def set_threads(context: Handle, n_threads: int, n_threads_batch: int) -> None:
    context.check(lib().pys_context_set_threads(context.pointer, n_threads, n_threads_batch))


class AbortFlag:
    """Stops a decode of a context from any thread."""

    __slots__ = ("_context",)

    def __init__(self, context: Handle) -> None:
        self._context = context

    def set(self, *, value: bool) -> None:
        native = self._context.keep_alive  # not .pointer: other threads are welcome here
        if native is not None:
            lib().pys_context_request_abort(native, value)


def decode(
    context: ContextHandle,
    tokens: Sequence[int],
    positions: Sequence[int],
    seq_ids: Sequence[Sequence[int]],
    outputs: Sequence[bool],
    states: Sequence[npt.NDArray[np.float32]] = (),
    *,
    encode: bool = False,
) -> Int32s:
    """Run a decode, or the encoder, and return the best tokens, those of the wanted rows first.

    The array is longer than that, and the next decode overwrites it.
    """
    batch = context.batch
    batch.fill(tokens, positions, seq_ids, outputs, states)
    run = context.encode if encode else context.decode
    status = run(context.pointer, batch.ref)
    if status:  # a failure, or log lines that wait
        context.check(status)
    return batch.best


def logits(context: Handle, n_vocab: int) -> npt.NDArray[np.float32]:
    """Return the rows of the last decode as a read-only view, [n_rows, n_vocab]."""
    rows, n_rows = ctypes.c_void_p(), Int32Out()
    native_context = context.pointer  # another thread may close the context meanwhile; this keeps it
    context.check(lib().pys_context_logits(native_context, ctypes.byref(rows), n_rows.ref))
    if n_rows.value == 0:
        return np.zeros((0, n_vocab), np.float32)
    return np.asarray(array_interface(native_context, rows.value or 0, (n_rows.value, n_vocab), "<f4"))


def top_k(context: ContextHandle, row: int, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    tokens, values = np.empty(k, np.int32), np.empty(k, np.float32)
    found = context.first
    context.check(lib().pys_context_top_k(context.pointer, row, k, address_of(tokens), address_of(values), found.ref))
    return tokens[: found.value], values[: found.value]


def logprobs(context: Handle, row: int, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    found = np.empty(len(tokens), np.float64)
    arrays = (address_of(tokens), len(tokens), address_of(found))
    context.check(lib().pys_context_logprobs(context.pointer, row, *arrays), "weigh the tokens of a row")
    return found


def best_allowed(context: ContextHandle, row: int, mask: npt.NDArray[np.uint32]) -> int:
    found = context.first
    context.check(lib().pys_context_best_allowed(context.pointer, row, address_of(mask), found.ref))
    return found.value


def memory_clear(context: ContextHandle, *, data: bool) -> None:
    context.lengths.clear()
    context.check(lib().pys_memory_clear(context.pointer, data))


def memory_remove(context: ContextHandle, seq_id: int, begin: int, end: int) -> None:
    context.lengths.clear()
    context.check(lib().pys_memory_remove(context.pointer, seq_id, begin, end))


def memory_copy(context: ContextHandle, source: int, destination: int, begin: int, end: int) -> None:
    context.lengths.clear()
    context.check(lib().pys_memory_copy(context.pointer, source, destination, begin, end))


def memory_shift(context: ContextHandle, seq_id: int, begin: int, end: int, delta: int) -> None:
    context.lengths.clear()
    context.check(lib().pys_memory_shift(context.pointer, seq_id, begin, end, delta))


def memory_range(context: ContextHandle, seq_id: int) -> tuple[int, int]:
    context.check(lib().pys_memory_range(context.pointer, seq_id, context.first.ref, context.second.ref))
    return context.first.value, context.second.value


def memory_can_shift(context: Handle) -> bool:
    out = Int32Out()
    context.check(lib().pys_memory_can_shift(context.pointer, out.ref))
    return bool(out.value)


def state_size(context: Handle, seq_id: int, flags: int) -> int:
    size = ctypes.c_uint64()
    context.check(lib().pys_state_size(context.pointer, seq_id, flags, ctypes.byref(size)), "measure the state")
    return size.value


def state_save(context: Handle, seq_id: int, flags: int) -> bytes:
    size = ctypes.c_uint64(state_size(context, seq_id, flags))
    data = np.empty(size.value, np.uint8)
    context.check(
        lib().pys_state_save(context.pointer, seq_id, flags, address_of(data), size.value, ctypes.byref(size)),
        "save the state",
    )
    return data[: size.value].tobytes()


def state_load(context: ContextHandle, seq_id: int, flags: int, data: bytes) -> None:
    context.lengths.clear()
    raw = np.frombuffer(data, np.uint8)
    context.check(lib().pys_state_load(context.pointer, seq_id, flags, address_of(raw), len(data)), "restore the state")
