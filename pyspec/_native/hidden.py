"""Native calls about hidden states: layer inputs, next-n rows, output states, and how a draft model uses them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec._native.buffers import Int32Out
from pyspec._native.handles import Handle, array_interface
from pyspec._native.library import lib
from pyspec._native.status import Status

OFF, WANTED, ALL = 0, 1, 2  # which next-n rows are kept


def keep_layer_input(context: Handle, layer: int, *, value: bool = True) -> None:
    context.check(lib().pys_context_keep_layer_input(context.pointer, layer, value))


def keep_next_n(context: Handle, which: int) -> None:
    context.check(lib().pys_context_keep_next_n(context.pointer, which))


def keep_output_states(context: Handle, *, value: bool) -> None:
    context.check(lib().pys_context_keep_output_states(context.pointer, value))


def layer_input(context: Handle, layer: int, width: int) -> npt.NDArray[np.float32]:
    """Return the input of a layer in the last decode as a view, [n_entries, width]."""
    return _rows(context, width, lambda pointer, *out: lib().pys_context_layer_input(pointer, layer, *out))


def next_n(context: Handle, width: int) -> npt.NDArray[np.float32]:
    """Return the next-n rows of the last decode as a view, [n_rows, width]."""
    return _rows(context, width, lambda pointer, *out: lib().pys_context_next_n(pointer, *out))


def output_states(context: Handle, width: int) -> npt.NDArray[np.float32]:
    """Return the states after the output norm of the last decode as a view, [n_entries, width]."""
    return _rows(context, width, lambda pointer, *out: lib().pys_context_output_states(pointer, *out))


def fill_next_n(context: Handle, value: float) -> None:
    context.check(lib().pys_context_fill_next_n(context.pointer, value))


def set_next_n_layer(context: Handle, offset: int) -> None:
    context.check(lib().pys_context_set_next_n_layer(context.pointer, offset))


def set_causal(context: Handle, *, value: bool) -> None:
    context.check(lib().pys_context_set_causal(context.pointer, value))


def select_on_device(context: Handle, seq_id: int, k: int) -> bool:
    """Let the device find the k best tokens of each row of a sequence; False when it cannot."""
    status = lib().pys_context_select_on_device(context.pointer, seq_id, k)
    if status == Status.REFUSED:
        return False
    context.check(status)
    return True


def _rows(context: Handle, width: int, call: Callable[..., Any]) -> npt.NDArray[np.float32]:
    rows, n_rows = ctypes.c_void_p(), Int32Out()
    native_context = context.pointer  # another thread may close the context meanwhile; this keeps it
    context.check(call(native_context, ctypes.byref(rows), n_rows.ref))
    return np.asarray(array_interface(native_context, rows.value or 0, (n_rows.value, width), "<f4"))
