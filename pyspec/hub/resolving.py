"""Turning what a user gave to ``-m`` into the path of a file that exists."""

from __future__ import annotations

import os
from pathlib import Path

from pyspec.config import shown
from pyspec.errors import ConfigError, HubError, ModelNotFoundError
from pyspec.hub import hf
from pyspec.hub.cache import models_dir
from pyspec.hub.catalogue import CATALOGUE, CatalogueModel, lookup
from pyspec.hub.progress import Progress, ignore_progress

__all__ = ["cached_path", "resolve"]


def resolve(name_or_path: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """Find the file that a name stands for.

    An existing file stands for itself. A catalogue name stands for its cached file, which is never
    downloaded here, so that nobody is surprised by traffic. An ``hf:`` name is downloaded unless cached.

    Args:
        name_or_path: A path, a catalogue name, or ``hf:owner/repo/file.gguf``.
        progress: Called as ``progress(done_bytes, total_bytes, stage)`` during a download.

    Raises:
        ModelNotFoundError: No such file, unknown name, or a catalogue model that is not cached.
        ConfigError: A malformed ``hf:`` name, or something else than a name.
        FetchError: The download of an ``hf:`` name failed.
        HubError: The cached file is damaged.
    """
    try:
        path = Path(name_or_path)
    except TypeError:
        msg = f"a model's name must be a string or a path, not {shown(name_or_path)}"
        raise ConfigError(msg) from None
    if progress is not None and not callable(progress):
        msg = f"progress must be a function, not {shown(progress)}"
        raise ConfigError(msg)
    name = os.fspath(name_or_path)
    if name and _is_file(path):
        return path
    if hf.is_hf_name(name):
        file = hf.parse(name)
        return hf.cached(file) or hf.fetch(file, progress=progress or ignore_progress)
    if name in CATALOGUE:
        return _resolve_pinned(CATALOGUE[name])
    if isinstance(name_or_path, str) and not _looks_like_path(name):
        lookup(name)  # raises, with the known names
    what = "that is a folder, not a file" if name and _is_dir(path) else "no such file"
    msg = f"{what}: {shown(name)}"
    raise ModelNotFoundError(msg)


def cached_path(name: str) -> Path | None:
    """Return where a catalogue or ``hf:`` name is cached, or None; nothing is downloaded.

    Only the size is compared; ``fetch`` compares the hash.

    Raises:
        ModelNotFoundError: The name is unknown.
        ConfigError: A malformed ``hf:`` name.
        FetchError: An ``hf:`` name, and the package that reads that cache is not installed.
    """
    if not isinstance(name, str):
        msg = f"a model's name must be a string, not {shown(name)}"
        raise ConfigError(msg)
    if hf.is_hf_name(name):
        return hf.cached(hf.parse(name))
    model = lookup(name)
    path = models_dir() / model.file_name
    return path if _is_file(path) and path.stat().st_size == model.n_bytes else None


def _resolve_pinned(model: CatalogueModel) -> Path:
    path = cached_path(model.name)
    if path is not None:
        return path
    found = models_dir() / model.file_name
    if _is_file(found):
        msg = f"{found} has the wrong size; replace it with: pyspec models fetch {model.name}"
        raise HubError(msg)
    msg = f"{model.name} has not been fetched yet; run: pyspec models fetch {model.name}"
    raise ModelNotFoundError(msg)


def _looks_like_path(name: str) -> bool:
    separators = {"/", os.sep, os.altsep or os.sep}
    return name.lower().endswith(".gguf") or any(separator in name for separator in separators) or _is_dir(Path(name))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or unreadable on the way: nothing that can be used
        return False


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
