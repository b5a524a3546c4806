"""What an engine is doing, as a snapshot."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspec.engine.scheduler import Scheduler
from pyspec.engine.slots import Slot
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
        n_forced_tokens: Those of them that a grammar proposed, because it left no other text.
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
    n_forced_tokens: int = 0
    n_rounds: int = 0
    cache_bytes: int = 0


def engine_status(scheduler: Scheduler) -> EngineStatus:
    """Look at a scheduler from any thread.

    The counts are those of one moment; they have all that any request has heard of. Slots are as they are now.
    """
    slots = tuple(map(_slot_status, scheduler.slots))
    counts, prefixes = scheduler.counts, scheduler.prefixes
    return EngineStatus(
        n_slots=len(slots),
        n_running=sum(slot.state is not SlotState.IDLE for slot in slots),
        n_waiting=scheduler.n_waiting,
        slots=slots,
        drafters={name: stats.copy() for name, stats in counts.drafters.items()},
        **dataclasses.asdict(counts.totals),
        cache_bytes=prefixes.n_bytes if prefixes is not None else 0,
    )


def _slot_status(slot: Slot) -> SlotStatus:
    request = slot.request  # it may be taken away meanwhile
    if request is None:
        return SlotStatus(slot.seq_id, SlotState.IDLE, slot.n_held, 0, 0)
    sequence = request.sequence
    state = SlotState.PROMPT if sequence.reading else SlotState.GENERATING
    n_tokens = max(0, sequence.n_committed - sequence.lag)
    return SlotStatus(slot.seq_id, state, n_tokens, len(request.prompt), sequence.ending.n_tokens)
