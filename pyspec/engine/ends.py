"""Why a request is over, and what it is told."""

from __future__ import annotations

from pyspec.engine.request import Ended, Request
from pyspec.errors import DeadlineError, SpeculationError
from pyspec.speculation.ending import Finish
from pyspec.speculation.stats import DrafterStats


def told(error: BaseException) -> Exception:
    """Return an exception as whoever waits for a request may hear it.

    One that is meant to end a program, such as a drafter's KeyboardInterrupt, ends neither the engine nor his.
    """
    if isinstance(error, Exception):
        return error
    broken_off = SpeculationError(f"A round was broken off by {type(error).__name__}: {error}")
    broken_off.__cause__ = error
    return broken_off


def is_over(request: Request) -> bool:
    """Return whether nobody wants a request any more, or its time is over."""
    return request.cancelled or (request.deadline is not None and request.is_late)


def lateness(request: Request) -> DeadlineError | None:
    """Return what to raise for a request that was too late, and None for one that was cancelled."""
    if request.cancelled or request.deadline is None:
        return None
    given = request.deadline - request.submitted
    return DeadlineError(f"The request had {given:.3g} seconds and has not ended.")


def broken_off(
    request: Request, finish: Finish, error: BaseException | None, drafters: dict[str, DrafterStats]
) -> Ended:
    """Return the end of a request that comes before its time, with all that was emitted.

    That may be more than was told: a round that raised after a commit had no chunk, and text may have been held back.
    """
    sequence, ending = request.sequence, request.sequence.ending
    said = [*sequence.history, sequence.pending]
    rest = tuple(said[len(said) - (ending.n_tokens - request.n_told) :])
    return Ended(finish, None, error, rest, bytes(ending.text[request.n_skipped : ending.cut]), drafters)
