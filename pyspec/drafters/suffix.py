"""suffix: the most frequent continuation of the longest end of the text that occurred before.

The text is the request's, its prompt included. Let the last ``length`` tokens be the longest end of it that also occurs
before. Then the token that followed these most often is proposed, then the one that most often followed these and the
proposed one, and so on. Of equally frequent ones the most recent is proposed. A token's *share* is its count among
those of all tokens that followed the same context. The draft ends where

* it has ``min(n_max, factor * length)`` tokens: what matches longer is believed further; or where
* the product of the shares would fall below ``p_min``: what went on in several ways is believed less.

These two limits are those of SuffixDecoding (Oliaro et al., 2024). Nothing is searched: see ``suffix_automaton``.

With ``share`` the same is looked up in past requests, too, and the longer match wins, the request's own when both are
equal. It is off by default, because what one request said would be proposed in another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyspec.config import require_bool, require_float, require_int
from pyspec.drafters import suffix_file
from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.checked_file import require_folder, require_tokens
from pyspec.drafters.registry import Resources
from pyspec.drafters.suffix_automaton import SuffixAutomaton
from pyspec.drafters.suffix_memory import Place, SuffixMemory
from pyspec.errors import ConfigError
from pyspec.files import require_path
from pyspec.speculation.draft import Draft, DraftRequest, TokenView

_LONGEST = 1 << 16
_MAX_FACTOR = 1 << 10
_MAX_TOKENS = 1 << 26
_N_COMPARED = 8  # tokens at the end of what was read, to notice that a history is another one


@dataclass(slots=True)
class _Seat:
    """One sequence.

    Attributes:
        automaton: Of its text, the pending token included.
        places: Where that text is in past requests.
        n_given: Tokens at the beginning that past requests have already.
    """

    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    places: list[Place] = field(default_factory=list)
    n_given: int = 0


class Suffix(ModelFreeDrafter):
    """Proposes the most frequent continuation of the longest match.

    The automaton is a function of the history, so there is no state to save with a sequence. It takes about 230 bytes
    for each token of the history. With ``share`` a request is remembered when it ends, all but its last token, and
    ``close`` saves; one that failed is remembered when the next one of its sequence begins.

    Args:
        resources: From an engine, to refuse a file of another vocabulary. None: what the file holds is proposed.
        n_max: Longest draft.
        n_min: A shorter draft is not proposed.
        n_match: A shorter match is not used.
        factor: Tokens drafted for each token of the match.
        p_min: Drafting stops before the product of the tokens' shares is lower.
        share: Remember requests, and propose what past ones said, whoever sent them.
        max_tokens: How much of past requests is remembered; the oldest are forgotten first.
        file: Where past requests are kept; it needs ``share``. It is made if missing; what several processes save to it
            is all kept, up to ``max_tokens``. None: they are forgotten at ``close``.

    Raises:
        ConfigError: An option is wrong, or the path leads nowhere.
        NgramFileError: The file is damaged or cannot be read.
        TokenError: The file has a token that the target has not.
    """

    name = "suffix"
    reads_only = True

    def __init__(  # noqa: PLR0913 - each is an option by its own name
        self,
        *,
        resources: Resources | None = None,
        n_max: int = 32,
        n_min: int = 0,
        n_match: int = 2,
        factor: float = 0.5,
        p_min: float = 0.5,
        share: bool = False,
        max_tokens: int = 1 << 18,
        file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.n_max = require_int("n_max", n_max, 1, _LONGEST)
        self.n_min = require_int("n_min", n_min, 0, self.n_max)
        self.n_match = require_int("n_match", n_match, 1, _LONGEST)
        self.factor = require_float("factor", factor, 0.0, _MAX_FACTOR)
        self.p_min = require_float("p_min", p_min, 0.0, 1.0)
        self.share = require_bool("share", share)
        self.max_tokens = require_int("max_tokens", max_tokens, 2, _MAX_TOKENS)
        self.file = None if file is None else str(require_path("file", file))
        if self.file is not None and not self.share:
            msg = f"file is {self.file}, but past requests are only kept with share on; set share, or leave file out."
            raise ConfigError(msg)
        self._seats: dict[int, _Seat] = {}
        self._memory = SuffixMemory(self.max_tokens) if self.share else None
        self._learned: list[suffix_file.Request] = []  # what the file does not have yet
        if self.file is not None:
            require_folder("file", self.file)
            self._load(Path(self.file), None if resources is None else resources.target.n_vocab)

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Read a new history; if it begins with all of the former one, only what is new."""
        former = self._leave(seq_id)
        n_same = _common_length(former.automaton.text, tokens)
        keeps = n_same == len(former.automaton)
        seat = self._seats[seq_id] = former if keeps else _Seat(n_given=min(n_same, former.n_given))
        seat.automaton.extend(tokens[len(seat.automaton) :])

    def end(self, seq_id: int, tokens: TokenView) -> None:
        """A request is over: past requests take in what they do not have of it."""
        seat = self._seats.get(seq_id)
        if self._memory is None or seat is None:
            return
        automaton = seat.automaton
        n_read = len(automaton)
        if automaton.text[-_N_COMPARED:].tolist() == [*tokens[max(0, n_read - _N_COMPARED) : n_read]]:
            automaton.extend(tokens[n_read:])
        self._learn(seat)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Look up the end of each text."""
        return [self._draft(request) for request in requests]

    def close(self) -> None:
        """Save what was learned.

        Raises:
            NgramFileError: It cannot be saved. What the file had is still there, and another ``close`` tries again.
        """
        for seq_id in list(self._seats):
            self._leave(seq_id)
        if self.file is not None and self._learned:
            suffix_file.update(Path(self.file), self._learned, self.max_tokens)
            self._learned = []

    def _load(self, path: Path, n_vocab: int | None) -> None:
        """Remember the requests in a file, if there is one."""
        if self._memory is None or not os.path.exists(path):  # noqa: PTH110 - it answers whatever the path is like
            return
        for request in suffix_file.newest(suffix_file.read(path), self.max_tokens):
            require_tokens("file", str(path), int(request.max()), n_vocab)
            self._memory.add(request.tolist())

    def _leave(self, seq_id: int) -> _Seat:
        """Return what a sequence was before another text; a request of it that nobody ended is over now."""
        seat = self._seats.pop(seq_id, None) or _Seat()
        self._learn(seat)
        return seat

    def _learn(self, seat: _Seat) -> None:
        """Take in what past requests do not have of a text."""
        text = seat.automaton.text
        if self._memory is not None and seat.n_given < len(text):
            said = text[seat.n_given :]
            self._memory.add(said)
            if self.file is not None:
                self._learned = suffix_file.newest([*self._learned, np.array(said, np.int32)], self.max_tokens)
            seat.n_given = len(text)

    def _draft(self, request: DraftRequest) -> Draft:
        seat = self._read(request)
        automaton = seat.automaton
        match = automaton.match
        if self._memory is not None:
            remembered, found = self._memory.find(automaton.text, seat.places)
            if found.length > match.length:
                automaton, match = remembered, found
        limit = min(self.n_max, request.budget)
        wanted = request.drafting
        n_min = self.n_min if wanted.n_min is None else min(wanted.n_min, limit)
        n_tokens = min(limit, int(self.factor * match.length))
        if match.length < self.n_match or n_tokens < n_min:
            return Draft()
        drafted, sure = automaton.follow(match, n_tokens, self.p_min if wanted.p_min is None else wanted.p_min)
        if len(drafted) < n_min:
            return Draft()
        return Draft(tuple(drafted), signals=sure if request.wants_signals else None)

    def _read(self, request: DraftRequest) -> _Seat:
        """Return a request's seat, when it has read what is new of the text; another text it reads from the start."""
        seat = self._seats.get(request.seq_id)
        if seat is None or not _goes_on(seat.automaton, request):
            self.begin(request.seq_id, request.tokens)
            seat = self._seats[request.seq_id]
        automaton = seat.automaton
        automaton.extend(request.tokens[len(automaton) :])
        if len(automaton) == len(request.tokens):
            automaton.append(request.pending)
        return seat


def _goes_on(automaton: SuffixAutomaton, request: DraftRequest) -> bool:
    """Return whether a text begins with what was read, judged by the end of that."""
    n_read, tokens = len(automaton), request.tokens
    end = automaton.text[-_N_COMPARED:].tolist()
    there = [*tokens[n_read - len(end) : n_read]]
    if n_read == len(tokens) + 1:
        there.append(request.pending)
    return there == end


def _common_length(text: Sequence[int], tokens: TokenView) -> int:
    """Return how many tokens at the beginning are the same."""
    n_both = min(len(text), len(tokens))
    return next((i for i in range(n_both) if text[i] != tokens[i]), n_both)
