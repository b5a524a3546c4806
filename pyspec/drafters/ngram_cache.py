"""ngram-cache: the most frequent follower of the last tokens, by three caches of n-gram counts.

*context cache*: the n-grams of this request, its prompt included. *Dynamic cache*: those of former requests, kept in a
file. *Static cache*: those of a large text, which only pairs of tokens are taken from. For each drafted token::

    context   longest n-gram first: its best follower, if the n-gram was followed often enough, and by it often enough
    dynamic   the same, with stricter thresholds
    static    the last two tokens alone

The best follower is the one with the largest count, multiplied by 100 times its count in the static cache where that
knows it after the last two tokens. Equal ones: the higher count, then the more recently seen.

The rule and its thresholds are llama.cpp's ``common_ngram_cache_draft``. Its faults are not: n-grams may reach over
rounds, a new request forgets the former one, ties do not depend on a hash, and the dynamic cache is saved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspec.config import require_int
from pyspec.drafters import ngram_file
from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.checked_file import require_folder, require_tokens
from pyspec.drafters.ngram_counts import MAX_N, STATIC_N, Ngram
from pyspec.drafters.ngram_table import Followers, Table, count_of, time_of
from pyspec.drafters.registry import Resources
from pyspec.errors import ConfigError
from pyspec.files import require_path
from pyspec.speculation.draft import Draft, DraftRequest, TokenView

_LONGEST = 1 << 16


class _Threshold(NamedTuple):
    """What makes a follower likely enough: how often its n-gram was followed, and the follower's share of that."""

    total: int
    percent: int

    def is_met(self, followers: Followers, count: int) -> bool:
        return followers.total >= self.total and 100 * count >= self.percent * followers.total


# per n-gram size, 1 to 4
_CONTEXT = (_Threshold(2, 66), _Threshold(2, 50), _Threshold(1, 50), _Threshold(1, 50))
_DYNAMIC = (_Threshold(4, 75), _Threshold(3, 66), _Threshold(2, 66), _Threshold(2, 66))
_STATIC = _Threshold(2, 50)


class _Found(NamedTuple):
    """A likely follower, the n-gram it follows, and when that was last seen."""

    ngram: Ngram
    token: int
    time: int


def _find(table: Table, window: Ngram, thresholds: Sequence[_Threshold], static: Followers | None) -> _Found | None:
    """Return the likely follower of the longest n-gram at the end of the window that has one."""
    for n in range(len(window), 0, -1):
        followers = table.get(window[-n:])
        if followers is None:
            continue
        token, rank = followers.choose(static)
        if thresholds[n - 1].is_met(followers, count_of(rank)):
            return _Found(window[-n:], token, time_of(rank))
    return None


class _Context:
    """The n-grams of one request. A follower's time is its position, so what is found can be looked up there.

    Attributes:
        table: What followed which n-gram.
        window: The last tokens seen, at most four.
    """

    __slots__ = ("_n_seen", "table", "window")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.table = Table()
        self.window: Ngram = ()
        self._n_seen = 0

    def follow(self, tokens: TokenView, pending: Ngram = ()) -> None:
        """Count what was added since the last call; start again when the history is another one.

        Args:
            tokens: The history.
            pending: What comes after it: the pending token, or nothing.
        """
        n_tokens, n_seen = len(tokens) + len(pending), self._n_seen
        if _part(tokens, pending, n_seen - len(self.window), n_seen) != self.window:
            self._clear()
            n_seen = 0
        for position in range(n_seen, len(tokens)):
            self._take(tokens[position], position)
        if n_seen < n_tokens and pending:
            self._take(pending[0], len(tokens))
        self._n_seen = n_tokens

    def rebuild(self, tokens: TokenView, pending: Ngram) -> None:
        """Count everything again."""
        self._clear()
        self.follow(tokens, pending)

    def _take(self, token: int, position: int) -> None:
        window, add = self.window, self.table.add
        for n in range(1, len(window) + 1):
            add(window[-n:], token, position)
        self.window = (*window[1 - MAX_N :], token)


