"""Scoring drafts on the tokens that were emitted after them, whether they were verified or not.

A draft token that was verified is accepted when the target says it, so both come to the same; and a lookup that is
asked every round is scored for nothing, also while plain decoding is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.draft import Draft, TokenView

_LONGEST = 16  # tokens of a draft that are scored


@dataclass(slots=True)
class _Open:
    """A draft whose end is not known.

    Attributes:
        first: Position of its first token.
        tokens: Its tokens.
        signals: Their signals.
        n_right: How many of them were emitted.
    """

    first: int
    tokens: Sequence[int]
    signals: Sequence[float] | None
    n_right: int = 0


class Scores:
    """Follows one draft of each drafter and sequence at a time.

    Args:
        acceptance: Learns from what becomes of them.
    """

    __slots__ = ("_acceptance", "_open")

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._open: dict[int, dict[str, _Open]] = {}

    def forget(self, seq_id: int) -> None:
        """The sequence has another history now."""
        self._open[seq_id] = {}

    def watch(self, seq_id: int, drafter: str, position: int, draft: Draft) -> None:
        """Follow a draft, unless an earlier one of this drafter is being followed.

        Args:
            seq_id: The sequence.
            drafter: Who made it.
            position: Position of the token that it continues.
            draft: The draft; not empty.
        """
        followed = self._open.setdefault(seq_id, {})
        if drafter not in followed:
            followed[drafter] = _Open(position + 1, draft.tokens[:_LONGEST], draft.signals)

    def follow(self, seq_id: int, tokens: TokenView, pending: int) -> None:
        """Compare the drafts with what a sequence has become."""
        followed = self._open.get(seq_id)
        if not followed:
            return
        position = len(tokens)
        for drafter in list(followed):
            if self._has_ended(seq_id, drafter, followed[drafter], tokens, position, pending):
                del followed[drafter]

    def _has_ended(
        self, seq_id: int, drafter: str, draft: _Open, tokens: TokenView, position: int, pending: int
    ) -> bool:
        learn, signals = self._acceptance.learn, draft.signals
        while draft.n_right < len(draft.tokens):
            i = draft.n_right
            at = draft.first + i
            if at > position:
                return False
            right = (pending if at == position else tokens[at]) == draft.tokens[i]
            learn(seq_id, drafter, i, None if signals is None else signals[i], right=right)
            if not right:
                return True
            draft.n_right += 1
        return True
