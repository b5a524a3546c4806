"""A lock between processes that the operating system releases when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

__all__ = ["hold_lock"]

_POLL_SECONDS = 0.2
_HELD_ELSEWHERE = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, getattr(errno, "ENOTSUP", errno.EOPNOTSUPP)}

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def hold_lock(path: Path, *, on_wait: Callable[[], None]) -> Generator[bool, None, None]:
    """Hold a lock during the block; closing the file, or dying, releases it.

    The file itself stays: removing it would let two processes lock two files of one name.

    Args:
        path: The lock's file; made if missing.
        on_wait: Called again and again while another process holds the lock.

    Yields:
        Whether the block runs alone; false on a file system without locks.

    Raises:
        OSError: The file cannot be made or opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield _wait_for_lock(descriptor, on_wait)
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, on_wait: Callable[[], None]) -> bool:
    while True:
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                return False
            if error.errno not in _HELD_ELSEWHERE:
                raise
        else:
            return True
        on_wait()
        time.sleep(_POLL_SECONDS)
