"""What a scheduler counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspec.speculation.round import Outcome
from pyspec.speculation.stats import DrafterStats


@dataclass(slots=True)
class Totals:
    """Counts since the engine was made; see ``EngineStatus``."""

    n_requests: int = 0
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0
    n_emitted_tokens: int = 0
    n_forced_tokens: int = 0
    n_rounds: int = 0

    def count(self, outcomes: Mapping[int, Outcome]) -> bool:
        """Count what a round decided, by sequence; return whether a request ends with it."""
        ends = False
        self.n_rounds += len(outcomes)
        for seq_id in outcomes:
            outcome = outcomes[seq_id]
            self.n_emitted_tokens += len(outcome.emitted)
            if outcome.n_accepted:
                self.n_forced_tokens += outcome.n_forced
            if outcome.finish is not None:
                ends = True
        return ends


class Counts(NamedTuple):
    """Counters at one moment, for other threads to look at.

    Attributes:
        totals: See ``Totals``.
        drafters: Counters per drafter.
    """

    totals: Totals
    drafters: Mapping[str, DrafterStats]
