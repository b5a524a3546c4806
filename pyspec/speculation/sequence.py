"""The state of one running sequence."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from pyspec.speculation.draft import FREELY, Drafting
from pyspec.speculation.ending import Ending

if TYPE_CHECKING:
    from pyspec.speculation.accept import AcceptRule


class Sampler(Protocol):
    """How the target chooses a token. Its state holds exactly the tokens that were emitted."""

    def sample(self, rows: Any, i: int) -> int:
        """Choose a token from row i and take it into the state."""
        ...

    def accept(self, token: int) -> None:
        """Take in a token that was not chosen here."""
        ...

    def save(self) -> Any:
        """Return the state for ``restore``; only the last one saved need be restorable."""
        ...

    def restore(self, saved: Any) -> None:
        """Return to a saved state."""
        ...


class ConstrainedSampler(Sampler, Protocol):
    """A sampler under a grammar; what it says of drafts is asked of any sampler that can say it."""

    def legal_prefix(self, tokens: TokenSequence[int]) -> int:
        """Return how many of these tokens are legal, one after the other."""
        ...

    def forced(self) -> list[int]:
        """Return the tokens that must follow as text."""
        ...


@dataclass(slots=True)
class Sequence:
    """One sequence between two rounds.

    Attributes:
        seq_id: Its number in the target's memory.
        history: The committed tokens. It stays the same list; drafters read it while a round runs.
        pending: The token that was emitted last and is not in memory yet.
        sampler: Chooses tokens; its state ends at the pending token.
        ending: Knows when to stop; its text ends at the pending token.
        temperature: For drafters that sample.
        seed: For drafters that sample.
        n_top: How many of the largest logits to report per emitted token.
        lag: The newest committed tokens that memory does not hold: before the prompt was read all, and after a
            checkpoint was restored those decided since. The next decode starts with them.
        checkpoint: The target's memory as it is now, when a checkpoint of it is at hand.
        wants_logprobs: Whether to report the log-probability of each emitted token.
        rows: Position to the row of floats, [n_embd_inp], that stands there in place of a token.
        reading: Memory is still reading the prompt; the round that reads its end decides the first token.
        pause: A position at which a piece of its prompt ends, so that memory can be saved as it is there.
        rule: How its drafts are accepted; None takes the round's rule.
        drafting: What its request wants of the drafters.
    """

    seq_id: int
    history: list[int]
    pending: int
    sampler: Sampler
    ending: Ending
    temperature: float = 0.0
    seed: int | None = None
    n_top: int = 0
    lag: int = 0
    checkpoint: Any = None
    wants_logprobs: bool = False
    rows: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    reading: bool = False
    pause: int = 0
    rule: AcceptRule | None = None
    drafting: Drafting = FREELY

    @property
    def n_committed(self) -> int:
        """Number of committed tokens; also the pending token's position."""
        return len(self.history)

    def commit(self, emitted: TokenSequence[int]) -> None:
        """Commit the pending token and all emitted tokens but the last, which becomes pending."""
        self.history.append(self.pending)
        if len(emitted) > 1:
            self.history.extend(emitted[:-1])
        self.pending = emitted[-1]
