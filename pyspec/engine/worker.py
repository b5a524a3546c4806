"""The thread that owns an engine's contexts, and how others talk to it."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspec.drafters import Chain
from pyspec.engine.request import Ended, Event, Request
from pyspec.engine.scheduler import Scheduler
from pyspec.errors import BrokenError, BusyError, ClosedError, ForkedError, OutOfMemoryError
from pyspec.llama.context import Context
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.ending import Finish
from pyspec.speculation.rollback import run_all

T = TypeVar("T")
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Workshop:
    """What the thread owns.

    Attributes:
        context: The target.
        chain: The drafters.
        scheduler: Plays requests on them.
        embedding: A second context of the target's model, for embeddings; None until the first one is asked for.
    """

    context: Context
    chain: Chain
    scheduler: Scheduler
    embedding: Context | None = None

    def request_abort(self, *, value: bool = True) -> None:
        """Ask the decode in progress to stop, of the target or a draft model; any thread may call this."""
        self.context.request_abort(value=value)
        for drafter in self.chain.drafters:
            if hasattr(drafter, "request_abort"):
                drafter.request_abort(value=value)

    def may_abort(self, playing: Iterable[Request]) -> bool:
        """Return whether stopping the decode in progress gains more than it loses; any thread may ask this.

        It empties a memory that keeps recurrent states, of all slots: that is worth it for a long prompt only.
        """
        trims = self.context.rollback_kind is RollbackKind.TRIM
        return trims or any(request.sequence.reading for request in playing)

    def close(self) -> None:
        """Free everything."""
        rest = () if self.embedding is None else (self.embedding.close,)
        run_all((*rest, self.chain.close, self.context.close))


class Worker:
    """Runs a scheduler on a thread of its own.

    It has no reference to the engine, so that an engine that nobody uses any more can be collected.

    Args:
        open_workshop: Makes what the thread owns, on the thread; it gets what the scheduler has to call for news.
        n_open_max: The most requests that are taken in and have not ended.

    Raises:
        OutOfMemoryError: The system gives no thread.
        Exception: What ``open_workshop`` raised.

    Attributes:
        thread: The thread.
    """

    def __init__(self, open_workshop: Callable[[Callable[[], None]], Workshop], n_open_max: int) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._calls: deque[Callable[[], object]] = deque()  # came during a round, and wait for its end
        self._lock = threading.RLock()  # a finaliser may close this while its thread holds it
        self._n_open = 0
        self._n_open_max = n_open_max
        self._stopping = False
        self._failure: BaseException | None = None
        self._complaint: Exception | None = None  # of what was freed
        self._pid = os.getpid()
        self._opened: Future[Workshop] = Future()
        self.thread = threading.Thread(target=self._run, args=(open_workshop,), name="pyspec-engine", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:
            msg = f"The engine's thread cannot be started: {error}; this process or its user may have too many."
            raise OutOfMemoryError(msg) from error
        try:
            self._workshop: Workshop | None = self._opened.result()
        except BaseException:
            self._stopping = True  # KeyboardInterrupt; the thread sees it when it has opened
            raise

    def submit(self, request: Request) -> None:
        """Hand in a request.

        Raises:
            BusyError: The queue is full.
            ClosedError: The engine is closed.
            ForkedError: It was made in another process.
            BrokenError: It has failed.
        """
        self.require_own_process()
        with self._lock:
            self._require_open()
            if self._n_open >= self._n_open_max:
                msg = f"This engine has {self._n_open} requests, and no room for more; raise n_queue, or try again."
                raise BusyError(msg)
            self._n_open += 1
            request.tell = _Counted(self, request.tell)
            self._inbox.put(_Submission(self, request))

    def cancel(self, request: Request) -> bool:
        """End a request within one round; when all of the running round are cancelled, that may be aborted.

        Returns:
            Whether the caller may wait for the request's end: not so in a process that was forked, and not on the
            engine's own thread.
        """
        request.cancelled = True
        if self._pid != os.getpid() or threading.current_thread() is self.thread:
            return False
        workshop = self._workshop
        if workshop is not None:
            playing = workshop.scheduler.playing
            if request in playing and all(each.cancelled for each in playing) and workshop.may_abort(playing):
                workshop.request_abort()
            self._inbox.put(_nothing)
        return True

    def call(self, function: Callable[[Workshop], T]) -> T:
        """Run a function on the thread, between two rounds, and return what it returns."""
        self.require_own_process()
        if threading.current_thread() is self.thread:
            return function(self._owned())
        future: Future[T] = Future()
        with self._lock:
            self._require_open()
            self._inbox.put(_Call(self, function, future))
        return future.result()

    def close(self, *, finish: bool = False) -> Exception | None:
        """Stop. Requests that run or wait are cancelled, or finished first. May be called again, from any thread.

        Returns:
            What went wrong when drafters and contexts were closed, such as a file that could not be saved; once.
        """
        if self._pid != os.getpid():
            return None
        with self._lock:
            self._stopping = True
        self._inbox.put(_nothing if finish else self._cancel_all)
        workshop = self._workshop
        if not finish and workshop is not None:
            for request in workshop.scheduler.playing:
                request.cancelled = True
            workshop.request_abort()
        if threading.current_thread() is not self.thread:
            self.thread.join()
        with self._lock:
            complaint, self._complaint = self._complaint, None
        return complaint

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, to look at; only its own thread may change it.

        Raises:
            ClosedError: The engine is closed.
        """
        return self._owned().scheduler

    def take_news(self) -> None:
        """Take in what came while a round runs: requests. What may touch the contexts waits for its end."""
        while not self._inbox.empty():
            message = self._inbox.get_nowait()
            if isinstance(message, _Submission):
                message()
            else:
                self._calls.append(message)

    def ended(self) -> None:
        """Note that a request has ended."""
        with self._lock:
            self._n_open -= 1

    def _owned(self) -> Workshop:
        self.require_own_process()
        workshop = self._workshop
        if workshop is None:
            self._require_open()
            msg = "This engine is closed."
            raise ClosedError(msg)
        return workshop

    def require_own_process(self) -> None:
        """Refuse a forked process, before anything is locked that another thread may have held when it was forked."""
        if self._pid != os.getpid():
            msg = "This engine was made before fork(); make a new one in the child process."
            raise ForkedError(msg)

    def _require_open(self) -> None:
        if self._failure is not None:
            msg = f"This engine has failed and cannot go on: {self._failure}"
            raise BrokenError(msg) from self._failure
        if self._stopping:
            msg = "This engine is closed."
            raise ClosedError(msg)

    def _cancel_all(self) -> None:
        self._owned().scheduler.cancel_all()

    def _run(self, open_workshop: Callable[[Callable[[], None]], Workshop]) -> None:
        try:
            workshop = open_workshop(self.take_news)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._opened.set_exception(error)
            return
        self._workshop = workshop
        self._opened.set_result(workshop)
        try:
            self._serve(workshop)
        except BaseException as error:
            self._failure = error
            _logger.debug("The engine stops.", exc_info=True)
            workshop.scheduler.abandon(error)
        finally:
            with self._lock:
                self._stopping = True
            self._workshop = None
            try:
                run_all((self._refuse_rest, workshop.close))
            except Exception as error:  # noqa: BLE001 - of a drafter's close(), for example; whoever closes gets it
                self._complaint = error

    def _serve(self, workshop: Workshop) -> None:
        """Play rounds while there are requests, and wait for messages while there are none."""
        scheduler = workshop.scheduler
        while True:
            self._take_in(wait=scheduler.is_idle and not self._stopping)
            if scheduler.is_idle and self._stopping and self._inbox.empty():
                return
            workshop.request_abort(value=False)  # before the scheduler looks who is cancelled
            scheduler.step()

    def _take_in(self, *, wait: bool) -> None:
        if wait and not self._calls:
            self._calls.append(self._inbox.get())
        self._empty_inbox()
        while self._calls:
            self._calls.popleft()()

    def _empty_inbox(self) -> None:
        while not self._inbox.empty():  # no other thread takes anything out
            self._calls.append(self._inbox.get_nowait())

    def _refuse_rest(self) -> None:
        """Answer what came too late."""
        self._empty_inbox()
        while self._calls:
            message = self._calls.popleft()
            if isinstance(message, _Call):
                message.refuse(self._require_open)
            elif isinstance(message, _Submission):
                finish = Finish.CANCELLED if self._failure is None else Finish.ERROR
                message.request.tell(Ended(finish, error=self._failure))


def _nothing() -> None:
    """Wake the thread."""


class _Counted:
    """Tells a request's events, and the worker when it has ended."""

    __slots__ = ("_tell", "_worker")

    def __init__(self, worker: Worker, tell: Callable[[Event], None]) -> None:
        self._worker = worker
        self._tell = tell

    def __call__(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._worker.ended()
        self._tell(event)


@dataclass(frozen=True, slots=True)
class _Submission:
    """A request on its way to the scheduler."""

    worker: Worker
    request: Request

    def __call__(self) -> None:
        self.worker.scheduler.submit(self.request)


@dataclass(frozen=True, slots=True)
class _Call:
    """A function to be run on the thread."""

    worker: Worker
    function: Callable[[Workshop], Any]
    future: Future[Any]

    def __call__(self) -> None:
        try:
            self.future.set_result(self.function(self.worker._owned()))  # noqa: SLF001 - a part of the worker
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self.future.set_exception(error)

    def refuse(self, reason: Callable[[], None]) -> None:
        """Tell the caller why it will not be run; ``reason`` raises that."""
        try:
            reason()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self.future.set_exception(error)
