"""Right object, wrong moment: closed, another thread, another process, broken."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec.errors import BrokenError, ClosedError, LifetimeError, NativeError, WrongThreadError
from tests.helpers import PROMPT, decode, make_context
from tests.llama.conftest import NewContext

CONTEXT_CALLS: dict[str, Callable[[pyspec.Context], object]] = {
    "decode": lambda context: decode(context, PROMPT),
    "logits_view": pyspec.Context.logits_view,
    "set_threads": lambda context: context.set_threads(1),
    "length": lambda context: context.memory.length(0),
    "range": lambda context: context.memory.range(0),
    "trim": lambda context: context.memory.trim(0, 0),
    "remove": lambda context: context.memory.remove(0, 0, 1),
    "clear": lambda context: context.memory.clear(),
    "clear one": lambda context: context.memory.clear(0),
    "copy": lambda context: context.memory.copy(0, 0, 0),
    "keep": lambda context: context.memory.keep(0),
    "shift": lambda context: context.memory.shift(0, 0, 1),
    "can_shift": lambda context: context.memory.can_shift,
    "rollback": lambda context: context.memory.rollback,
    "save": pyspec.State.save,
}
MODEL_CALLS: dict[str, Callable[[pyspec.Model], object]] = {
    "chat_template": pyspec.Model.chat_template,
    "tokenize": lambda model: model.vocab.tokenize("hi"),
    "detokenize": lambda model: model.vocab.detokenize([60]),
    "pieces": lambda model: model.vocab.pieces([60]),
    "texts": lambda model: model.vocab.texts(0, 5),
    "attributes": lambda model: model.vocab.attributes(),
    "context": make_context,
    "engine": pyspec.Engine,
}


@pytest.mark.parametrize("call", CONTEXT_CALLS)
def test_a_closed_context_refuses(new_context: NewContext, call: str) -> None:
    context = new_context()
    context.close()
    assert context.closed
    assert "closed" in repr(context)
    with pytest.raises(ClosedError, match="context is closed"):
        CONTEXT_CALLS[call](context)


@pytest.mark.parametrize("call", MODEL_CALLS)
def test_a_closed_model_refuses(target_path: Path, call: str) -> None:
    model = pyspec.Model(target_path)
    model.close()
    assert model.closed
    assert "closed" in repr(model)
    with pytest.raises(ClosedError, match="model is closed"):
        MODEL_CALLS[call](model)


def test_what_is_known_stays_known(target_path: Path) -> None:
    with pyspec.Model(target_path) as model:
        pass
    assert (model.info.n_layer, model.vocab.eos, len(model.vocab)) == (4, 2, 384)
    assert model.metadata["general.architecture"] == "llama"


def test_an_abort_request_after_the_end_does_nothing(new_context: NewContext) -> None:
    context = new_context()
    context.close()
    context.request_abort()


def test_closing_twice_is_fine(target_path: Path) -> None:
    model = pyspec.Model(target_path)
    context = make_context(model)
    for _ in range(2):
        context.close()
        model.close()


def test_closing_a_model_closes_its_contexts(target_path: Path) -> None:
    model = pyspec.Model(target_path)
    contexts = [make_context(model) for _ in range(2)]
    model.close()
    assert all(context.closed for context in contexts)


def test_with_blocks_close(target_path: Path) -> None:
    with pyspec.Model(target_path) as model, make_context(model) as context:
        decode(context, PROMPT)
    assert model.closed
    assert context.closed


def test_a_view_outlives_model_and_context(target_path: Path) -> None:
    with pyspec.Model(target_path) as model, make_context(model) as context:
        view = decode(context, PROMPT).logits(0)
        copy = view.copy()
    del model, context
    gc.collect()
    assert (view == copy).all()


@pytest.mark.parametrize("order", ["model first", "context first"])
def test_forgotten_objects_free_themselves_in_any_order(target_path: Path, order: str) -> None:
    model = pyspec.Model(target_path)
    context: Any = make_context(model)
    decode(context, PROMPT)
    natives = [weakref.ref(model.handle._native), weakref.ref(context.handle._native)]
    if order == "model first":
        del model
        gc.collect()
        decode(context, [60])  # the context keeps its weights
        del context
    else:
        del context
        gc.collect()
        del model
    gc.collect()
    assert [native() for native in natives] == [None, None]


def test_a_model_in_a_cycle_is_freed(target_path: Path) -> None:
    model = pyspec.Model(target_path)
    context = make_context(model)
    native = weakref.ref(context.handle._native)
    cycle: list[Any] = [model, context]
    cycle.append(cycle)
    del model, context, cycle
    gc.collect()
    assert native() is None


def in_thread(function: Callable[[], object]) -> BaseException | None:
    """Run a function on another thread and return what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize("call", CONTEXT_CALLS)
def test_a_context_belongs_to_its_thread(context: pyspec.Context, call: str) -> None:
    assert isinstance(in_thread(lambda: CONTEXT_CALLS[call](context)), WrongThreadError)


