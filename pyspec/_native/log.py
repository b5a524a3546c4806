"""llama.cpp's log lines as records of the ``pyspec.llama_cpp`` logger.

The native side queues lines (csrc/log.cpp), because they come from any thread and from inside calls
that hold no interpreter lock. Python takes them after the calls that are known to talk (loading, creating, decoding)
and after every failure, so records keep their order and quiet calls stay cheap.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspec._native.buffers import Int32Out, TextBuffer
from pyspec._native.library import lib

_logger = logging.getLogger("pyspec.llama_cpp")
_logger.addHandler(logging.NullHandler())  # quiet unless the application asks for it
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # ggml_log_level
_INFO, _NOTHING = 2, 9
_LONGEST_LINE = 8192
_lock = threading.RLock()  # a signal handler may log while the code it interrupted does
_listeners: list[Callable[[str], None]] = []


@functools.cache
def pending() -> Any:
    """Return the native counter of waiting lines; its ``value`` is read without a call."""
    return lib().pys_log_pending().contents


def sync_threshold() -> None:
    """Let the native side drop the lines that nobody would see."""
    wanted = [level for level, python_level in _LEVELS.items() if _logger.isEnabledFor(python_level)]
    lowest = min(wanted, default=_NOTHING)
    lib().pys_log_threshold(min(lowest, _INFO) if _listeners else lowest)


@contextlib.contextmanager
def listener(function: Callable[[str], None]) -> Iterator[None]:
    """Call ``function`` with each line as well, INFO and above."""
    _listeners.append(function)
    sync_threshold()
    try:
        yield
    finally:
        _listeners.remove(function)
        sync_threshold()


def forward_pending(*, at_most: int = logging.CRITICAL) -> None:
    """Hand queued lines to ``logging``. Costs one memory read when there are none.

    Args:
        at_most: The highest level for any of them: what was asked to stop complains of it.
    """
    if not pending().value:
        return
    text, level = TextBuffer(_LONGEST_LINE), Int32Out()
    while True:
        with _lock:
            lib().pys_log_pop(text.address, text.capacity, text.length.ref, level.ref)
            line = None if text.length.value < 0 else text.text()
        if line is None:
            return
        _logger.log(min(_LEVELS.get(level.value, logging.INFO), at_most), "%s", line)
        for function in tuple(_listeners):
            function(line)


def _new_lock() -> None:
    """Forget a lock that another thread of the parent held when it was forked."""
    global _lock  # noqa: PLW0603 - a process-wide fact
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)
