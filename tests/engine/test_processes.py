"""Engines in processes that end, fork, or are interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Script
from tests.helpers import PROMPT


def script_engine(code: str) -> str:
    return f"""
import os, sys, threading, signal, gc, pyspec
def make(n_slots=2, model=None):
    config = pyspec.ContextConfig(n_ctx=512 * n_slots, n_batch=64, n_ubatch=16, n_threads=1)
    model = model or pyspec.Model(sys.argv[1])
    return pyspec.Engine(model, speculation=pyspec.Speculation("none"), context=config, n_slots=n_slots)
PROMPT = {PROMPT}
{code}
"""


@pytest.mark.parametrize("keep", ["streams", "engine", "threads", "nothing"])
def test_at_interpreter_exit(run_script: Script, target_path: Path, keep: str) -> None:
    code = {
        "streams": "engine = make(); streams = [engine.stream(PROMPT) for _ in range(5)]; next(streams[0])",
        "engine": "engine = make(); engine.generate(PROMPT, max_tokens=3)",
        "threads": "engine = make()\n"
        "for _ in range(4): threading.Thread(target=lambda: engine.generate(PROMPT), daemon=True).start()\n"
        "next(engine.stream(PROMPT))",
        "nothing": "make().generate(PROMPT, max_tokens=3)",
    }[keep]
    done = run_script(script_engine(code) + "\nprint('end')", target_path)
    assert (done.stdout, done.stderr) == ("end\n", "")


FORK = """
engine = make()
stream = engine.stream(PROMPT)
next(stream)
held, entered = threading.Event(), threading.Event()
def hold(workshop):
    with engine._worker._lock:
        entered.set()
        held.wait()
threading.Thread(target=engine.call, args=(hold,), daemon=True).start()
entered.wait()  # the child's copy of the lock is held for ever
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    names = []
    for call in (
        lambda: engine.generate(PROMPT),
        lambda: engine.stream(PROMPT),
        lambda: list(stream),
        engine.status,
        lambda: engine.call(print),
        lambda: engine.close() or stream.close() or engine.close(finish=True),
    ):
        try:
            call()
            names.append("-")
        except pyspec.errors.PyspecError as error:
            names.append(type(error).__name__)
    print(*names, stream.result.finish, flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
held.set()
tokens = [token for chunk in stream for token in chunk.tokens]
print("parent", len(tokens) > 10, stream.result.finish)
"""


def test_after_a_fork_everything_refuses(run_script: Script, target_path: Path) -> None:
    done = run_script(script_engine(FORK), target_path)
    refused = "ForkedError " * 5
    assert done.stdout.splitlines() == [f"{refused}- error", "parent True context"]


INTERRUPT = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let programs in the background ignore it
engine = make(1)
rounds = threading.Semaphore(0)
def count(workshop):
    scheduler = workshop.scheduler
    step = scheduler.step
    def counted():
        step()
        rounds.release()
    scheduler.step = counted
engine.call(count)
def after(n):
    for _ in range(n):
        rounds.acquire()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=after, args=(12,)).start()
try:
    engine.WHAT
except KeyboardInterrupt as error:
    partial = error.partial
    if isinstance(partial, list):
        print(len(partial) > 0, all(isinstance(each, pyspec.Result) for each in partial))
        partial = partial[0]
    print(len(partial.tokens) >= 5, partial.finish, partial.text == engine.model.vocab.detokenize(partial.tokens))
again = engine.generate(PROMPT, max_tokens=5).tokens
print(again == partial.tokens[:5])
"""


@pytest.mark.parametrize("what", ["generate(PROMPT)", "generate_many([PROMPT] * 9)"])
def test_an_interrupt_ends_a_generation_with_what_there_is(run_script: Script, target_path: Path, what: str) -> None:
    done = run_script(script_engine(INTERRUPT.replace("WHAT", what)), target_path)
    expected = ["True cancelled True", "True"]
    assert done.stdout.splitlines() == (["True True", *expected] if "many" in what else expected)
    assert done.stderr == ""


HANDLER = """
engine = make(1)
stream = engine.stream(PROMPT)
held, closed = threading.Event(), threading.Event()
def handle(_number, frame):
    if frame.f_code.co_name == "_wait":  # for a chunk
        held.set()
        stream.close()
        closed.set()
signal.signal(signal.SIGUSR1, handle)
threading.Thread(target=engine.call, args=(lambda workshop: held.wait(),)).start()
def send():
    while not closed.wait(0.01):
        os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=send).start()
print(len([token for chunk in stream for token in chunk.tokens]) < 400, stream.result.finish)
"""


def test_a_signal_handler_may_close_what_its_thread_iterates_over(run_script: Script, target_path: Path) -> None:
    done = run_script(script_engine(HANDLER), target_path)
    assert done.stdout == "True cancelled\n"
