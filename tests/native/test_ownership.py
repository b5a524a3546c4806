"""Handles that would be shared, copied or outlived: each class of misuse ends in an exception."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec.errors import (
    ClosedError,
    ConfigError,
    ContextFullError,
    LifetimeError,
    StateError,
    UnsupportedError,
    WrongThreadError,
)
from tests.helpers import PROMPT, decode, make_context


@pytest.mark.parametrize("operation", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_context_is_not_copied(target: pyspec.Model, operation: Any) -> None:
    with make_context(target) as context, pytest.raises(TypeError, match="cannot be"):
        operation(context)


@pytest.mark.parametrize("operation", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_nothing_that_owns_native_memory_is_copied(target: pyspec.Model, operation: Any) -> None:
    sampler = pyspec.SamplerChain(pyspec.SamplingConfig(temperature=1.0), 384)
    for thing in (target, target.vocab, sampler):
        with pytest.raises(TypeError, match="cannot be"):
            operation(thing)


def test_a_sampler_belongs_to_its_thread() -> None:
    sampler = pyspec.SamplerChain(pyspec.SamplingConfig(temperature=1.0), 384)
    caught: list[BaseException] = []

    def use() -> None:
        try:
            sampler.accept(5)
        except WrongThreadError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert caught


def test_closing_a_model_while_contexts_are_made(target_path: Any) -> None:
    for _ in range(10):
        model = pyspec.Model(target_path)
        closer = threading.Thread(target=model.close)
        closer.start()
        try:
            with make_context(model) as context:
                decode(context, PROMPT)
        except ClosedError:
            pass
        closer.join()


def test_a_decode_that_failed_has_reserved_no_rows(target: pyspec.Model) -> None:
    config = pyspec.ContextConfig(n_ctx=256, n_batch=256, n_ubatch=256, n_seq_max=2, kv_unified=True, n_threads=1)
    with pyspec.Context(target, config) as context:
        first, second, single = pyspec.Batch(), pyspec.Batch(), pyspec.Batch()
        first.extend([60] * 150, 0, 0)
        second.extend([60] * 150, 0, 1, output=True)
        single.add(60, 150, 0, output=True)
        context.decode(first)
        with pytest.raises(ContextFullError):
            context.decode(second)
        view = context.decode(single).logits(0)
        before = view.copy()
        context.memory.clear(0)
        with pytest.raises(LifetimeError, match="moves the buffer"):
            context.decode(second)
        assert np.array_equal(view, before)
        del view
        assert np.isfinite(context.decode(second).logits(149)).all()


@pytest.mark.parametrize("flag", [2, 300, "x", None])
def test_tampered_output_flags_are_refused(target: pyspec.Model, flag: Any) -> None:
    with make_context(target) as context:
        batch = pyspec.Batch()
        batch.extend(PROMPT, 0)
        batch.outputs = [flag] * len(PROMPT)
        with pytest.raises(pyspec.errors.BatchError):
            context.decode(batch)


@pytest.mark.parametrize("name", ["target-llama", "target-swa", "target-lfm2", "target-mamba"])
@pytest.mark.parametrize("unified", [False, True])
def test_keep_drops_the_others_and_leaves_the_kept_one_right(open_zoo: Any, name: str, *, unified: bool) -> None:
    model = open_zoo(name)
    config = pyspec.ContextConfig(n_ctx=512, n_seq_max=2, kv_unified=unified, n_threads=1)
    with pyspec.Context(model, config) as context, pyspec.Context(model, config) as fresh:
        for one in (context, fresh):
            batch = pyspec.Batch()
            batch.extend(PROMPT, 0, 0)
            one.decode(batch)
        other = pyspec.Batch()
        other.extend(PROMPT[:3], 0, 1)
        context.decode(other)
        context.memory.keep(0)
        assert (context.memory.length(0), context.memory.length(1)) == (len(PROMPT), 0)
        again = pyspec.Batch()
        again.add(60, 0, 1, output=True)
        rows = [one.decode(again).logits(0).copy() for one in (context, fresh)]
        assert np.allclose(rows[0], rows[1], atol=1e-4)


def test_a_state_of_another_file_is_refused(open_zoo: Any) -> None:
    with make_context(open_zoo("target-llama")) as context, make_context(open_zoo("target-llama-eog")) as other:
        decode(context, PROMPT)
        with pytest.raises(StateError, match="This state is of"):
            pyspec.State.save(context).restore(other)


def test_a_restore_that_fails_leaves_the_sequence(target: pyspec.Model) -> None:
    config = pyspec.ContextConfig(n_ctx=256, n_seq_max=2, kv_unified=True, n_threads=1)
    with pyspec.Context(target, config) as context:
        decode(context, [60] * 200)
        state = pyspec.State.save(context, 0)
        batch = pyspec.Batch()
        batch.extend(PROMPT, 0, 1)
        context.decode(batch)
        with pytest.raises(StateError):
            state.restore(context, 1)
        assert context.memory.length(1) == len(PROMPT)


def test_a_window_that_slid_is_not_saved(open_zoo: Any) -> None:
    with make_context(open_zoo("target-swa")) as context:
        decode(context, [60] * 40)
        with pytest.raises(UnsupportedError, match="sliding window"):
            pyspec.State.save(context)


def test_a_state_replaces_a_sequence_whose_window_slid(open_zoo: Any) -> None:
    with make_context(open_zoo("target-swa")) as context:
        decode(context, PROMPT)
        state = pyspec.State.save(context)
        context.memory.clear(0)
        decode(context, [60] * 40)
        state.restore(context)
        assert context.memory.length(0) == len(PROMPT)


def test_cells_that_may_be_shared_are_not_shifted(target: pyspec.Model) -> None:
    config = pyspec.ContextConfig(n_ctx=256, n_seq_max=2, kv_unified=True, n_threads=1)
    with pyspec.Context(target, config) as context:
        decode(context, PROMPT)
        context.memory.copy(0, 1, len(PROMPT))
        with pytest.raises(UnsupportedError, match="shifted too"):
            context.memory.shift(0, 0, 5)


def test_numpy_settings_become_plain_ones() -> None:
    sampling = pyspec.SamplingConfig(seed=np.int64(3), temperature=np.float32(1), logit_bias={np.int64(3): 1.0})
    assert (type(sampling.seed), type(sampling.temperature)) == (int, float)
    assert [type(token) for token in sampling.logit_bias] == [int]


def test_what_is_no_observer_is_refused_at_once(target: pyspec.Model) -> None:
    with pyspec.Engine(target, context=pyspec.ContextConfig(n_ctx=64, n_threads=1)) as engine:
        with pytest.raises(ConfigError, match="observer"):
            engine.stream(PROMPT, observer=5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="draft_model"):
            pyspec.Engine(target, speculation=pyspec.Speculation("ngram-simple", draft_model="x"))  # type: ignore[arg-type]


def test_any_exception_carries_what_was_generated(target: pyspec.Model) -> None:
    class Breaks:
        n_rounds = 0

        def begin(self, info: object) -> None: ...
        def end(self, result: object) -> None: ...
        def round(self, _outcome: object) -> None:
            self.n_rounds += 1
            if self.n_rounds == 4:
                raise KeyboardInterrupt

    with (
        pyspec.Engine(target, context=pyspec.ContextConfig(n_ctx=64, n_threads=1)) as engine,
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        engine.generate(PROMPT, observer=Breaks())
    assert len(caught.value.partial.tokens) >= 4  # type: ignore[attr-defined]
