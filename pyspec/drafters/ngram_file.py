"""Files of n-gram counts: llama.cpp's form is read, and a form of our own that shows damage is read and written.

llama.cpp's form is a row of records of little-endian 32-bit integers, from the first byte to the last::

    n-gram        4 tokens, unused ones at the end are -1
    n_followers   at least 1
    n_followers x (token, count), the count at least 1

It has no mark, no length and no checksum: a file that was cut between two records, or that belongs to something else,
can pass for a good one. Ours has the same records behind the header of ``checked_file``.
"""

from __future__ import annotations

import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspec.drafters.checked_file import VERSION, FileKind
from pyspec.drafters.ngram_counts import MAX_N, NO_TOKEN, NgramCounts, as_keys, merged, sum_rows

_KIND = FileKind("n-gram cache", "an", b"NGR\xc3\r\n\x1a\n")
_N_HEAD = MAX_N + 1  # integers before the followers of a record

locked = _KIND.locked


def read(path: Path) -> NgramCounts:
    """Read a file of either form.

    Raises:
        NgramFileError: It cannot be read, is no n-gram cache, or is damaged.
    """
    data = _KIND.read_bytes(path)
    if not data:  # a cache of nothing in llama.cpp's form, but more likely what a full disk left
        raise _KIND.damaged(path, "it is empty")
    return _parse(_KIND.content(data, path) if data[: len(_KIND.magic)] == _KIND.magic else data, path)


def form_of(path: Path) -> str:
    """Return which form a readable file has: "pyspec 1" or "llama.cpp"."""
    with path.open("rb") as file:
        return f"pyspec {VERSION}" if file.read(len(_KIND.magic)) == _KIND.magic else "llama.cpp"


def write(path: Path, counts: NgramCounts) -> None:
    """Write a file in our form, which takes the place of a former one at once, when it is complete.

    Raises:
        NgramFileError: It cannot be written; a former file is as it was.
    """
    _KIND.write(path, _records(counts).tobytes())


def update(path: Path, learned: NgramCounts) -> None:
    """Add counts to a file, which is made if missing; what others add at the same moment is kept.

    Raises:
        NgramFileError: The file is damaged or cannot be written; it is as it was.
    """
    with locked(path):
        write(path, merged([read(path), learned]) if path.exists() else learned)


def _parse(data: memoryview, path: Path) -> NgramCounts:
    """Return the counts in the records.

    Raises:
        NgramFileError: They are no records, or the last one is cut.
    """
    if len(data) % 4:
        raise _KIND.damaged(path, "its length is no multiple of 4")
    integers = np.frombuffer(data, "<i4").astype(np.int32)
    starts = _starts(integers, path)
    heads = integers[starts[:, None] + np.arange(_N_HEAD)]
    is_head = np.zeros(len(integers), np.bool_)
    is_head[starts[:, None] + np.arange(_N_HEAD)] = True
    followers = integers[~is_head].reshape(-1, 2)
    ngrams, sizes = heads[:, :MAX_N], heads[:, MAX_N]
    _check(ngrams, sizes, followers, path)
    keys = as_keys(ngrams)
    tokens, counts = followers[:, 0].copy(), followers[:, 1].copy()
    if np.all(keys[1:] > keys[:-1]):
        return NgramCounts(keys, np.cumsum(sizes, dtype=np.int64), tokens, counts)
    return sum_rows(np.repeat(ngrams, sizes, axis=0), tokens, counts)


def _starts(integers: npt.NDArray[np.int32], path: Path) -> npt.NDArray[np.int64]:
    """Return where the records begin, [n_ngrams].

    Raises:
        NgramFileError: There are none, or the last one does not end where the file does.
    """
    starts = array.array("q")
    view, n = integers.data, len(integers)
    at = 0
    while at < n:
        n_followers = view[at + MAX_N] if at + MAX_N < n else 0
        if n_followers < 1 or n_followers > (n - at - _N_HEAD) // 2:
            raise _KIND.damaged(path, f"the record at byte {4 * at} of its records is cut or is none")
        starts.append(at)
        at += _N_HEAD + 2 * n_followers
    return np.frombuffer(starts, np.int64) if starts else np.empty(0, np.int64)


def _check(
    ngrams: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], followers: npt.NDArray[np.int32], path: Path
) -> None:
    """Check what the records hold.

    Raises:
        NgramFileError: A number makes no sense; the message says which.
    """
    used = ngrams != NO_TOKEN
    wrong_ngrams = (ngrams < NO_TOKEN).any(axis=1) | ~used[:, 0] | (used[:, 1:] & ~used[:, :-1]).any(axis=1)
    for i in np.flatnonzero(wrong_ngrams)[:1]:
        raise _KIND.damaged(path, f"{ngrams[i].tolist()} is no n-gram")
    for i in np.flatnonzero((followers[:, 0] < 0) | (followers[:, 1] < 1))[:1]:
        token, count = followers[i].tolist()
        ngram = ngrams[np.searchsorted(np.cumsum(sizes), i, side="right")].tolist()
        raise _KIND.damaged(path, f"{ngram} is followed by token {token} {count} times")


def _records(counts: NgramCounts) -> npt.NDArray[np.int32]:
    """Return the records as integers in the file's byte order."""
    sizes = counts.sizes
    starts = _N_HEAD * np.arange(len(sizes)) + 2 * (counts.ends - sizes)
    heads = starts[:, None] + np.arange(_N_HEAD)
    integers = np.empty(_N_HEAD * len(sizes) + 2 * len(counts.tokens), "<i4")
    is_head = np.zeros(len(integers), np.bool_)
    is_head[heads] = True
    integers[heads] = np.column_stack((counts.ngrams, sizes))
    integers[~is_head] = np.column_stack((counts.tokens, counts.counts)).reshape(-1)
    return integers
