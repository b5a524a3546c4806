"""Holding an engine's thread at a known point, and asking it from many others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pyspec
from pyspec.engine import SlotState
from pyspec.engine.worker import Workshop

T = TypeVar("T")


class Held:
    """An engine whose thread waits between two rounds until it is let go.

    Attributes:
        n_emitted_tokens: What it had emitted; its status may be some rounds behind.
    """

    def __init__(self, engine: pyspec.Engine) -> None:
        self._go = threading.Event()
        self._entered = threading.Event()
        self._thread = threading.Thread(target=engine.call, args=(self._wait,))
        self._thread.start()
        self._entered.wait()

    def _wait(self, workshop: Workshop) -> None:
        self.n_emitted_tokens = workshop.scheduler.totals.n_emitted_tokens
        self._entered.set()
        self._go.wait()

    def let_go(self) -> None:
        self._go.set()
        self._thread.join()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_error: object) -> None:
        self.let_go()


class Slow:
    """An engine whose next decode begins, and then computes only when somebody has asked to abort it.

    Args:
        engine: The engine.
        context_of: Whose decode; the target's unless given.

    Attributes:
        begun: The decode has begun.
        n_aborted: Decodes that llama.cpp broke off.
        n_asked: How often it was asked.
        n_decodes: Decodes.
    """

    def __init__(
        self, engine: pyspec.Engine, context_of: Callable[[Workshop], Any] = lambda workshop: workshop.context
    ) -> None:
        self._context_of = context_of
        self.begun = threading.Event()
        self.n_aborted = self.n_asked = 0
        self.n_decodes = 0
        self._asked = threading.Event()
        engine.call(self._put_in)

    def _put_in(self, workshop: Workshop) -> None:
        context = self._context_of(workshop)
        self._decode, self._request_abort = context.decode, context.request_abort
        context.decode, context.request_abort = self.decode, self.request_abort

    def decode(self, batch: pyspec.Batch) -> pyspec.Rows:
        self.n_decodes += 1
        if not self.begun.is_set():
            self.begun.set()
            self._asked.wait()
        try:
            rows: pyspec.Rows = self._decode(batch)
        except pyspec.errors.DecodeAbortedError:
            self.n_aborted += 1
            raise
        return rows

    def request_abort(self, *, value: bool = True) -> None:
        self._request_abort(value=value)
        if value:
            self.n_asked += 1
            self._asked.set()

    def go_on(self) -> None:
        self._asked.set()


def in_threads(n: int, function: Callable[[int], T]) -> list[T]:
    """Call a function in so many threads at once, and return what each returned."""
    found: dict[int, T] = {}
    barrier = threading.Barrier(n)

    def run(i: int) -> None:
        barrier.wait()
        found[i] = function(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(n)]


def idle(engine: pyspec.Engine) -> bool:
    """Return whether no slot is taken and nobody waits, after the round under way and a sweep."""
    for _ in range(2):
        engine.call(lambda _workshop: None)
    status = engine.status()
    return status.n_running == status.n_waiting == 0 and all(slot.state is SlotState.IDLE for slot in status.slots)


def prompt(i: int) -> list[int]:
    return [1, 60 + i, 75, 112 + i, 264]
