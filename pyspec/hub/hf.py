"""Models on the Hugging Face Hub, through the ``huggingface_hub`` package (the optional extra ``hub``).

That package owns the download, its cache and its settings: ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HOME`` and
``HF_HUB_OFFLINE`` mean here what they mean everywhere else.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyspec.config import shown
from pyspec.errors import ConfigError, FetchError, IntegrityError
from pyspec.hub.hf_errors import explain
from pyspec.hub.progress import Progress, ignore_progress
from pyspec.hub.verify import require_sha256

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HfFile", "cached", "fetch", "is_hf_name", "parse"]

_PREFIX = "hf:"
_FORM = "hf:owner/repo/path/to/file.gguf, with an optional @revision at its end"
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"hf:({_PART}/{_PART})/((?:[^/@]+/)*[^/]+\.gguf)(?:@([^@\s]+))?", re.IGNORECASE)
_SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HfFile:
    """A file in a repository of the hub."""

    repo: str
    path: str
    revision: str | None = None

    def __str__(self) -> str:
        """Return the name that a user would write."""
        return f"{_PREFIX}{self.repo}/{self.path}" + (f"@{self.revision}" if self.revision else "")


def is_hf_name(name: str) -> bool:
    """Tell whether a name asks for the hub."""
    return name.startswith(_PREFIX)


def parse(name: str) -> HfFile:
    """Take an ``hf:`` name apart.

    Raises:
        ConfigError: The name is malformed; the message shows the accepted form.

    Example:
        >>> parse("hf:owner/repo/folder/model.gguf@v1")
        HfFile(repo='owner/repo', path='folder/model.gguf', revision='v1')
    """
    match = _NAME.fullmatch(name)
    if match is None or {"", ".", ".."} & set(match[2].split("/")):
        msg = f"malformed name {shown(name)}; write {_FORM}"
        raise ConfigError(msg)
    return HfFile(repo=match[1], path=match[2], revision=match[3])


def cached(file: HfFile) -> Path | None:
    """Return where the hub's own cache holds a file, or None; nothing is downloaded.

    Raises:
        FetchError: ``huggingface_hub`` is not installed, or does not allow such a name.
    """
    hub = _import_hub(file)
    paths = [path for part in _all_parts(file) if (path := _cached_part(hub, part)) is not None]
    return paths[0] if len(paths) == len(_all_parts(file)) else None


def fetch(file: HfFile, *, force: bool = False, progress: Progress = ignore_progress) -> Path:
    """Download a file into the hub's own cache, and the other parts of a split model with it.

    Args:
        file: Which file.
        force: Download again what is already cached.
        progress: Called as ``progress(done_bytes, total_bytes, stage)``, for one part after the other.

    Returns:
        The path of the file, or of the first part of a split model.

    Raises:
        FetchError: The package is missing or the download failed; the message gives the reason.
        IntegrityError: A large file's hash is not the one that the hub announced.
    """
    hub = _import_hub(file)
    paths = [_fetch_part(hub, part, force=force, progress=progress) for part in _all_parts(file)]
    return paths[0]


def _all_parts(file: HfFile) -> list[HfFile]:
    """List the parts of a split model, whichever part was named; llama.cpp finds them beside the first."""
    match = _SPLIT.fullmatch(file.path)
    if match is None:
        return [file]
    n_parts = int(match[2])
    return [replace(file, path=f"{match[1]}-{index:05}-of-{n_parts:05}.gguf") for index in range(1, n_parts + 1)]


def _cached_part(hub: ModuleType, file: HfFile) -> Path | None:
    try:
        answer = hub.try_to_load_from_cache(file.repo, file.path, revision=file.revision)
    except ValueError as error:  # a name that the hub does not allow
        raise explain(error, str(file)) from error
    # Beside a path and None, the hub answers with a marker object: known not to exist.
    return Path(answer) if isinstance(answer, str) else None


def _fetch_part(hub: ModuleType, file: HfFile, *, force: bool, progress: Progress) -> Path:
    fresh = force or _cached_part(hub, file) is None
    options: dict[str, Any] = {"revision": file.revision, "force_download": force}
    if "tqdm_class" in inspect.signature(hub.hf_hub_download).parameters:
        options["tqdm_class"] = _reporting_bar(progress)
    progress(0, 0, "downloading")
    were_disabled = hub.utils.are_progress_bars_disabled()
    hub.utils.disable_progress_bars()  # versions that do not know tqdm_class would draw over the caller's bar
    try:
        path = Path(hub.hf_hub_download(file.repo, file.path, **options))
    except Exception as error:  # its HTTP library, which differs between versions, raises through it
        raise explain(error, str(file)) from error
    finally:
        if not were_disabled:
            hub.utils.enable_progress_bars()
    if fresh:
        _verify_blob(path, progress=progress)
    return path


def _verify_blob(path: Path, *, progress: Progress) -> None:
    """Check a downloaded file against the hash in its name, where it has one.

    In the hub's cache a file is a link to ``blobs/ETAG``, and the ETag of a large file is its sha256. Only
    one link is followed: what lies behind it may be a shared store with names of another kind.
    """
    if not path.is_symlink():
        return
    blob = path.parent / path.readlink()
    if blob.parent.name != "blobs" or not _SHA256.fullmatch(blob.name):
        return
    try:
        require_sha256(blob, blob.name, n_bytes=blob.stat().st_size, progress=progress)
    except IntegrityError as error:
        blob.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        msg = f"{path.name} arrived damaged and was removed ({error}); fetch it again"
        raise IntegrityError(msg) from error


def _import_hub(file: HfFile) -> ModuleType:
    try:
        import huggingface_hub  # noqa: PLC0415 - an optional extra, and slow to import
        import huggingface_hub.utils  # noqa: PLC0415
    except ImportError as error:
        msg = (
            f"{file} needs the package huggingface_hub ({error}); run: pip install 'pyspec-llama[hub]',"
            " or download the file by other means and give its path"
        )
        raise FetchError(msg) from error
    return huggingface_hub


class _Bar:
    """What the hub takes for a progress bar; it passes the numbers on instead of drawing them."""

    def __init__(self, *_args: object, total: float | None = None, initial: float = 0, **_options: object) -> None:
        self.total = total
        self.n = initial
        self.format_dict: dict[str, Any] = {"rate": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def update(self, n: float | None = 1) -> None:
        self.n += n or 0
        total = int(self.total or 0)
        self.report(min(int(self.n), total) if total else int(self.n), total)

    def report(self, done_bytes: int, total_bytes: int) -> None:
        """Tell whoever listens; a subclass knows who that is."""

    def update_transfer(self, n: float) -> None:
        """Ignore bytes on the wire: ``update`` already counts the bytes of the file."""

    def set_postfix_str(self, *_args: object, **_options: object) -> None:
        """Ignore decoration."""

    def set_description(self, *_args: object, **_options: object) -> None:
        """Ignore decoration."""

    def refresh(self, *_args: object, **_options: object) -> None:
        """Draw nothing."""

    def close(self) -> None:
        """Hold nothing that needs closing."""


def _reporting_bar(progress: Progress) -> type[_Bar]:
    """Make the class that the hub will build its bars from."""

    class ReportingBar(_Bar):
        def report(self, done_bytes: int, total_bytes: int) -> None:
            progress(done_bytes, total_bytes, "downloading")

    return ReportingBar