def test_rows_and_samplers_belong_to_the_thread_of_their_context(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    sampler = pyspec.SamplerChain(pyspec.SamplingConfig(temperature=1.0), 384)
    assert isinstance(in_thread(lambda: rows.logits(0)), WrongThreadError)
    assert isinstance(in_thread(lambda: sampler.sample(rows, 0)), WrongThreadError)


def test_what_a_decode_logs_comes_with_it(new_context: NewContext, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="pyspec.llama_cpp")
    context = new_context()
    for _ in range(2):
        caplog.clear()
        decode(context, PROMPT)
        assert "attach_threadpool" in caplog.text
        context.memory.clear()


def test_what_was_asked_to_stop_does_not_complain(new_context: NewContext, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="pyspec.llama_cpp")
    context = new_context()
    context.request_abort()
    caplog.clear()
    with pytest.raises(pyspec.errors.DecodeAbortedError):
        decode(context, PROMPT)
    assert "failed to compute graph" in caplog.text
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


def test_closing_and_aborting_are_allowed_from_any_thread(new_context: NewContext) -> None:
    context = new_context()
    assert in_thread(context.request_abort) is None
    with pytest.raises(pyspec.errors.DecodeAbortedError):
        decode(context, PROMPT)
    context.request_abort(value=False)
    context.memory.clear()
    decode(context, PROMPT)
    assert in_thread(context.close) is None
    with pytest.raises(ClosedError):
        decode(context, PROMPT)


def test_closing_while_another_thread_decodes_frees_it_afterwards(target: pyspec.Model) -> None:
    for _ in range(20):
        made: list[pyspec.Context] = []

        def decode_for_ever(made: list[pyspec.Context] = made) -> None:
            made.append(make_context(target))
            while True:
                made[0].memory.clear()
                decode(made[0], [60] * 60)

        def work(function: Callable[[], None] = decode_for_ever) -> None:
            with pytest.raises(ClosedError):
                function()

        thread = threading.Thread(target=work)
        thread.start()
        while not made or not made[0].n_decodes:
            pass
        made[0].close()
        thread.join(30)
        assert not thread.is_alive()


def test_a_model_may_be_used_by_many_threads(target: pyspec.Model) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        text = f"thread {seed} " * 20
        for _ in range(30):
            failures.extend([seed] * (target.vocab.detokenize(target.vocab.tokenize(text)) != text))
        with make_context(target) as context:
            failures.extend([] if decode(context, PROMPT).argmax(7) == expected else [seed])

    with make_context(target) as context:
        expected = decode(context, PROMPT).argmax(7)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_handle_that_failed_an_assertion_is_not_used_again(
    new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = new_context(n_seq_max=2)
    decode(context, PROMPT)
    monkeypatch.setattr(pyspec.Memory, "checked", lambda _self, seq_id: seq_id)
    from pyspec._native import contexts

    with pytest.raises(NativeError, match="GGML_ASSERT"):
        contexts.memory_copy(context.handle, 0, 1, 0, 3)  # what Memory.copy refuses
    with pytest.raises(BrokenError, match="cannot be used again"):
        decode(context, [60])
    assert issubclass(BrokenError, LifetimeError)
    context.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_is_refused_and_ends_well(target_path: Path, run_script: Any) -> None:
    ended = run_script(
        """
        import os, sys
        import pyspec

        model = pyspec.Model(sys.argv[1])
        context = pyspec.Context(model, pyspec.ContextConfig(n_ctx=64, n_threads=2))
        engine = pyspec.Engine(model, context=pyspec.ContextConfig(n_ctx=64, n_threads=2))
        sampler = pyspec.SamplerChain(pyspec.SamplingConfig(temperature=1.0), 384)
        batch = pyspec.Batch()
        batch.add(60, 0, output=True)
        view = context.decode(batch).logits(0)
        before = engine.generate([1, 60, 75], max_tokens=4).tokens
        calls = [
            lambda: context.decode(batch),
            lambda: context.memory.length(0),
            lambda: model.vocab.tokenize("hi"),
            lambda: engine.generate([1, 60], max_tokens=2),
            lambda: sampler.accept(5),
            lambda: pyspec.Context(model),
        ]
        child = os.fork()
        if child == 0:
            refused = 0
            for call in calls:
                try:
                    call()
                except pyspec.errors.ForkedError:
                    refused += 1
            context.close(); engine.close(); model.close()
            small = pyspec.ContextConfig(n_ctx=64, n_threads=1)
            with pyspec.Model(sys.argv[1]) as own, pyspec.Context(own, small) as fresh:
                fresh.decode(batch).argmax(0)
            sys.exit(0 if refused == len(calls) else 10 + refused)  # an ordinary exit, with finalisers
        _, status = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(status))
        print("same", engine.generate([1, 60, 75], max_tokens=4).tokens == before)
        """,
        target_path,
    )
    assert ended.stdout == "child 0\nsame True\n"
    assert ended.stderr == ""


def test_a_forgotten_context_goes_without_the_garbage_collector(target: pyspec.Model) -> None:
    gc.disable()
    try:
        context = pyspec.Context(target, pyspec.ContextConfig(n_ctx=64, n_threads=1))
        assert context.memory.length(0) == 0
        gone = weakref.ref(context)
        del context
        assert gone() is None
    finally:
        gc.enable()
