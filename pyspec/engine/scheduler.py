"""The scheduler: which requests run, one round of all of them after the other, and who hears what.

It knows nothing of threads. One step::

    sweep    requests that nobody wants any more, or whose time is over, end
    seat     those that wait get the free slots, best prefix first
    play     one round of every running sequence (``pyspec.speculation.round``)
    tell     each request hears what its sequence emitted; those that have ended leave their slots
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import logging
import time
from collections.abc import Callable, Iterable

from pyspec.drafters import Chain
from pyspec.engine.counts import Counts, Totals
from pyspec.engine.ends import broken_off, is_over, lateness, told
from pyspec.engine.prefixes import PrefixCache
from pyspec.engine.request import Began, Ended, Played, Request
from pyspec.engine.saving import SavedSlot, catch_up, put
from pyspec.engine.slots import Slot, common_length
from pyspec.errors import BusyError, ContextFullError, DecodeAbortedError
from pyspec.llama.batch import NO_TOKEN
from pyspec.speculation.accept import AcceptRule
from pyspec.speculation.draft import Needs
from pyspec.speculation.ending import Finish
from pyspec.speculation.rollback import run_all
from pyspec.speculation.round import NO_CHANGES, Changes, Outcome, RoundBatch, no_changes, run_round
from pyspec.speculation.target import Target

_logger = logging.getLogger(__name__)
_SHOWN_EVERY = 0.05  # seconds: copying what was counted takes as long as all else of a round


class Scheduler:
    """Plays requests on the sequences of one target.

    Args:
        target: The target.
        chain: The drafters.
        rule: How drafts are accepted, unless a request says otherwise.
        n_slots: Sequences.
        n_prefill: The most prompt tokens that are read in a round beside running requests.
        n_keep: Tokens to keep at the beginning when a request's context is full; None ends the request then.
        prefixes: Keeps what slots held, outside the target's memory.
        news: Called when drafts are there and before the target computes; it may submit requests and cancel some.

    Attributes:
        slots: All of them.
        playing: The requests of the round under way, or the one that begins.
        totals: Counts.
        counts: What they and the drafters' counters were when a request heard of something last.
    """

    def __init__(  # noqa: PLR0913 - each is a setting by its own name
        self,
        target: Target,
        chain: Chain,
        rule: AcceptRule,
        *,
        n_slots: int = 1,
        n_prefill: int = 128,
        n_keep: int | None = None,
        prefixes: PrefixCache | None = None,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self.chain = chain
        self.slots = [Slot(seq_id, target, chain) for seq_id in range(n_slots)]
        self.playing: tuple[Request, ...] = ()
        self.totals = Totals()
        self.prefixes = prefixes
        self._target = target
        self._rule = rule
        self._news = news
        self._n_keep = n_keep
        self._batch = RoundBatch([], n_prefill=n_prefill)
        self._waiting: list[tuple[int, int, Request]] = []  # a heap: priority, number
        self._numbers = itertools.count()
        self._joined: list[Slot] = []  # since the round began
        self._shown = 0.0
        self.counts = self._show_counts()

    @property
    def n_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> list[Slot]:
        """The slots with requests."""
        return [slot for slot in self.slots if slot.request is not None]

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self.running

    def submit(self, request: Request) -> None:
        """Take a request in; it runs when its turn comes."""
        self.totals.n_requests += 1
        self._show_counts()
        heapq.heappush(self._waiting, (request.priority, next(self._numbers), request))

    def put(self, saved: SavedSlot) -> None:
        """Let a free slot hold what was saved of an idle one, for requests that begin alike.

        Raises:
            BusyError: No slot is free.
            StateError: It does not fit, or nothing is in it.
        """
        free = [slot for slot in self.slots if slot.request is None]
        if not free:
            msg = "No slot is free to take what was saved; try again when a request has ended."
            raise BusyError(msg)
        slot = max(free, key=functools.partial(_fitness, prompt=saved.tokens))
        slot.used = next(self._numbers)
        put(saved, slot)

    def step(self) -> None:
        """Sweep, seat, play one round, tell. Errors end the requests they come from, and no others."""
        self._sweep()
        if self._waiting:
            self._seat()
        self._play(self.slots)

    @property
    def requests(self) -> list[Request]:
        """All that have not ended."""
        seated = [slot.request for slot in self.slots if slot.request is not None]
        return [*seated, *(request for _, _, request in self._waiting)]

    def cancel_all(self) -> None:
        """End every request."""
        for request in self.requests:
            request.cancelled = True
        self._sweep()

    def abandon(self, error: BaseException) -> None:
        """End every request with an error, without touching the memory, which may be what is broken."""
        ends = [(request, broken_off(request, Finish.ERROR, error, {})) for request in self.requests]
        self._waiting.clear()
        for slot in self.slots:
            slot.request = None
        run_all(functools.partial(request.tell, end) for request, end in ends)

    def _sweep(self) -> None:
        """End the requests that nobody wants any more, and those whose time is over."""
        if self._waiting:
            self._sweep_waiting()
        for slot in self.slots:
            request = slot.request
            if request is not None and is_over(request):
                self._end(slot, Finish.CANCELLED, error=lateness(request))

    def _sweep_waiting(self) -> None:
        over = {number: request for _, number, request in self._waiting if is_over(request)}
        if over:
            self._waiting = [entry for entry in self._waiting if entry[1] not in over]
            heapq.heapify(self._waiting)
        for request in over.values():
            request.tell(broken_off(request, Finish.CANCELLED, lateness(request), {}))

    def _seat(self) -> list[Slot]:
        """Give the free slots to those who wait; return the slots that got a request."""
        seated = []
        while self._waiting and (free := [slot for slot in self.slots if slot.request is None]):
            entry = heapq.heappop(self._waiting)
            request = entry[2]
            slot = max(free, key=functools.partial(_fitness, prompt=request.prompt))
            slot.used = next(self._numbers)
            try:
                self._begin(slot, request)
                seated.append(slot)
            except DecodeAbortedError:  # of a draft model that reads the prompt; as in ``_after``
                slot.request = None
                slot.forget()
                heapq.heappush(self._waiting, entry)
                break
            except BaseException as error:  # noqa: BLE001 - it belongs to this request
                self._fail(slot, request, told(error))
        return seated

    def _begin(self, slot: Slot, request: Request) -> None:
        request.seated = time.perf_counter()
        if self.prefixes is not None:
            self.prefixes.exchange(slot, request.prompt)
        self._share(slot, request)
        others, self.playing = self.playing, (*self.playing, request)
        try:
            n_reused = slot.begin(request) if request.saved is None else slot.resume(request, request.saved)
        finally:
            self.playing = others
        self.totals.n_prompt_tokens += len(request.prompt)
        self.totals.n_reused_tokens += n_reused
        if request.sampling.has_penalties:
            # What a grammar allows is asked of the output only.
            sampler = getattr(request.sequence.sampler, "unconstrained", request.sequence.sampler)
            for token in request.prompt:
                if token != NO_TOKEN:
                    sampler.accept(token)
        if request.saved is not None:
            catch_up(request, request.saved)
        self._show_counts()
        request.tell(Began(n_reused, request.seated - request.submitted))

    def _share(self, slot: Slot, request: Request) -> None:
        """Let a slot share cells with one that begins alike, where memory can and no drafter reads the target."""
        prompt = request.prompt
        if not self._target.memory.shares_cells or self.chain.needs is not Needs.NOTHING or request.sequence.rows:
            return
        others = ((common_length(other.in_memory(), prompt), other) for other in self.slots if other is not slot)
        n_same, lender = max(others, key=lambda found: found[0], default=(0, slot))
        length = min(n_same, len(prompt) - 1)
        worthwhile = request.saved is None and length > slot.reusable(prompt)
        if worthwhile and self._target.memory.reaches(lender.seq_id, length):
            slot.borrow(lender, prompt, length)

    def _play(self, slots: Iterable[Slot], *, alone: bool = False) -> None:
        """Play one round; when it fails, find out whose fault that is by playing each request alone."""
        batch = self._batch
        joined = self._joined = []
        running, requests, sequences = [], [], []
        for slot in slots:
            request = slot.request
            if request is not None and self._goes_on(slot, request):
                running.append(slot)
                requests.append(request)
                sequences.append(request.sequence)
        if not requests:
            return
        batch.sequences = sequences
        drafts = self.chain.n_max > 0  # else there is no time for anything to happen in
        batch.changes = self._changes if drafts and not alone else no_changes
        self.playing = tuple(requests)
        failed: Exception | None = None
        try:
            run_round(batch, self.chain, self._target, self._rule)
        except BaseException as error:  # noqa: BLE001 - it is told to whom it belongs
            failed = told(error)
        finally:
            self.playing = ()
        if joined:
            running += joined
        self._tell(running, batch.outcomes)
        if failed is not None:
            self._after(failed, [slot for slot in running if slot.seq_id not in batch.outcomes])

    def _after(self, error: Exception, slots: list[Slot]) -> None:
        """Go on after a round that failed; what it had not decided is undone already."""
        for slot in self.slots:
            slot.look_again()
        left = [(slot, slot.request) for slot in slots if slot.request is not None and not slot.request.cancelled]
        if isinstance(error, DecodeAbortedError):  # those who asked for that are swept; the others try again
            return
        if isinstance(error, ContextFullError) and self._make_room():
            return
        for slot, request in left:
            # What was committed and not told of: it failed when its drafters heard of it.
            if len(slots) == 1 or request.sequence.ending.n_tokens > request.n_told:
                self._fail(slot, request, error)
            else:
                self._play_alone(slot, request)

    def _play_alone(self, slot: Slot, request: Request) -> None:
        """Play one request until it has decided or failed; it may have to read its prompt again before."""
        sequence, n_told = request.sequence, request.n_told
        while True:
            lag = sequence.lag
            self._play([slot], alone=True)
            if slot.request is not request or request.n_told > n_told or sequence.lag >= lag or is_over(request):
                return

    def _make_room(self) -> bool:
        """Empty the idle slot that was used longest ago; where slots share a buffer, others can go on then."""
        idle = [slot for slot in self.slots if slot.request is None and slot.n_held]
        if not idle:
            return False
        min(idle, key=lambda slot: slot.used).forget()
        return True

    def _changes(self) -> Changes:
        """Take in what came while drafts were made: new requests begin, and others need not be verified."""
        self._news()
        seated = self._seat() if self._waiting else []
        if seated:
            self._joined += seated
            self.playing += tuple(slot.request for slot in seated if slot.request is not None)
        left = [request.sequence.seq_id for request in self.playing if request.cancelled]
        if not (seated or left):
            return NO_CHANGES
        return Changes([slot.request.sequence for slot in seated if slot.request is not None], left)

    def _goes_on(self, slot: Slot, request: Request) -> bool:
        """Return whether a slot's request has another round; end it if not."""
        sequence = request.sequence
        if sequence.reading and sequence.lag:
            return True
        remaining = sequence.ending.remaining
        if remaining > 0:
            if len(sequence.history) < self._target.n_ctx_seq:
                return True
            if self._n_keep is not None and not sequence.rows and sequence.n_committed > 1:
                return self._shifts(slot, request, self._n_keep)
        finish = Finish.LENGTH if remaining <= 0 else Finish.CONTEXT
        self._end(slot, finish, last=sequence.ending.release(finish))
        return False

    def _shifts(self, slot: Slot, request: Request, n_keep: int) -> bool:
        """Make room in a full context; return whether that went well."""
        try:
            slot.shift(n_keep)
        except BaseException as error:  # noqa: BLE001 - of a drafter that begins anew, for example
            self._fail(slot, request, told(error))
            return False
        return True

    def _tell(self, slots: Iterable[Slot], outcomes: dict[int, Outcome]) -> None:
        """Let each request hear what was decided, after it was counted."""
        if self.totals.count(outcomes) or time.perf_counter() - self._shown >= _SHOWN_EVERY:
            self._show_counts()
        for slot in slots:
            request, outcome = slot.request, outcomes.get(slot.seq_id)
            if request is None:
                continue
            if outcome is None:
                slot.read_on(request.sequence)
                continue
            request.n_told += len(outcome.emitted)
            seconds = time.perf_counter() - request.seated if outcome.first else 0.0
            request.tell(Played(request.sequence.ending.release(outcome.finish), outcome, seconds))
            if outcome.finish is not None:
                self._end(slot, outcome.finish)

    def _show_counts(self) -> Counts:
        """Let other threads see what was counted, all of it at once."""
        drafters = {name: stats.copy() for name, stats in self.chain.stats.items()}
        self.counts = Counts(dataclasses.replace(self.totals), drafters)
        self._shown = time.perf_counter()
        return self.counts

    def _end(
        self, slot: Slot, finish: Finish, *, last: bytes | bytearray | None = None, error: Exception | None = None
    ) -> None:
        """End a request; its slot keeps what memory holds."""
        request = slot.request
        if request is None:
            return
        self._learn(slot, request)
        self._show_counts()
        drafters = self.chain.stats_of(slot.seq_id)
        early = finish is Finish.CANCELLED
        end = broken_off(request, finish, error, drafters) if early else Ended(finish, last, drafters=drafters)
        run_all((slot.end, functools.partial(request.tell, end)))

    def _learn(self, slot: Slot, request: Request) -> None:
        """Let drafters learn from a request. What goes wrong then takes nothing away from its answer."""
        try:
            self.chain.end(slot.seq_id, request.sequence.history)
        except Exception:
            _logger.exception("A request has ended, and a drafter could not learn from it.")

    def _fail(self, slot: Slot, request: Request, error: Exception) -> None:
        """End a request with an error; its memory is in doubt."""
        slot.request = None
        self._show_counts()
        ended = broken_off(request, Finish.ERROR, error, self.chain.stats_of(slot.seq_id))
        run_all((slot.forget, functools.partial(request.tell, ended)))


def _fitness(slot: Slot, prompt: list[int]) -> tuple[int, bool, int, int]:
    """Return how well a free slot suits a prompt; the largest is best.

    First comes one where more is gained than lost, then one that holds nothing, then what begins alike or was used
    longest ago.
    """
    n_reused = slot.reusable(prompt)
    return max(0, 2 * n_reused - slot.n_held), slot.n_held == 0, n_reused, -slot.used
