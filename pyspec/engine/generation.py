"""One generation as its user sees it: chunks, one after the other, and a result that grows with them."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from pyspec.engine.request import Began, Ended, Event, Played, Request
from pyspec.engine.result import Chunk, Observer, Result, RunInfo
from pyspec.engine.text import TextStream
from pyspec.errors import BusyError, ForkedError
from pyspec.speculation.ending import Finish
from pyspec.speculation.round import Outcome

T = TypeVar("T")

_MOMENT = 1.0  # second: longer than almost every round

Cancel = Callable[[Request], bool]
"""Ends a request; returns whether an ``Ended`` will come."""


class Reply:
    """Fills a result from the events of its request, and shows them to its observer.

    Args:
        request: The request.
        info: What it starts with.
        piece: Returns the bytes of a token.
        observer: Who follows it, or None.
        result: What is filled; a new one unless given.

    Attributes:
        result: What there is so far.
        is_over: Whether the last event was taken in.
    """

    def __init__(
        self,
        request: Request,
        info: RunInfo,
        piece: Callable[[int], bytes],
        observer: Observer | None,
        result: Result | None = None,
    ) -> None:
        self.result = Result() if result is None else result
        self.result.prompt_tokens, self.result.seed = request.prompt, info.sampling.get("seed")
        self.result.valid = request.sequence.rule is None or request.sequence.rule.valid
        self.result.stats.n_prompt = len(request.prompt)
        self.is_over = False
        self._info = info
        self._piece = piece
        self._observer = observer
        self._n_top = request.sequence.n_top
        self._wants_logprobs = request.sequence.wants_logprobs
        self._text = TextStream()
        self._is_observed = False
        self._observer_failed = False

    def take(self, event: Event) -> Chunk | None:
        """Take an event in, and return the chunk that comes with it; after the last one, nothing counts.

        Raises:
            Exception: What ended the request.
        """
        if self.is_over:
            return None
        self._begin()
        if isinstance(event, Began):
            self.result.stats.n_reused = event.n_reused
            self.result.stats.queue_seconds = event.queue_seconds
            return None
        if isinstance(event, Played):
            chunk = self._chunk(event.text, event.outcome)
            _add(self.result, chunk)
            self.result.stats.count(event.outcome)
            self.result.stats.prompt_seconds += event.prompt_seconds
            self._show(event.outcome)
            return chunk
        return self._end(event)

    def _chunk(self, released: bytes | bytearray, outcome: Outcome) -> Chunk:
        """Return what a round added."""
        text = self._text.take(released, outcome.finish)
        pieces = tuple(map(self._piece, outcome.emitted))
        return Chunk(text, outcome.emitted, outcome.sources, pieces, outcome.finish, outcome.logprobs, outcome.top)

    def leave(self, events: Iterable[Event], finish: Finish = Finish.CANCELLED) -> None:
        """Nobody waits for the rest: take in what has come already, and end there."""
        for event in events:
            with contextlib.suppress(Exception):
                self.take(event)
        if self.is_over:
            return
        self.is_over = True
        self._begin()
        result = self.result
        result.finish = finish
        result.text = _decoded(b"".join(map(self._piece, result.tokens)))
        self._show_end()

    def _add_rest(self, tokens: Sequence[int]) -> None:
        """Take in tokens that no chunk tells of; what is not known of them has its place all the same."""
        n_tokens = len(tokens)
        self.result.tokens += tokens
        self.result.sources += ["unknown"] * n_tokens
        self.result.top += [()] * (n_tokens if self._n_top > 0 else 0)
        self.result.logprobs += [math.nan] * (n_tokens if self._wants_logprobs else 0)

    def _show(self, outcome: Outcome) -> None:
        """Show a round to the observer, unless it failed before."""
        if self._observer is not None and not self._observer_failed:
            self._observer_failed = True
            _observed(self._observer.round, outcome)
            self._observer_failed = False

    def _show_end(self) -> None:
        if self._observer is not None:
            _observed(self._observer.end, self.result)

    def _begin(self) -> None:
        if not self._is_observed:
            self._is_observed = True
            if self._observer is not None:
                observer, self._observer = self._observer, None  # one that fails here has no run that could end
                _observed(observer.begin, self._info)
                self._observer = observer

    def _end(self, event: Ended) -> Chunk | None:
        self.is_over = True
        result = self.result
        result.finish = event.finish
        result.drafters = event.drafters
        chunk = None
        if event.last is not None:
            chunk = Chunk(self._text.take(event.last, event.finish), (), (), (), event.finish)
            _add(result, chunk)
        if event.text is not None:
            self._add_rest(event.rest)
            result.text = _decoded(event.text)
        self._show_end()
        if event.error is not None:
            raise event.error
        return chunk


def _observed(show: Callable[[T], object], what: T) -> None:
    """Call an observer. What it may raise to end an iteration would end that of who waits for the answer."""
    try:
        show(what)
    except (StopIteration, StopAsyncIteration) as error:
        msg = f"The observer's {getattr(show, '__name__', 'method')}() raised {type(error).__name__}."
        raise RuntimeError(msg) from error


def _add(result: Result, chunk: Chunk) -> None:
    """Take a chunk into a result."""
    result.text += chunk.text
    result.tokens += chunk.tokens
    result.sources += chunk.sources
    result.top += chunk.top
    result.logprobs += chunk.logprobs
    result.finish = chunk.finish


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")


class Events:
    """Events that have come. The last one stays, so that everyone who waits hears it."""

    __slots__ = ("_events", "_last")

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._last: Ended | None = None

    def _add(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._last = event
        else:
            self._events.append(event)

    def _next(self) -> Event | None:
        """Return the oldest event, or None when there is none."""
        try:
            return self._events.popleft()
        except IndexError:
            return self._last

    def rest(self) -> Iterator[Event]:
        """Return the events that have come."""
        while self._events:
            yield self._events.popleft()
        if self._last is not None:
            yield self._last


class Mailbox(Events):
    """Events on their way from the engine's thread to another one.

    Args:
        wakes: Whether each event wakes who waits, or only the last one.
        sender: The engine's thread.
    """

    __slots__ = ("_pid", "_sender", "_signals", "_wakes")

    def __init__(self, *, wakes: bool, sender: threading.Thread | None = None) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._sender = sender
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wakes = wakes

    def put(self, event: Event) -> None:
        """Add an event."""
        self._add(event)
        if self._wakes or isinstance(event, Ended):
            self._signals.put(None)

    def take(self) -> Event:
        """Return the oldest event; wait for it.

        Raises:
            ForkedError: Nothing will come in this process.
            BusyError: The engine's thread would wait for itself.
        """
        while (event := self._next()) is None:
            self._wait()
        if isinstance(event, Ended):
            self._signals.put(None)  # a signal handler may be taking this while its thread waits below it
        return event

    def settle(self) -> None:
        """Wait for the last event of a request that was cancelled, which has its counters; not for longer than that."""
        if self._pid == os.getpid() and threading.current_thread() is not self._sender:
            until = time.monotonic() + _MOMENT
            with contextlib.suppress(queue.Empty):
                while self._last is None and (left := until - time.monotonic()) > 0:
                    self._signals.get(timeout=left)

    def _wait(self) -> None:
        if self._pid != os.getpid():
            msg = "This stream was begun before fork(); its engine works in the parent process."
            raise ForkedError(msg)
        if threading.current_thread() is self._sender:
            msg = "A function that an engine calls cannot wait for what the engine generates."
            raise BusyError(msg)
        self._signals.get()


class Generation(Iterator[Chunk]):
    """An answer in the making; iterate over it for one chunk per round.

    An end that comes without a round, such as a full context, has a last chunk without tokens.

    Leaving early is fine, by ``close()``, by leaving a ``with`` block, or by forgetting it: the engine ends the request
    within one round. One thread at a time may iterate.

    Attributes:
        result: What there is so far; complete when the iteration ends.
    """

    def __init__(self, request: Request, reply: Reply, mailbox: Mailbox, cancel: Cancel) -> None:
        self.result = reply.result
        self._request = request
        self._reply = reply
        self._mailbox = mailbox
        self._cancel = cancel
        self._turn = threading.RLock()  # a signal handler may close what its thread iterates over
        self._closing = False
        self._forgetting = when_forgotten(self, request, reply, mailbox, cancel)

    def __next__(self) -> Chunk:
        if not self._turn.acquire(blocking=self._closing):
            msg = "Another thread is waiting for this stream's next chunk."
            raise BusyError(msg)
        try:
            while not self._reply.is_over:
                chunk = self._reply.take(self._mailbox.take())
                if chunk is not None:
                    return chunk
        except BaseException as error:
            self._forgetting.detach()
            try:
                if finish_of(error) is Finish.CANCELLED and self._cancel(self._request):
                    self._mailbox.settle()
            finally:
                leave(self._request, self._reply, self._mailbox, self._cancel, finish_of(error))
            raise
        finally:
            self._turn.release()
        self._forgetting.detach()
        raise StopIteration

    def close(self) -> None:
        """End the generation now; ``result.finish`` becomes "cancelled" unless it had ended. May be called again.

        It returns when the request has left its slot, with all that was emitted in ``result``. Any thread may call
        this; the iteration of another one ends.
        """
        self._forgetting.detach()
        self._closing = True
        if self._reply.is_over or not self._cancel(self._request):
            self._reply.leave(())
            return
        with self._turn, contextlib.suppress(Exception):  # an error of a request that nobody wants
            while not self._reply.is_over:
                self._reply.take(self._mailbox.take())

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def when_forgotten(
    generation: object, request: Request, reply: Reply, mailbox: Events, cancel: Cancel
) -> weakref.finalize[..., object]:
    """End a generation that nobody refers to any more."""
    forgetting = weakref.finalize(generation, leave, request, reply, mailbox, cancel, Finish.CANCELLED)
    forgetting.atexit = False  # then the engine ends them all
    return forgetting


def leave(request: Request, reply: Reply, mailbox: Events, cancel: Cancel, finish: Finish) -> None:
    """End a generation without waiting for the engine; what has come already is taken in."""
    if not reply.is_over:
        cancel(request)
        reply.leave(mailbox.rest(), finish)


def finish_of(error: BaseException) -> Finish:
    """Return how a generation ends that was left by an exception of its user's side."""
    return Finish.ERROR if isinstance(error, Exception) else Finish.CANCELLED
