"""Files of past requests, for the drafter suffix.

The header of ``checked_file`` and one record for each request, the oldest first, in little-endian 32-bit integers::

    n_tokens     at least 1
    tokens       n_tokens of them, -1 for what is no token

The automaton is not saved: it is made again from the requests, and they are a tenth of its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspec.drafters.checked_file import FileKind
from pyspec.llama.batch import NO_TOKEN

Request = npt.NDArray[np.int32]
"""Tokens of a request, [n_tokens]."""

_KIND = FileKind("suffix memory", "a", b"SFX\xc3\r\n\x1a\n")


def read(path: Path) -> list[Request]:
    """Return the requests in a file, the oldest first.

    Raises:
        NgramFileError: It cannot be read, is no such file, or is damaged.
    """
    content = _KIND.content(_KIND.read_bytes(path), path)
    if len(content) % 4:
        raise _KIND.damaged(path, "its length is no multiple of 4")
    integers = np.frombuffer(content, "<i4").astype(np.int32)
    requests: list[Request] = []
    first = 0
    while first < len(integers):
        end = first + 1 + int(integers[first])
        if not first + 1 < end <= len(integers) or integers[first + 1 : end].min() < NO_TOKEN:
            raise _KIND.damaged(path, f"the record at byte {4 * first} of its records is cut or is none")
        requests.append(integers[first + 1 : end])
        first = end
    return requests


def write(path: Path, requests: Iterable[Request]) -> None:
    """Write a file, which takes the place of a former one at once, when it is complete.

    Raises:
        NgramFileError: It cannot be written; a former file is as it was.
    """
    records = chain.from_iterable((np.array([len(request)]), request) for request in requests)
    integers = np.concatenate([np.empty(0, np.int32), *records])
    _KIND.write(path, integers.astype("<i4").tobytes())


def update(path: Path, requests: Sequence[Request], max_tokens: int) -> None:
    """Add requests to a file, which is made if missing; what others add at the same moment is kept.

    Args:
        path: The file.
        requests: None of them empty.
        max_tokens: What does not fit is dropped, the oldest requests first.

    Raises:
        NgramFileError: The file is damaged or cannot be written; it is as it was.
    """
    with _KIND.locked(path):
        former = read(path) if path.exists() else []
        write(path, newest([*former, *requests], max_tokens))


def newest(requests: Sequence[Request], max_tokens: int) -> list[Request]:
    """Return the last requests that have no more than so many tokens together; of one that has more, the end."""
    ends = [request[-max_tokens:] for request in requests]
    n_tokens = np.cumsum([len(request) for request in reversed(ends)])
    n_kept = int(np.searchsorted(n_tokens, max_tokens, side="right"))
    return ends[len(ends) - n_kept :]
