"""What drafters are asked and what they answer."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TokenView = Sequence[int]
"""Read-only tokens; the engine passes its own list, so nothing is copied per round."""


class Needs(enum.Flag):
    """What a drafter reads from the target."""

    NOTHING = 0
    PROMPT = enum.auto()  # observe() is called for prompt pieces
    LAYER_INPUTS = enum.auto()
    NEXT_N = enum.auto()
    LOGITS = enum.auto()


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A question to a drafter.

    Attributes:
        seq_id: The sequence.
        tokens: History without the pending token.
        pending: The token that the draft continues.
        position: Position of the pending token.
        budget: The most tokens that may be proposed, at least 1.
        temperature: The target's, for drafters that sample.
        seed: The target's.
    """

    seq_id: int
    tokens: TokenView
    pending: int
    position: int
    budget: int
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer: the tokens proposed; empty means "not me".

    Attributes:
        tokens: What should follow the pending token.
        probs: Per token the distribution it was drawn from, or None when the draft is deterministic.
    """

    tokens: Sequence[int] = ()
    probs: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedBatch:
    """What the target has just evaluated.

    Attributes:
        tokens: Token per entry.
        positions: Position per entry.
        seq_ids: Sequences per entry.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    seq_ids: Sequence[tuple[int, ...]]


class Drafter(Protocol):
    """Proposes tokens. See the tutorial "Write a drafter".

    Order of calls per sequence: ``begin``, then any number of ``draft``, each followed by ``accept`` when the
    target decided, or by nothing when the round was undone. A drafter may also have ``discard(seq_id)``, which is
    called then; one that keeps a model's memory uses it to drop what it decoded for that draft.

    Attributes:
        name: Such as "ngram-simple".
        n_max: Longest draft it may return.
        needs: What it reads from the target.
    """

    name: str
    n_max: int
    needs: Needs

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """A new request starts; ``tokens`` is its history without the pending token."""
        ...

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this. Called only for drafters that need something."""
        ...

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Return one answer per request, in their order."""
        ...

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """A draft was verified; ``own`` tells whether it was this drafter's."""
        ...

    def save_state(self, seq_id: int) -> bytes | None:
        """Return what must be saved with the sequence, or None."""
        ...

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Take back what ``save_state`` returned."""
        ...

    def close(self) -> None:
        """Free what is held. May be called again."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft and the name of the drafter that made it, None for an empty draft."""

    draft: Draft
    drafter: str | None


NO_DRAFT = Proposal(Draft(), None)


class Proposer(Protocol):
    """What a round asks for drafts; ``pyspec.drafters.Chain`` offers it."""

    @property
    def n_max(self) -> int:
        """The longest draft it may return; 0 for plain decoding."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Proposal]:
        """Return one proposal per request, within its budget."""
        ...

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this."""
        ...

    def accept(self, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        """The target has decided about a proposal that was not empty."""
        ...

    def discard(self, seq_id: int) -> None:
        """The round was undone."""
        ...
