"""What an engine is doing, as a snapshot."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspec.speculation.stats import DrafterStats


class SlotState(str, enum.Enum):
    """What a slot is doing."""

    IDLE = "idle"
    PROMPT = "prompt"  # a prompt is being read
    GENERATING = "generating"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot.

    Attributes:
        seq_id: Its sequence.
        state: What it is doing.
        n_tokens: Tokens in its memory; an idle slot keeps them for a request that begins alike.
        n_prompt: Tokens of its request's prompt.
        n_emitted: Tokens that its request has emitted.
    """

    seq_id: int
    state: SlotState
    n_tokens: int
    n_prompt: int
    n_emitted: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine at one moment; the counts are since it was made.

    Attributes:
        n_slots: Requests that can run at once.
        n_running: Requests in slots.
        n_waiting: Requests in the queue.
        slots: Each slot.
        drafters: Counters per drafter.
        n_requests: Requests that were taken in.
        n_prompt_tokens: Tokens of their prompts.
        n_reused_tokens: Those of them that were in memory already.
        n_emitted_tokens: Tokens emitted.
        n_rounds: Rounds that emitted them, counted per request.
        cache_bytes: What the host-side cache of prefixes holds.
    """

    n_slots: int
    n_running: int
    n_waiting: int
    slots: tuple[SlotStatus, ...]
    drafters: Mapping[str, DrafterStats] = field(default_factory=dict)
    n_requests: int = 0
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0
    n_emitted_tokens: int = 0
    n_rounds: int = 0
    cache_bytes: int = 0
