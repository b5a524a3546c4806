"""Counting the pairs of tokens of large texts, for a static cache.

A text is read in pieces. A tokenizer may join what stands on both sides of a cut, so a cut is made where none of them
does: between a letter and a single space with a letter behind it. A tokenizer may also treat the beginning of what it
is given in a way of its own (SentencePiece puts a space there), so each later piece gets the word before it back, and
the tokens of that word are dropped again::

    text        one two three four five
    pieces      one two| three four| five
    tokenized   one two|two three four|four five
    dropped             ^^^            ^^^^

Where that does not come out, or where there is no such place for a long time, the text is cut all the same, and no
n-gram reaches over the cut: some are missing then, and at most the tokens beside the cut are not as they should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TextIO

import numpy as np
import numpy.typing as npt

from pyspec.drafters.ngram_counts import MAX_N, NO_TOKEN, STATIC_N, NgramCounts, merged, sum_rows

_PIECE = 1 << 16  # characters
_LONGEST_PIECE = 1 << 20  # without a place to cut
_COUNT_EVERY = 1 << 20  # tokens
_UP_TO_WORD = re.compile(r".*[^\W\d_](?= [^\W\d_])", re.DOTALL)
_LONGEST_WORD = 32  # characters that are given back


class Tokenizer(Protocol):
    """What turns text into tokens, such as a ``pyspec.Vocab``."""

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the tokens of a text; names of special tokens are read as these tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a text.

    Attributes:
        text: At least one character.
        before: The word before it, when no tokenizer joins the two; else nothing.
    """

    text: str
    before: str


def pieces(file: TextIO, size: int = _PIECE, longest: int = _LONGEST_PIECE) -> Iterator[Piece]:
    """Cut a text.

    Args:
        file: Where it is read from.
        size: Characters to read at once.
        longest: Length from which a piece is cut where it should not be.

    Raises:
        UnicodeDecodeError: The file is not in its encoding.
    """
    rest, before = "", ""
    while block := file.read(size):
        rest += block
        found = _UP_TO_WORD.match(rest)
        if found is not None:
            yield Piece(found[0], before)
            rest, before = rest[found.end() :], re.split(r"\W", found[0][-_LONGEST_WORD:])[-1]
        elif len(rest) >= longest:
            yield Piece(rest, before)
            rest, before = "", ""
    if rest:
        yield Piece(rest, before)


class PairCounter:
    """Counts what followed each pair of tokens, in memory for the different ones only.

    Args:
        tokenizer: Turns the pieces into tokens.

    Attributes:
        n_tokens: Tokens counted.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.n_tokens = 0
        self._tokenizer = tokenizer
        self._before: list[int] = []  # the last tokens, for when the next piece joins them
        self._runs: list[npt.NDArray[np.int32]] = []
        self._n_waiting = 0  # tokens in runs
        self._parts: list[NgramCounts] = []

    def add(self, piece: Piece) -> None:
        """Count a piece.

        Raises:
            VocabError: It cannot be tokenised.
        """
        tokens = self._joined_tokens(piece) if piece.before else None
        if tokens is None:
            self._before = []
            tokens = self._tokenizer.tokenize(piece.text, parse_special=True)
        run = [*self._before, *tokens]
        self._before = run[-STATIC_N:]
        self._runs.append(np.array(run, np.int32))
        self.n_tokens += len(tokens)
        self._n_waiting += len(tokens)
        if self._n_waiting >= _COUNT_EVERY:
            self._count_runs()

    def total(self) -> NgramCounts:
        """Return everything counted so far."""
        self._count_runs()
        self._parts = [merged(self._parts)]
        return self._parts[0]

    def _joined_tokens(self, piece: Piece) -> list[int] | None:
        """Return the tokens of a piece that come after the word before it, or None when they cannot be told apart."""
        before = self._tokenizer.tokenize(piece.before, parse_special=True)
        tokens = self._tokenizer.tokenize(piece.before + piece.text, parse_special=True)
        return tokens[len(before) :] if tokens[: len(before)] == before else None

    def _count_runs(self) -> None:
        """Count the runs that wait; parts of a size are merged, so each row is merged a few times only."""
        windows = [
            np.lib.stride_tricks.sliding_window_view(run, STATIC_N + 1) for run in self._runs if len(run) > STATIC_N
        ]
        self._runs, self._n_waiting = [], 0
        if not windows:
            return
        rows = np.concatenate(windows)
        ngrams = np.full((len(rows), MAX_N), NO_TOKEN, np.int32)
        ngrams[:, :STATIC_N] = rows[:, :STATIC_N]
        self._parts.append(sum_rows(ngrams, rows[:, STATIC_N], np.ones(len(rows), np.int32)))
        while len(self._parts) > 1 and 2 * len(self._parts[-1].tokens) >= len(self._parts[-2].tokens):
            self._parts[-2:] = [merged(self._parts[-2:])]
