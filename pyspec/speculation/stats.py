"""What happened, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspec.speculation.round import Outcome


_STAGES = ("begin", "observe", "draft", "accept")


@dataclass(slots=True)
class DrafterStats:
    """Counters of one drafter.

    Attributes:
        n_begin: Requests it heard of.
        n_stepped_aside: Requests it cannot draft for, because a part of their prompt is not text.
        n_asked: Requests for a draft.
        n_drafts: Drafts of it that were verified.
        n_drafts_accepted: Drafts with at least one accepted token.
        n_drafted: Tokens in these drafts.
        n_accepted: Tokens that stand.
        n_model_tokens: Tokens its draft model evaluated.
        drafted_at: Per draft position, drafts that were at least that long.
        accepted_at: Per draft position, accepted tokens.
        seconds: In "begin", "observe", "draft" and "accept".
    """

    n_begin: int = 0
    n_stepped_aside: int = 0
    n_asked: int = 0
    n_drafts: int = 0
    n_drafts_accepted: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_model_tokens: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STAGES, 0.0))

    def count(self, n_drafted: int, n_accepted: int) -> None:
        """Count one verified draft."""
        self.n_drafts += 1
        self.n_drafts_accepted += n_accepted > 0
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        missing = n_drafted - len(self.drafted_at)
        self.drafted_at += [0] * missing
        self.accepted_at += [0] * missing
        for i in range(n_drafted):
            self.drafted_at[i] += 1
            self.accepted_at[i] += i < n_accepted

    def copy(self) -> DrafterStats:
        """Return what the counters are now."""
        drafted_at, accepted_at = list(self.drafted_at), list(self.accepted_at)
        return replace(self, drafted_at=drafted_at, accepted_at=accepted_at, seconds=dict(self.seconds))

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens, 0 when there were none."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verified draft, the bonus or recovered one included; 1 without drafts."""
        return 1.0 + (self.n_accepted / self.n_drafts if self.n_drafts else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return counters and rates for JSON."""
        return {
            "n_begin": self.n_begin,
            "n_stepped_aside": self.n_stepped_aside,
            "n_asked": self.n_asked,
            "n_drafts": self.n_drafts,
            "n_drafts_accepted": self.n_drafts_accepted,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "n_model_tokens": self.n_model_tokens,
            "drafted_at": list(self.drafted_at),
            "accepted_at": list(self.accepted_at),
            "acceptance": self.acceptance,
            "acceptance_length": self.acceptance_length,
            "seconds": dict(self.seconds),
        }


@dataclass(slots=True)
class GenerationStats:
    """Counters of one generation.

    Attributes:
        n_prompt: Tokens of the prompt.
        n_reused: Those of them that were found in memory.
        n_rounds: Target decodes after the prompt.
        n_emitted: Tokens emitted = ``n_accepted + n_rounds``.
        n_drafted: Tokens proposed.
        n_accepted: Proposed tokens that stand.
        n_forced: Those of them that a grammar proposed, because it left no other text: no drafter was asked, and they
            took no decode of their own. 0 in plain decoding, which proposes nothing.
        n_checkpoints: Checkpoints of the target's memory that were taken.
        n_checkpoint_bytes: Their sizes added up.
        n_replays: Rounds after which a checkpoint was restored; what they decided is decoded again.
        lengths: Acceptance length to number of rounds.
        queue_seconds: From the request to its slot.
        prompt_seconds: From there to the first token, which the round that reads the prompt's end gives.
        seconds: For the rounds after it: "draft", "verify", "accept", "rollback" and "total". They are those of whole
            rounds, also when other requests took part in them.
        n_first: Tokens of the first round, which ``seconds`` leaves out.
    """

    n_prompt: int = 0
    n_reused: int = 0
    n_rounds: int = 0
    n_emitted: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_forced: int = 0
    n_checkpoints: int = 0
    n_checkpoint_bytes: int = 0
    n_replays: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    n_first: int = 0

    def count(self, outcome: Outcome) -> None:
        """Count one round."""
        self.n_rounds += 1
        self.n_emitted += len(outcome.emitted)
        self.n_drafted += len(outcome.proposal.draft.tokens)
        self.n_accepted += outcome.n_accepted
        self.n_forced += outcome.n_forced
        self.n_checkpoints += outcome.n_checkpoint_bytes > 0
        self.n_checkpoint_bytes += outcome.n_checkpoint_bytes
        self.n_replays += outcome.rollback == "replay"
        self.lengths[len(outcome.emitted)] += 1
        if outcome.first:
            self.n_first += len(outcome.emitted)
            return
        for stage, seconds in outcome.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens, 0 when there were none."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per round, the bonus or recovered one included; 0 without rounds."""
        return self.n_emitted / self.n_rounds if self.n_rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second after the first one."""
        total = self.seconds.get("total", 0.0)
        return (self.n_emitted - self.n_first) / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return counters and rates for JSON."""
        return {
            "n_prompt": self.n_prompt,
            "n_reused": self.n_reused,
            "n_rounds": self.n_rounds,
            "n_emitted": self.n_emitted,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "n_forced": self.n_forced,
            "n_checkpoints": self.n_checkpoints,
            "n_checkpoint_bytes": self.n_checkpoint_bytes,
            "n_replays": self.n_replays,
            "acceptance": self.acceptance,
            "acceptance_length": self.acceptance_length,
            "lengths": {str(length): count for length, count in sorted(self.lengths.items())},
            "tokens_per_second": self.tokens_per_second,
            "queue_seconds": self.queue_seconds,
            "prompt_seconds": self.prompt_seconds,
            "n_first": self.n_first,
            "seconds": dict(self.seconds),
        }
