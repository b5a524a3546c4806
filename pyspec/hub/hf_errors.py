"""Saying in one line why a download from the Hugging Face Hub failed."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from pyspec.errors import FetchError, HubError

__all__ = ["explain"]

# Classes are told apart by name, because they have moved between modules, and changed their bases, from
# one version of huggingface_hub to the next. The first name found wins, so the special ones come first.
_REASONS = {
    "GatedRepoError": "the repository is gated: accept its conditions on its page, then set HF_TOKEN",
    "DisabledRepoError": "the repository has been disabled",
    "RepositoryNotFoundError": "there is no such repository, or it is private: check the name, or set HF_TOKEN",
    "RevisionNotFoundError": "the repository has no such revision",
    "RemoteEntryNotFoundError": "the repository has no such file",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set and the file is not in the local cache",
    "FileMetadataError": "the server does not answer like the hub: check HF_ENDPOINT and proxies",
    "HFValidationError": "the hub does not allow such a name",
}
_STATUS_REASONS = {
    401: "the server refused the token, or wants one: check HF_TOKEN",
    403: "the server refused access: check HF_TOKEN and the repository's conditions",
    404: "the server has no such file",
}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_UNREACHABLE = {"LocalEntryNotFoundError", "ConnectError", "ConnectionError", "TimeoutException", "TransportError"}


def explain(error: BaseException, name: str) -> HubError:
    """Make the exception to raise for one of ``huggingface_hub``'s.

    Args:
        error: What the download raised.
        name: What was asked for.
    """
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, OSError) and link.errno in _FULL:
            return HubError(f"could not store {name}: no space left; free some, or set HF_HOME to another disk")
        if isinstance(link, OSError) and link.errno in _NOT_WRITABLE:
            return HubError(f"could not store {name}: {link.strerror} ({link.filename}); set HF_HOME to another folder")
    return FetchError(f"could not fetch {name}: {_reason(chain)}")


def _reason(chain: list[BaseException]) -> str:
    names = [{base.__name__ for base in type(link).__mro__} for link in chain]
    for wanted, reason in _REASONS.items():
        if any(wanted in link_names for link_names in names):
            return reason
    for link, link_names in zip(chain, names, strict=True):
        if "EntryNotFoundError" in link_names and "LocalEntryNotFoundError" not in link_names:
            return _REASONS["RemoteEntryNotFoundError"]  # older versions have one class for both
        status = getattr(getattr(link, "response", None), "status_code", None)
        if isinstance(status, int):
            return _STATUS_REASONS.get(status, f"the server answered with status {status}")
    cause = _first_line(chain[-1])
    if any(_UNREACHABLE & link_names for link_names in names):
        return f"the hub could not be reached and the file is not in the local cache ({cause}); check the network"
    return cause


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Walk from an exception to what caused it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
