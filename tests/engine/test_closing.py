"""Closing an engine or its model, in order or not, while requests run and wait."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec import ContextConfig, Finish
from pyspec.engine.worker import Workshop
from pyspec.errors import BrokenError, ClosedError, LifetimeError, NgramFileError
from tests.at_work import Held, Slow, prompt
from tests.engine.conftest import Make
from tests.helpers import PROMPT

LONG = [1, *(20 + i % 90 for i in range(200))]


def test_closing_cancels_what_runs_and_what_waits(make: Make) -> None:
    engine = make(n_slots=2)
    with Held(engine):
        streams = [engine.stream(prompt(i)) for i in range(5)]
        closers = [threading.Thread(target=engine.close) for _ in range(3)]
        for closer in closers:
            closer.start()
    for closer in closers:
        closer.join()
    for stream in streams:
        list(stream)
        assert stream.result.finish is Finish.CANCELLED
    engine.close()
    for call in (engine.status, lambda: engine.generate(PROMPT), lambda: engine.call(print)):
        with pytest.raises(ClosedError, match="engine is closed"):
            call()


def test_closing_aborts_the_decode_under_way(make: Make) -> None:
    engine = make(n_slots=1)
    slow = Slow(engine)
    stream = engine.stream(LONG)
    slow.begun.wait()
    engine.close()
    assert (slow.n_decodes, slow.n_aborted) == (1, 1)
    list(stream)
    assert stream.result.finish is Finish.CANCELLED


def test_closing_can_let_them_finish(make: Make) -> None:
    engine = make(n_slots=2)
    with Held(engine):
        streams = [engine.stream(prompt(i), max_tokens=5 + i) for i in range(5)]
        closer = threading.Thread(target=engine.close, kwargs={"finish": True})
        closer.start()
    closer.join()
    for i, stream in enumerate(streams):
        list(stream)
        assert (len(stream.result.tokens), stream.result.finish) == (5 + i, Finish.LENGTH)


def test_closing_twice_the_second_time_in_a_hurry(make: Make) -> None:
    engine = make(n_slots=1)
    slow = Slow(engine)
    streams = [engine.stream(LONG) for _ in range(3)]
    slow.begun.wait()
    closer = threading.Thread(target=engine.close, kwargs={"finish": True})
    closer.start()
    while not engine._worker._stopping:
        pass
    with pytest.raises(ClosedError):
        engine.stream(PROMPT)
    engine.close()
    closer.join()
    for stream in streams:
        list(stream)
        assert stream.result.finish is Finish.CANCELLED


def test_a_forgotten_engine_stops(target: pyspec.Model) -> None:
    engine = pyspec.Engine(target, context=ContextConfig(n_ctx=256, n_threads=1))
    thread, worker = engine._worker.thread, weakref.ref(engine._worker)
    stream = engine.stream(PROMPT)
    next(stream)
    del engine
    gc.collect()
    thread.join()
    list(stream)
    assert stream.result.finish is Finish.CANCELLED
    del stream
    gc.collect()
    assert worker() is None


def test_a_forgotten_engine_may_be_collected_on_its_own_thread(target: pyspec.Model) -> None:
    """Garbage is collected wherever it falls due, also while the thread holds the engine's lock."""
    engine: Any = pyspec.Engine(target, context=ContextConfig(n_ctx=256, n_threads=1))
    worker = engine._worker
    engine.myself = engine  # so that only the collector finds it
    entered, forgotten = threading.Event(), threading.Event()

    def collect(_workshop: Workshop) -> None:
        entered.set()
        forgotten.wait()
        with worker._lock:
            gc.collect()

    caller = threading.Thread(target=worker.call, args=(collect,))
    caller.start()
    entered.wait()
    gc.disable()
    try:
        del engine
        forgotten.set()
        caller.join()
    finally:
        gc.enable()
    worker.thread.join()


def test_closing_the_model_ends_the_engine(make: Make, target_path: Path) -> None:
    with pyspec.Model(target_path) as model:
        engine = make(n_slots=1, model=model)
        running, waiting = engine.stream(PROMPT), engine.stream(PROMPT)
        next(running)
    for stream in (running, waiting):
        with pytest.raises(ClosedError, match="context is closed"):
            list(stream)
        assert stream.result.finish is Finish.ERROR
    engine._worker.thread.join()
    for call in (lambda: engine.generate([1, 2]), engine.status, lambda: engine.call(print)):
        with pytest.raises(BrokenError, match="context is closed"):
            call()
    engine.close()


def test_closing_the_model_while_it_computes(make: Make, target_path: Path) -> None:
    model = pyspec.Model(target_path)
    engine = make(n_slots=1, model=model)
    slow = Slow(engine)
    stream = engine.stream(LONG)
    slow.begun.wait()
    model.close()
    slow.go_on()
    with pytest.raises(LifetimeError):
        list(stream)
    engine.close()


def test_closing_the_model_of_an_idle_engine(make: Make, target_path: Path) -> None:
    model = pyspec.Model(target_path)
    engine = make(n_slots=1, model=model)
    model.close()
    with pytest.raises(LifetimeError):
        engine.generate([1, 2], max_tokens=2)
    engine.close()


def test_a_failure_of_the_thread_reaches_everyone(make: Make) -> None:
    """Requests that run, those that wait, and calls that came during the last round."""
    engine = make(n_slots=1)
    slow = Slow(engine)
    running, waiting = engine.stream(PROMPT), engine.stream(PROMPT)
    slow.begun.wait()
    caught: list[BaseException] = []

    def call() -> None:
        try:
            engine.call(lambda _workshop: None)
        except BaseException as error:  # noqa: BLE001 - is looked at
            caught.append(error)

    class Failure(BaseException):
        pass

    def fail(_context: object) -> None:
        raise Failure

    caller = threading.Thread(target=call)
    caller.start()
    worker: Any = engine._worker
    while worker._inbox.empty():
        pass
    worker._workshop.scheduler.step = None
    worker._workshop.scheduler._tell = fail
    worker._calls.append(worker._inbox.get())  # as take_news does
    slow.go_on()
    worker.thread.join()
    caller.join()
    for stream in (running, waiting):
        with pytest.raises(TypeError):
            list(stream)
    assert isinstance(caught[0], BrokenError)


def complaining(make: Make) -> pyspec.Engine:
    """Return an engine one of whose drafters cannot be closed, and whose context can."""
    engine: pyspec.Engine = make(n_slots=1)

    def fail() -> None:
        raise NgramFileError("no space is left")

    engine.call(lambda shop: setattr(shop.chain, "close", fail))
    return engine


def test_what_could_not_be_saved_is_told_once(make: Make) -> None:
    engine = complaining(make)
    context = engine.call(lambda shop: shop.context)
    with pytest.raises(NgramFileError, match="no space"):
        engine.close()
    assert context.closed
    engine.close()
    with pytest.raises(NgramFileError), complaining(make):
        pass


def test_an_error_is_not_hidden_by_what_could_not_be_saved(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), complaining(make):
        raise ZeroDivisionError
    assert "something in it complained" in caplog.text
    assert "no space is left" in caplog.text


def test_a_forgotten_engine_complains_to_the_log(target: pyspec.Model, caplog: pytest.LogCaptureFixture) -> None:
    engine = complaining(lambda **_: pyspec.Engine(target, context=ContextConfig(n_ctx=256, n_threads=1)))
    del engine
    gc.collect()
    assert "no space is left" in caplog.text
