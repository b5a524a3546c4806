"""What a generation gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pyspec.speculation.ending import Finish
from pyspec.speculation.round import Outcome
from pyspec.speculation.stats import DrafterStats, GenerationStats

TopTokens = tuple[tuple[int, float], ...]


class Chunk(NamedTuple):
    """What one round added.

    Attributes:
        text: Text that is complete and final: characters that are not finished yet, and the beginning of what
            may become a stop string, come with a later chunk.
        tokens: Tokens emitted by the round.
        sources: Where each token came from: "plain", "draft:<name>", "recovered" or "bonus".
        pieces: The text of each token by itself; bytes, because a character may span tokens.
        finish: Why the generation ended with this chunk, or None.
        logprobs: The log-probability of each token; empty unless asked.
        top: Per token the most likely ones of its row, best first, as (token, logit), or as (token, log-probability)
            where log-probabilities are asked for; empty unless asked.
    """

    text: str
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    pieces: tuple[bytes, ...]
    finish: Finish | None
    logprobs: tuple[float, ...] = ()
    top: tuple[TopTokens, ...] = ()


@dataclass(slots=True)
class Result:
    """A finished generation.

    Attributes:
        text: The text, cut before a stop string.
        tokens: All emitted tokens, an end-of-generation token included.
        finish: Why it ended.
        valid: Whether this is the target's output; False under the rule "synthetic".
        prompt_tokens: The prompt.
        sources: Where each token came from; "unknown" for tokens of a round that raised after it committed them.
        top: Per token the most likely ones of its row, best first, as (token, logit), or as (token, log-probability)
            where log-probabilities are asked for; empty unless asked.
        logprobs: Per token its log-probability; empty unless asked. NaN for tokens whose source is "unknown", and
            None in ``to_dict``.
        seed: Seed of the random draws, None at temperature 0.
        stats: Counters of this generation.
        drafters: Counters per drafter.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    valid: bool = True
    prompt_tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    top: list[TopTokens] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    seed: int | None = None
    stats: GenerationStats = field(default_factory=GenerationStats)
    drafters: dict[str, DrafterStats] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "finish": self.finish.value if self.finish else None,
            "valid": self.valid,
            "prompt_tokens": list(self.prompt_tokens),
            "sources": list(self.sources),
            "top": [[list(entry) for entry in row] for row in self.top],
            "logprobs": [None if math.isnan(logprob) else logprob for logprob in self.logprobs],
            "seed": self.seed,
            "stats": self.stats.to_dict(),
            "drafters": {name: stats.to_dict() for name, stats in self.drafters.items()},
        }


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a generation starts with, for observers."""

    model: str
    draft_model: str | None
    speculation: dict[str, Any]
    sampling: dict[str, Any]
    prompt_tokens: list[int]


class Observer(Protocol):
    """Follows a generation, for example to write a trace."""

    def begin(self, info: RunInfo) -> None:
        """A generation starts."""
        ...

    def round(self, outcome: Outcome) -> None:
        """A round was played."""
        ...

    def end(self, result: Result) -> None:
        """The generation ended; ``result.finish`` tells why, also after an error."""
        ...
