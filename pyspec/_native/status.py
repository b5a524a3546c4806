"""The one place where a status becomes an exception, and where llama.cpp's log reaches Python."""

from __future__ import annotations

import enum
import logging

from pyspec import errors
from pyspec._native import log
from pyspec._native.library import lib


class Status(enum.IntEnum):
    """``pys_status``."""

    OK = 0
    ARGUMENT = 1
    BUFFER = 2
    MODEL_LOAD = 3
    CANCELLED = 4
    QUANTIZE = 5
    VOCAB = 6
    CONTEXT_CREATE = 7
    CONTEXT_FULL = 8
    BATCH = 9
    ABORTED = 10
    DECODE = 11
    NO_MEMORY = 12
    REFUSED = 13
    STATE = 14
    OUT_OF_MEMORY = 15
    EXCEPTION = 16
    ASSERT = 17
    LOGGED = 18


_EXCEPTIONS: dict[int, type[errors.PyspecError]] = {
    Status.ARGUMENT: errors.ConfigError,
    Status.BUFFER: errors.NativeError,
    Status.MODEL_LOAD: errors.ModelLoadError,
    Status.CANCELLED: errors.LoadCancelledError,
    Status.QUANTIZE: errors.QuantizeError,
    Status.VOCAB: errors.VocabError,
    Status.CONTEXT_CREATE: errors.ContextCreateError,
    Status.CONTEXT_FULL: errors.ContextFullError,
    Status.BATCH: errors.BatchError,
    Status.ABORTED: errors.DecodeAbortedError,
    Status.DECODE: errors.DecodeError,
    Status.NO_MEMORY: errors.UnsupportedError,
    Status.REFUSED: errors.RollbackError,
    Status.STATE: errors.StateError,
    Status.OUT_OF_MEMORY: errors.OutOfMemoryError,
    Status.EXCEPTION: errors.NativeError,
    Status.ASSERT: errors.NativeError,
}


def check(status: int, doing: str = "") -> None:
    """Raise the exception that belongs to a status; log what waits where it is no failure.

    Args:
        status: What a ``pys_*`` function returned.
        doing: What was asked, for the message ("load model x.gguf").

    Raises:
        PyspecError: The class depends on the status.
    """
    if not status:
        return
    if status == Status.LOGGED:
        log.forward_pending()
        return
    text = lib().pys_last_error().decode(errors="replace") or Status(status).name.lower()
    log.forward_pending(at_most=logging.DEBUG if status == Status.ABORTED else logging.CRITICAL)
    raise _EXCEPTIONS[status](f"Could not {doing}: {text}" if doing else text)
