"""Files that have an end, and files that are complete or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, AnyStr

from pyspec.config import shown
from pyspec.errors import ConfigError

__all__ = ["read_whole", "refuse_device", "refuse_model", "replace_file", "require_path"]

_LONGEST = 32_767  # characters of a path on any system

_MODEL = b"GGUF"  # how they begin


def read_whole(file: IO[AnyStr]) -> AnyStr:
    """Return what an open file holds; all who read a file that somebody named do it with this, or refuse devices.

    Raises:
        OSError: It cannot be read, or is a device.
    """
    refuse_device(file)
    return file.read()


def refuse_device(file: IO[AnyStr]) -> None:
    """Refuse a device, such as /dev/zero: it may have no end. Pipes and terminals have one.

    Raises:
        OSError: It is one.
    """
    try:
        mode = os.fstat(file.fileno()).st_mode
    except OSError:  # it is none of the system's files
        return
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not file.isatty()):
        raise OSError(errno.EINVAL, "it is a device, not a file", file.name)


def replace_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file, which takes the place of a former one at once, when it is complete and on the disk.

    Whatever ends the process meanwhile, the name leads to the former file or to the new one.

    Args:
        path: The file; where it is a link, what it leads to is replaced.
        parts: Its content.

    Raises:
        OSError: It cannot be written; a former file is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # a device would be replaced, too
        raise OSError(errno.EINVAL, "it is no regular file", str(target))
    refuse_model(target)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    _sync_folder(target.parent)


def refuse_model(path: Path) -> None:
    """Refuse to write over a model: nobody means that, and a process that has mapped the file would crash.

    Raises:
        OSError: There is a GGUF file at the path.
    """
    begins = b""
    with contextlib.suppress(OSError, ValueError):  # writing says what is wrong with the path
        if path.is_file():  # reading anything else may wait for ever
            with path.open("rb") as file:
                begins = file.read(len(_MODEL))
    if begins == _MODEL:
        raise OSError(errno.EEXIST, "it is a GGUF model, and is not replaced", str(path))


def require_path(name: str, path: object) -> Path:
    """Return the path of a file.

    Raises:
        ConfigError: It is none.
    """
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
        os.fsencode(text)
    except (TypeError, UnicodeEncodeError):  # half of a surrogate pair names no file
        text = None
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST or "\0" in text or text.endswith(os.sep):
        msg = f"{name} must be the path of a file, not {shown(path)}."
        raise ConfigError(msg)
    return Path(text)


def _sync_folder(folder: Path) -> None:
    """Force a new name to the disk; what cannot be is left to the system."""
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
