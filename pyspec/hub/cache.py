"""The cache folder, and how a file gets into it without ever being visible half made.

Everything is made inside a *workspace*: a hidden folder beside the models, on the same file system, so
that one rename publishes the finished file. A workspace belongs to whoever holds the lock of its name:

1. the lock is the operating system's, so it goes away with its process, also after ``kill -9``;
2. whoever gets the lock owns that name alone, so each workspace found then was left by a dead process
   and is removed;
3. where the file system has no locks, two fetches may do the same work at the same time. Each has a
   workspace of its own and the last rename wins, with the same bytes; nothing is removed, since a
   workspace found there may be alive.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from pyspec.errors import HubError, PyspecError
from pyspec.folders import cache_dir
from pyspec.locking import hold_lock

__all__ = ["cache_dir", "explain_os_errors", "models_dir", "publish", "require_space", "workspace"]


def models_dir() -> Path:
    """Return the folder that fetched models live in; it need not exist yet."""
    return cache_dir() / "models"


@contextlib.contextmanager
def explain_os_errors(doing: str) -> Generator[None, None, None]:
    """Turn an operating system's error inside the block into a HubError that says what to do.

    Raises:
        HubError: The block raised an OSError.
    """
    try:
        yield
    except PyspecError:  # some of ours are an OSError too, and already explained
        raise
    except OSError as error:
        hint = ""
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = "; free some space, or set PYSPEC_CACHE to a folder on another disk"
        elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}:
            hint = "; set PYSPEC_CACHE to a folder that you can write to"
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        msg = f"{doing}: {reason}{where}{hint}"
        raise HubError(msg) from error


@contextlib.contextmanager
def workspace(folder: Path, name: str, *, on_wait: Callable[[], None]) -> Generator[Path, None, None]:
    """Hold the lock of a name and yield an empty folder, which is removed at the end.

    Args:
        folder: Where the finished file will be published; made if missing.
        name: What is being made; two workspaces of one name never overlap.
        on_wait: Called again and again while another process holds the lock.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix = f".{name}.tmp-"
    with hold_lock(folder / f".{name}.lock", on_wait=on_wait) as alone:
        if alone:
            for stale in folder.glob(f"{prefix}*"):
                shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def require_space(folder: Path, n_bytes: int) -> None:
    """Refuse early what cannot fit.

    Raises:
        OSError: Less than ``n_bytes`` are free on the disk of ``folder``.
    """
    n_free = shutil.disk_usage(folder).free
    if n_free < n_bytes:
        need, free = n_bytes / 1e6, n_free / 1e6
        raise OSError(errno.ENOSPC, f"{need:.0f} MB are needed on the disk and {free:.0f} MB are free", str(folder))


def publish(finished: Path, target: Path) -> None:
    """Give a finished file its final name, all at once.

    The caller has already forced the file's bytes to the disk; this does the same for its name.

    Raises:
        OSError: The rename failed; ``target`` is as it was.
    """
    finished.replace(target)
    if sys.platform != "win32":  # Windows cannot open a folder
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
