"""Signals that end a command go the way of Ctrl-C, so that what there is by then is printed and saved.

1. The first one raises ``KeyboardInterrupt``, wherever the command is.
2. The next ones find it ending, and change nothing: a terminal that closes may say so twice, and who presses Ctrl-C
   twice at once means the same by both. Who presses it later insists, and it raises again.
3. Where the exception is lost, as in a finaliser, nobody needs to read of it, and the signal does not count.
4. When the command has ended, only its process is left, and all of them are ignored: an exception in what Python does
   then would be a traceback on the screen, and nothing else.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_ENDING = [  # Windows has no SIGHUP
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_AT_ONCE = 1.0  # seconds between two signals that mean the same
_raised: list[tuple[int, float]] = []  # the signals that did, and when


def exit_code(number: int | None = None) -> int:
    """Return the exit code of a command that a signal ended, as shells have it.

    Args:
        number: The signal; None: the one that raised ``KeyboardInterrupt``.
    """
    if number is None:
        number = _raised[0][0] if _raised else signal.SIGINT
    return 128 + number


@contextlib.contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Run the command of this process, which ends with it.

    A signal that is ignored, as by nohup, stays ignored, and one that is handled already stays so meanwhile.
    """
    _raised.clear()
    if threading.current_thread() is not threading.main_thread():  # no other may say what signals do
        yield
        return
    for number in _ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    before = sys.unraisablehook
    sys.unraisablehook = partial(_lose, before)
    try:
        yield
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        sys.unraisablehook = before


def _end(number: int, _frame: FrameType | None) -> None:
    now = time.monotonic()
    if not _raised or (number == signal.SIGINT and now > _raised[-1][1] + _AT_ONCE):
        _raised.append((number, now))
        raise KeyboardInterrupt


def _lose(report: Callable[[UnraisableHookArgs], object], lost: UnraisableHookArgs) -> None:
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        report(lost)
    elif _raised:
        _raised.pop()
