"""Files that drafters keep: one that is damaged is noticed, and one that is written appears when it is complete.

24 bytes stand in front of the content::

    magic         8 bytes
    version       uint32, 1
    checksum      uint32, CRC-32 of the content
    n_bytes       uint64, length of the content

The last byte of the magic's first integer is above 127, so that no row of little-endian token ids begins with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspec.errors import ConfigError, NgramFileError, TokenError
from pyspec.files import replace_file
from pyspec.locking import hold_lock

_logger = logging.getLogger(__name__)

VERSION = 1
_HEADER = struct.Struct("<8sIIQ")
_MAX_BYTES = 1 << 32  # larger than any useful file; more may not fit into memory


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file.

    Attributes:
        name: What messages call it.
        article: "a" or "an".
        magic: How it begins, 8 bytes.
    """

    name: str
    article: str
    magic: bytes

    def read_bytes(self, path: Path) -> memoryview:
        """Return a file's bytes, whatever they are.

        Raises:
            NgramFileError: It cannot be read, is no file, or is too large.
        """
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe or a device may have no end
                msg = f"{path} is not a file."
                raise NgramFileError(msg)
            if status.st_size > _MAX_BYTES:
                msg = f"{path} has {status.st_size} bytes; {self.article} {self.name} has at most {_MAX_BYTES}."
                raise NgramFileError(msg)
            return memoryview(path.read_bytes())
        except OSError as error:
            msg = f"The {self.name} {path} cannot be read: {error.strerror}."
            raise NgramFileError(msg) from error

    def content(self, data: memoryview, path: Path) -> memoryview:
        """Return what follows the header of a file's bytes.

        Raises:
            NgramFileError: They are damaged, or of another kind or version.
        """
        if data[: len(self.magic)] != self.magic:
            raise self.damaged(path, "it does not begin like one")
        if len(data) < _HEADER.size:
            raise self.damaged(path, "it ends within its header")
        _magic, version, checksum, n_bytes = _HEADER.unpack_from(data)
        if version != VERSION:
            msg = f"The {self.name} {path} has version {version}; this pyspec reads version {VERSION}."
            raise NgramFileError(msg)
        content = data[_HEADER.size :]
        if len(content) != n_bytes:
            raise self.damaged(path, f"it has {len(content)} bytes of records instead of {n_bytes}")
        if zlib.crc32(content) != checksum:
            raise self.damaged(path, "its checksum is wrong")
        return content

    def write(self, path: Path, content: bytes) -> None:
        """Write a file, which takes the place of a former one at once, when it is complete.

        Raises:
            NgramFileError: It cannot be written; a former file is as it was.
        """
        try:
            replace_file(path, (_HEADER.pack(self.magic, VERSION, zlib.crc32(content), len(content)), content))
        except OSError as error:
            msg = f"The {self.name} {path} cannot be written: {error.strerror}."
            raise NgramFileError(msg) from error

    @contextlib.contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Let one thread of one process at a time change a file; the others wait. The lock is a file beside it.

        Raises:
            NgramFileError: The lock's file cannot be made.
        """
        target = Path(os.path.realpath(path))
        with contextlib.ExitStack() as stack:
            try:
                alone = stack.enter_context(hold_lock(target.with_name(f".{target.name}.lock"), on_wait=lambda: None))
            except OSError as error:
                reason = error.strerror
                what = f"written: {reason} ({error.filename})" if error.filename else f"locked: {reason}"
                msg = f"The {self.name} {path} cannot be {what}."
                raise NgramFileError(msg) from error
            if not alone:
                _logger.warning("%s is on a file system without locks; do not save to it from several processes.", path)
            yield

    def damaged(self, path: Path, what: str) -> NgramFileError:
        """Return the error for a file that is not as it should be."""
        return NgramFileError(f"{path} is no {self.name}, or it is damaged: {what}.")


def require_folder(option: str, path: str) -> None:
    """Check that a file can be made.

    Raises:
        ConfigError: Nothing can be written to its folder.
    """
    folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - it answers whatever the path is like
    if not os.access(folder, os.W_OK | os.X_OK):
        msg = f"{option} is {path}, but nothing can be written to the folder {folder}."
        raise ConfigError(msg)


def require_tokens(option: str, path: str, largest_token: int, n_vocab: int | None) -> None:
    """Check that a target has the tokens of a file; with ``n_vocab`` None nothing is known of the target.

    Raises:
        TokenError: It has not.
    """
    if n_vocab is not None and largest_token >= n_vocab:
        msg = (
            f"{option} is {path}, which holds the token {largest_token}; the target has the tokens 0 to "
            f"{n_vocab - 1}. It was made with another vocabulary."
        )
        raise TokenError(msg)
