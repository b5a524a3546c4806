"""A request on its way through an engine, and the events that tell of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspec.config import SamplingConfig
from pyspec.speculation.ending import Finish
from pyspec.speculation.round import Outcome
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.stats import DrafterStats

if TYPE_CHECKING:
    from pyspec.engine.saving import SavedSlot


@dataclass(frozen=True, slots=True)
class Began:
    """The request has a slot.

    Attributes:
        n_reused: Tokens of its prompt that memory held already.
        queue_seconds: How long it waited.
    """

    n_reused: int
    queue_seconds: float


@dataclass(slots=True)
class Played:
    """A round was played.

    Attributes:
        text: What became final, in bytes, because the engine's thread has no time.
        outcome: What it did.
        prompt_seconds: From the slot to this round, when it is the first; else 0.
    """

    text: bytes | bytearray
    outcome: Outcome
    prompt_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The request is over; this is the last event.

    Attributes:
        finish: Why.
        last: Text that was held back and comes without a round, in bytes; None when the last round brought the end.
        error: What was raised, or None.
        rest: Tokens that were committed by a round that raised after it, and have no chunk.
        text: All that was said, when the end came before its time, in bytes; else None.
        drafters: Counters per drafter.
    """

    finish: Finish
    last: bytes | bytearray | None = None
    error: BaseException | None = None
    rest: tuple[int, ...] = ()
    text: bytes | None = None
    drafters: dict[str, DrafterStats] = field(default_factory=dict)


Event = Began | Played | Ended


@dataclass(slots=True, eq=False)
class Request:
    """A checked request.

    Attributes:
        sequence: Where it starts; it gets its number with its slot.
        prompt: Its tokens; what is in ``sequence.history`` grows.
        sampling: How the target chooses.
        tell: Takes each event; it must not block, and is called on the engine's thread.
        priority: Lower ones go first; equals in the order they came.
        deadline: When it must have ended, in ``time.perf_counter`` seconds, or None.
        submitted: When it came.
        seated: When it got its slot.
        cancelled: Nobody wants it any more; any thread may set this.
        settings: What was asked, as far as it is not in the sequence; see ``pyspec.engine.Settings``.
        saved: Where it goes on, when it comes from a file.
        n_told: Tokens that have been told.
        n_skipped: Bytes of its text that were told before it was saved.
    """

    sequence: Sequence
    prompt: list[int]
    sampling: SamplingConfig
    tell: Callable[[Event], None]
    priority: int = 0
    deadline: float | None = None
    submitted: float = field(default_factory=time.perf_counter)
    seated: float = 0.0
    cancelled: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    saved: SavedSlot | None = None
    n_told: int = 0
    n_skipped: int = 0

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and time.perf_counter() > self.deadline

    def came_at(self, submitted: float) -> None:
        """Move the time of its coming, and its deadline with it."""
        if self.deadline is not None:
            self.deadline += submitted - self.submitted
        self.submitted = submitted
