"""A scheduler over fakes, and generations on it, without a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspec.config import SamplingConfig
from pyspec.engine.generation import Generation, Mailbox, Reply
from pyspec.engine.request import Request as EngineRequest
from pyspec.engine.result import Observer, RunInfo
from pyspec.engine.scheduler import Scheduler
from tests.fakes import Fuse
from tests.playing import Seat, Table
from tests.reference import Request


class Place:
    """A scheduler over fakes that plays when somebody waits, without a thread."""

    def __init__(self, scheduler: Scheduler, piece: Callable[[int], bytes]) -> None:
        self.scheduler = scheduler
        self.piece = piece

    @property
    def busy(self) -> bool:
        return not self.scheduler.is_idle

    def settle(self) -> None:
        """Play until nobody waits any more."""
        while self.busy:
            self.scheduler.step()

    def cancel(self, request: EngineRequest) -> bool:
        request.cancelled = True
        return True

    def start(self, request: EngineRequest, info: RunInfo, observer: Observer | None = None) -> Generation:
        """Submit a request whose ``tell`` is not set yet."""
        mailbox = PullMailbox(self.scheduler)
        request.tell = mailbox.put
        reply = Reply(request, info, self.piece, observer)
        self.scheduler.submit(request)
        return Generation(request, reply, mailbox, self.cancel)


class PullMailbox(Mailbox):
    """A mailbox whose owner plays the rounds while waiting."""

    __slots__ = ("_scheduler",)

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(wakes=False)
        self._scheduler = scheduler

    def _wait(self) -> None:
        self._scheduler.step()

    def settle(self) -> None:
        """Nobody plays on meanwhile."""


def workplace(table: Table, **settings: Any) -> Place:
    """Return a scheduler over a table's target and chain."""
    piece = table.seats[0].request.piece
    n_slots = table.target.n_seq_max
    return Place(Scheduler(table.target, table.chain, table.rule, n_slots=n_slots, **settings), piece)


def generation(
    place: Place, request: Request, *, observer: Observer | None = None, n_top: int = 0, fuse: Fuse | None = None
) -> Generation:
    """Return a generation of the real loop for a request.

    Samplers of fakes count every token, so they hear of the prompt as if there were a penalty.
    """
    seat = Seat(request, 0, fuse if fuse is not None else Fuse())
    return generation_of(place, seat, SamplingConfig(presence_penalty=1.0), observer=observer, n_top=n_top)


def generation_of(
    place: Place, seat: Seat, settings: SamplingConfig, *, observer: Observer | None = None, n_top: int = 0
) -> Generation:
    """Return a generation for a seat with these settings."""
    seat.sequence.n_top = n_top
    prompt = list(seat.request.prompt)
    info = RunInfo(
        model="target.gguf",
        draft_model=None,
        speculation={"drafters": [drafter.name for drafter in place.scheduler.chain.drafters]},
        sampling={"seed": seat.request.seed},
        prompt_tokens=prompt,
    )
    return place.start(EngineRequest(seat.sequence, prompt, settings, tell=lambda _event: None), info, observer)
