"""Counts of what followed which n-gram, as sorted columns: small, and quick to save, merge and search.

An *n-gram* is one to four tokens in a row. Here it has four entries, of which the unused ones at its end are -1. Its
*followers* are the tokens that came after it, each with a count; they stand in the order in which they were last
seen, the latest one last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspec.config import MAX_INT32

MAX_N = 4
STATIC_N = 2  # what a static cache is asked with
NO_TOKEN = -1

Ngram = tuple[int, ...]

_pack_ngram = struct.Struct(f">{MAX_N}i").pack


@dataclass(frozen=True, slots=True)
class NgramCounts:
    """Each n-gram once, in the order of its bytes, with its followers.

    Attributes:
        keys: The n-grams as big-endian bytes, so that they can be sorted and searched as they are, [n_ngrams] S16.
        ends: Where the followers of each n-gram end in the next two columns, [n_ngrams] int64.
        tokens: The followers, [n_followers] int32.
        counts: How often each was seen, 1 to 2**31 - 1, [n_followers] int32.
    """

    keys: npt.NDArray[np.bytes_]
    ends: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]

    @property
    def ngrams(self) -> npt.NDArray[np.int32]:
        """The n-grams, [n_ngrams, 4]."""
        return self.keys.view(">i4").reshape(-1, MAX_N).astype(np.int32)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many followers each n-gram has, [n_ngrams]."""
        return np.diff(self.ends, prepend=0)

    @property
    def largest_token(self) -> int:
        """The largest token id, -1 when there is none."""
        return max(int(self.ngrams.max(initial=NO_TOKEN)), int(self.tokens.max(initial=NO_TOKEN)))

    def get(self, ngram: Ngram) -> tuple[list[int], list[int]] | None:
        """Return the followers of an n-gram and their counts, or None when it was never seen."""
        try:
            key = _pack_ngram(*ngram, *(NO_TOKEN,) * (MAX_N - len(ngram)))
        except struct.error:  # a token that no file can hold
            return None
        i = int(self.keys.searchsorted(key))
        if self.keys[i : i + 1].tobytes() != key:
            return None
        first, end = int(self.ends[i - 1]) if i else 0, int(self.ends[i])
        return self.tokens[first:end].tolist(), self.counts[first:end].tolist()


def sum_rows(
    ngrams: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
) -> NgramCounts:
    """Sort rows, and add up those of the same n-gram and follower; a later row was seen later.

    Args:
        ngrams: The n-gram of each row, [n_rows, 4].
        tokens: What followed, [n_rows].
        counts: How often, at least 1, [n_rows]. A sum above 2**31 - 1 becomes that.
    """
    rows = as_keys(np.column_stack((ngrams, tokens)))
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    starts = np.flatnonzero(_is_new(rows))
    last_rows = order[np.append(starts, len(rows))[1:] - 1]
    sums = np.add.reduceat(counts[order], starts, dtype=np.int64) if len(starts) else np.empty(0, np.int64)
    columns = rows[starts].view(">i4").reshape(-1, MAX_N + 1)
    keys = as_keys(columns[:, :MAX_N])
    is_new = _is_new(keys)
    by_time = np.lexsort((last_rows, np.cumsum(is_new)))  # within each n-gram
    return NgramCounts(
        keys=keys[is_new],
        ends=np.append(np.flatnonzero(is_new), len(keys))[1:],
        tokens=columns[by_time, MAX_N].astype(np.int32),
        counts=np.minimum(sums[by_time], MAX_INT32).astype(np.int32),
    )


def merged(parts: Iterable[NgramCounts]) -> NgramCounts:
    """Add up several counts; a later part was seen later."""
    found = list(parts)
    if not found:
        return sum_rows(np.empty((0, MAX_N), np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
    if len(found) == 1:
        return found[0]
    return sum_rows(
        np.concatenate([np.repeat(part.ngrams, part.sizes, axis=0) for part in found]),
        np.concatenate([part.tokens for part in found]),
        np.concatenate([part.counts for part in found]),
    )


def as_keys(tokens: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.bytes_]:
    """Return each row of tokens as big-endian bytes: [n, width] becomes [n]."""
    width = tokens.shape[1]
    return np.ascontiguousarray(tokens, ">i4").view(f"S{4 * width}").reshape(-1)


def _is_new(sorted_keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Return which of sorted keys differ from the one before, [n]."""
    is_new = np.ones(len(sorted_keys), np.bool_)
    is_new[1:] = sorted_keys[1:] != sorted_keys[:-1]
    return is_new