class NgramCache(ModelFreeDrafter):
    """Proposes the most frequent followers of the last one to four tokens.

    The context cache is a function of the history, so there is no state to save with a sequence: ``draft`` counts
    whatever part of a history it has not seen. A request enters the dynamic cache when it ends, which is when the next
    one of its sequence begins, or at ``close``, which also saves; what its last round emitted was never seen.

    Args:
        resources: From an engine, to refuse files of another vocabulary. None: what the files hold is proposed.
        n_max: Longest draft.
        static: A file of n-gram counts, to trust or to doubt the other caches by. None: there is none.
        dynamic: A file that keeps what requests consisted of. It is made if missing; what several processes save to
            it is added up. None: nothing is kept.

    Raises:
        ConfigError: An option is wrong, or a path leads nowhere.
        NgramFileError: A file is damaged or cannot be read.
        TokenError: A file has a token that the target has not.
    """

    name = "ngram-cache"
    reads_only = True

    def __init__(
        self,
        *,
        resources: Resources | None = None,
        n_max: int = 8,
        static: str | os.PathLike[str] | None = None,
        dynamic: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_max = require_int("n_max", n_max, 1, _LONGEST)
        self.static = None if static is None else str(require_path("static", static))
        self.dynamic = None if dynamic is None else str(require_path("dynamic", dynamic))
        n_vocab = None if resources is None else resources.target.n_vocab
        if self.static is not None:
            _require_file("static", self.static)
        self._static_table = _loaded("static", self.static, n_vocab)
        if self.dynamic is not None:
            require_folder("dynamic", self.dynamic)
        self._dynamic_table = _loaded("dynamic", self.dynamic, n_vocab)
        self._learned = Table()  # what the dynamic file does not have yet
        self._contexts: dict[int, _Context] = {}

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Forget the former request, apart from what the dynamic cache keeps, and count the new history."""
        self._end(seq_id)
        context = self._contexts[seq_id] = _Context()
        context.follow(tokens)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Look up token after token, until no follower is likely enough."""
        return [self._draft(request) for request in requests]

    def close(self) -> None:
        """Save what the dynamic cache has learned.

        Raises:
            NgramFileError: It cannot be saved. What the file had is still there, and another ``close`` tries again.
            TokenError: A history had a token that no file can hold.
        """
        for seq_id in list(self._contexts):
            self._end(seq_id)
        if self.dynamic is not None and len(self._learned):
            ngram_file.update(Path(self.dynamic), self._learned.to_counts())
            self._learned = Table()

    def _end(self, seq_id: int) -> None:
        """A sequence's request is over: the dynamic cache takes it in."""
        context = self._contexts.pop(seq_id, None)
        if context is not None and self.dynamic is not None:
            self._dynamic_table.merge(context.table)
            self._learned.merge(context.table)

    def _draft(self, request: DraftRequest) -> Draft:
        if request.seq_id not in self._contexts:
            self._contexts[request.seq_id] = _Context()
        context = self._contexts[request.seq_id]
        context.follow(request.tokens, (request.pending,))
        drafted: list[int] = []
        signals: list[float] = []
        window = context.window
        while len(window) > 1 and len(drafted) < min(self.n_max, request.budget):
            token, length = self._next(context, window, request)
            if token is None:
                break
            drafted.append(token)
            signals.append(float(length))
            window = (*window[1 - MAX_N :], token)
        return Draft(tuple(drafted), signals=tuple(signals) if request.wants_signals else None)

    def _next(self, context: _Context, window: Ngram, request: DraftRequest) -> tuple[int | None, int]:
        """Return what is likely to follow the window, or None, and how many tokens that was found by."""
        static = self._static_table.get(window[-STATIC_N:])
        found = _find(context.table, window, _CONTEXT, static)
        if found is not None and not _stands(found, request):  # the history was changed in the middle
            context.rebuild(request.tokens, (request.pending,))
            found = _find(context.table, window, _CONTEXT, static)
        if found is None:
            found = _find(self._dynamic_table, window, _DYNAMIC, static)
        if found is not None:
            return found.token, len(found.ngram)
        if static is not None and _STATIC.is_met(static, count_of(static.rank)):
            return static.best, STATIC_N
        return None, 0


def _stands(found: _Found, request: DraftRequest) -> bool:
    """Return whether a follower stands in the history where it was last seen."""
    first = found.time - len(found.ngram)
    return _part(request.tokens, (request.pending,), first, found.time + 1) == (*found.ngram, found.token)


def _part(tokens: TokenView, pending: Ngram, first: int, end: int) -> Ngram:
    """Return the tokens ``[first, end)`` of a history with the pending token at its end, without copying the rest."""
    part = tuple(tokens[first:end])
    return (*part, *pending) if first <= len(tokens) < end else part


def _require_file(option: str, path: str) -> None:
    """Check that a file exists.

    Raises:
        ConfigError: It does not.
    """
    if not os.path.exists(path):  # noqa: PTH110 - it answers whatever the path is like
        msg = f"{option} is {path}, which does not exist; `pyspec ngram-cache build` makes such a file."
        raise ConfigError(msg)


def _loaded(option: str, path: str | None, n_vocab: int | None) -> Table:
    """Return what a file holds; an empty table where there is none.

    Raises:
        NgramFileError: It is damaged or cannot be read.
        TokenError: It has a token that the target has not.
    """
    if path is None or not os.path.exists(path):  # noqa: PTH110
        return Table()
    counts = ngram_file.read(Path(path))
    require_tokens(option, path, counts.largest_token, n_vocab)
    return Table(counts)
