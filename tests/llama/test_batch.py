"""What a decode refuses, and that it leaves memory as it was."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec.errors import (
    BatchError,
    ClosedError,
    ConfigError,
    ContextFullError,
    PositionError,
    SequenceError,
    TokenError,
    UnsupportedError,
    WrongThreadError,
)
from pyspec.llama.batch import NO_TOKEN
from pyspec.llama.entries import checked_ends, plain_ends
from tests.helpers import PROMPT, decode
from tests.llama.conftest import NewContext


def one(token: Any = 60, position: Any = 0, seq_ids: Any = 0) -> pyspec.Batch:
    batch = pyspec.Batch()
    batch.add(token, position, seq_ids, output=True)
    return batch


def test_a_batch_keeps_what_was_added() -> None:
    batch = pyspec.Batch()
    batch.add(5, 0, [0, 1], output=True)
    batch.extend([6, 7], 1, np.int64(1))
    assert (batch.tokens, batch.positions) == ([5, 6, 7], [0, 1, 2])
    assert (batch.seq_ids, batch.outputs, batch.n_outputs, len(batch)) == (
        [(0, 1), (1,), (1,)],
        [True, False, False],
        1,
        3,
    )
    batch.clear()
    assert (len(batch), batch.n_outputs) == (0, 0)


@pytest.mark.parametrize("token", [-1, 384, 2**31, 2**70, 1.0, float("nan"), "1", None, True, [1], np.array([1, 2])])
def test_a_wrong_token(context: pyspec.Context, token: Any) -> None:
    with pytest.raises(TokenError, match="Entry 0 has the token"):
        context.decode(one(token))
    assert context.memory.length(0) == 0


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint16])
def test_numpy_integers_are_fine(context: pyspec.Context, kind: Any) -> None:
    context.decode(one(kind(60), kind(0), [kind(0)]))
    assert context.memory.length(0) == 1


@pytest.mark.parametrize("position", [1, -1, 2**31, 0.0, "0", None, False])
def test_a_wrong_position(context: pyspec.Context, position: Any) -> None:
    with pytest.raises(PositionError, match="Entry 0 is at position"):
        context.decode(one(position=position))
    assert context.memory.length(0) == 0


def test_a_gap_a_repetition_and_a_step_back(context: pyspec.Context) -> None:
    decode(context, PROMPT)
    for position in (len(PROMPT) + 1, len(PROMPT) - 1, 0):
        with pytest.raises(PositionError, match=f"next position is {len(PROMPT)}"):
            context.decode(one(position=position))
    batch = pyspec.Batch()
    batch.extend([60, 61], len(PROMPT))
    batch.add(62, len(PROMPT) + 1)
    with pytest.raises(PositionError, match="Entry 2"):
        context.decode(batch)
    assert context.memory.length(0) == len(PROMPT)


@pytest.mark.parametrize("seq_id", [1, -1, 256, 2**40, "0", None, 1.5, True])
def test_a_wrong_sequence(context: pyspec.Context, seq_id: Any) -> None:
    batch = one()
    batch.seq_ids[0] = (seq_id,)
    with pytest.raises(SequenceError, match="Entry 0 is of sequence"):
        context.decode(batch)


@pytest.mark.parametrize("value", [1.0, True, "1", np.int64(1)])
@pytest.mark.parametrize("name", ["tokens", "positions"])
def test_a_message_names_the_type_that_is_wrong(context: pyspec.Context, name: str, value: Any) -> None:
    batch = one()
    getattr(batch, name)[0] = value
    with pytest.raises(ConfigError, match=rf"\({type(value).__name__}, not int\)"):
        context.decode(batch)


@pytest.mark.parametrize("seq_ids", [(), [], None, 1.5, {0}, {0: 1}, "0", b"0"])
def test_an_entry_needs_a_sequence(seq_ids: Any) -> None:
    with pytest.raises(BatchError, match="seq_ids must be"):
        one(seq_ids=seq_ids)


@pytest.mark.parametrize("tokens", ["abc", b"abc", 5, None])
def test_only_tokens_extend_a_batch(tokens: Any) -> None:
    with pytest.raises(TokenError):
        pyspec.Batch().extend(tokens, 0)


def test_an_empty_batch(context: pyspec.Context) -> None:
    with pytest.raises(BatchError, match="1 to 64 entries"):
        context.decode(pyspec.Batch())


@pytest.mark.parametrize("batch", [None, [1, 2], "batch"])
def test_what_is_no_batch(context: pyspec.Context, batch: Any) -> None:
    with pytest.raises(BatchError, match="must be a Batch"):
        context.decode(batch)


def test_a_batch_that_is_too_long(context: pyspec.Context) -> None:
    with pytest.raises(BatchError, match="not 65"):
        decode(context, [60] * 65)
    assert context.memory.length(0) == 0


def test_too_many_rows(new_context: NewContext) -> None:
    context = new_context(n_outputs_max=4)
    with pytest.raises(BatchError, match="5 logits rows are wanted; at most 4"):
        decode(context, [60] * 5)
    assert len(decode(context, [60] * 4)) == 4


@pytest.mark.parametrize("name", ["tokens", "positions", "seq_ids", "outputs"])
def test_lists_that_were_changed_behind_its_back(context: pyspec.Context, name: str) -> None:
    batch = one()
    getattr(batch, name).append(getattr(batch, name)[0])
    with pytest.raises(BatchError, match=f"must be equally long .*, not .*2 {name}"):
        context.decode(batch)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("n_outputs", 2, "n_outputs of a batch must be 1, the rows that outputs wants, not 2"),
        ("n_outputs", True, "n_outputs of a batch must be 1, .* not True"),
        ("n_outputs", None, "n_outputs of a batch must be 1, .* not None"),
        ("outputs", [False], "n_outputs of a batch must be 0, .* not 1"),
        ("outputs", [1], r"outputs\[0\] of a batch must be True or False, not 1"),
        ("outputs", [np.True_], r"outputs\[0\] of a batch must be True or False, not "),
        ("tokens", (60,), "tokens of a batch must be a list, not tuple"),
        ("positions", np.arange(1), "positions of a batch must be a list, not ndarray"),
        ("states", [None, None], "must be equally long .*, not .*2 states"),
    ],
)
def test_what_does_not_agree_is_named(context: pyspec.Context, name: str, value: Any, found: str) -> None:
    batch = one()
    setattr(batch, name, value)
    with pytest.raises(BatchError, match=found + r".*; fill a batch with add\(\)"):
        context.decode(batch)


@pytest.mark.parametrize("error", [WrongThreadError, ClosedError, TokenError])
def test_rows_outlive_a_decode_that_was_refused(context: pyspec.Context, error: type[Exception]) -> None:
    rows = context.decode(one())
    best = rows.argmax(0)
    batch = one(-5 if error is TokenError else 60, 1)
    if error is WrongThreadError:
        with ThreadPoolExecutor(1) as other, pytest.raises(error):
            other.submit(context.decode, batch).result()
    else:
        if error is ClosedError:
            context.close()
        with pytest.raises(error):
            context.decode(batch)
    assert rows.argmax(0) == best


PARTS = ["tokens", "positions", "seq_ids", "outputs", "states", "n_outputs"]
ODD = [None, 7, 1.0, "ab", (1,), {1: 2}, np.ones(3), [np.ones(3)], ["x"], [7.5], [None], [()]]


@pytest.mark.parametrize(("name", "value"), [*itertools.product(PARTS, ODD), ("seq_ids", [5]), ("outputs", [7])])
def test_parts_that_are_something_else(context: pyspec.Context, name: str, value: Any) -> None:
    batch = one()
    setattr(batch, name, value)
    with pytest.raises(ConfigError):
        context.decode(batch)
    assert context.memory.length(0) == 0


def test_a_full_context_leaves_memory_as_it_was(new_context: NewContext) -> None:
    context = new_context(n_ctx=256, n_batch=256)
    assert context.n_ctx_seq == 256
    decode(context, [60 + i % 100 for i in range(250)])
    with pytest.raises(ContextFullError, match="257 tokens; the context has room for 256"):
        decode(context, [60] * 7)
    assert context.memory.length(0) == 250
    decode(context, [60] * 6)


def test_one_entry_may_belong_to_several_sequences(new_context: NewContext) -> None:
    context = new_context(n_seq_max=3, kv_unified=True)
    batch = pyspec.Batch()
    for i, token in enumerate(PROMPT):
        batch.add(token, i, [0, 1, 2], output=i == len(PROMPT) - 1)
    shared = context.decode(batch).logits(0).copy()
    assert [context.memory.length(seq_id) for seq_id in range(3)] == [len(PROMPT)] * 3
    context.memory.clear()
    alone = decode(context, PROMPT).logits(len(PROMPT) - 1)
    np.testing.assert_allclose(shared, alone, atol=1e-5)


def test_batches_of_every_shape_follow_each_other(new_context: NewContext) -> None:
    context = new_context(n_seq_max=3, kv_unified=True, n_ctx=512, n_batch=128)
    alone = decode(context, [1, *range(50, 149)]).logits(99).copy()
    for shared in (100, 3, 0, 70, 100):  # entries of three sequences, before those of one
        context.memory.clear()
        batch = pyspec.Batch()
        batch.add(1, 0, [0, 1, 2])
        context.decode(batch)
        batch.clear()
        for position in range(1, 100):
            seq_ids = [0, 1, 2] if position < shared else 2
            batch.add(49 + position, position, seq_ids, output=position == 99)
        np.testing.assert_allclose(context.decode(batch).logits(0), alone, atol=1e-5)


def test_the_short_check_says_what_the_long_one_would(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2, n_ctx=64)
    decode(context, [1, 50, 51], 0)
    decode(context, [1, 52], 1)
    places: tuple[Any, ...] = (0, 1, 2, (0, 1))
    tokens: tuple[Any, ...] = (-1, 5, 384, True, 1.0)
    entries = itertools.product(tokens, (0, 2, 3, 4, 31, 32), places)
    n_recognised = 0
    for token, position, seq_ids in entries:
        batch = pyspec.Batch()
        batch.add(5, 3, 0, output=True)
        batch.add(token, position, seq_ids)
        if (ends := plain_ends(context, batch)) is not None:
            n_recognised += 1
            assert ends == checked_ends(context, batch)
    assert n_recognised == 2  # what follows in either sequence


def test_a_sequence_named_twice_in_an_entry(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2)
    with pytest.raises(BatchError, match="Entry 0 names a sequence twice"):
        context.decode(one(seq_ids=(0, 0)))


def test_shared_entries_take_one_buffer(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2)
    with pytest.raises(UnsupportedError, match="kv_unified=True"):
        context.decode(one(seq_ids=(0, 1)))
    assert [context.memory.length(seq_id) for seq_id in (0, 1)] == [0, 0]


@pytest.mark.parametrize("layout", [{"kv_unified": True}, {"kv_unified": False}])
def test_states_are_not_shared(open_zoo: Any, layout: Any) -> None:
    config = pyspec.ContextConfig(n_ctx=64, n_seq_max=2, **layout)
    with pyspec.Context(open_zoo("target-mamba"), config) as context, pytest.raises(UnsupportedError, match="state"):
        context.decode(one(seq_ids=(0, 1)))


def test_a_full_buffer_tells_its_size(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2, kv_unified=True, n_ctx=256, n_batch=256)
    decode(context, [60] * 200, 0)
    with pytest.raises(ContextFullError, match=r"a batch of 100 entries in a memory of 256\b"):
        decode(context, [60] * 100, 1)
    assert [context.memory.length(seq_id) for seq_id in (0, 1)] == [200, 0]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_rows_of_no_numbers(new_context: NewContext, odd: float, place: int) -> None:
    context = new_context(n_seq_max=2, kv_unified=True, flash_attn="off")
    batch = pyspec.Batch()
    for position in range(2):
        row = np.zeros(context.model.info.n_embd_inp, np.float32)
        row[place] = odd if position else 0.0
        batch.add(NO_TOKEN, position, 1, output=True, state=row)
    with pytest.raises(BatchError, match="The row of entry 1"):
        context.decode(batch)
    assert context.memory.length(1) == 0
    assert np.isfinite(decode(context, PROMPT).logits(0)).all()


def test_an_encoder_or_a_head_cannot_be_used_like_a_model(open_zoo: Any) -> None:
    with pytest.raises(pyspec.errors.ContextCreateError):
        pyspec.Context(open_zoo("draft-dflash"), pyspec.ContextConfig(n_ctx=64))


@pytest.mark.parametrize("arguments", [(None,), ("model",), (5, None)])
def test_a_context_needs_a_model(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        pyspec.Context(*arguments)


def test_a_context_needs_settings_of_its_kind(target: pyspec.Model) -> None:
    with pytest.raises(ConfigError):
        pyspec.Context(target, {"n_ctx": 5})  # type: ignore[arg-type]


def test_a_context_larger_than_the_machine_is_refused(target: pyspec.Model) -> None:
    with pytest.raises(pyspec.errors.ContextCreateError, match="MiB"):
        pyspec.Context(target, pyspec.ContextConfig(n_ctx=2**31 - 1))


@pytest.mark.parametrize("settings", [{"type_k": "q8_0"}, {"type_v": "q4_0"}, {"flash_attn": "off"}, {"n_ubatch": 1}])
def test_layouts_of_memory(new_context: NewContext, settings: dict[str, Any]) -> None:
    usual, other = new_context(), new_context(**settings)
    loose = 0.0 if "type_k" not in settings and "type_v" not in settings else 2.0
    difference = np.abs(decode(usual, PROMPT).logits(7) - decode(other, PROMPT).logits(7)).max()
    assert difference <= 0.05 + loose


@pytest.mark.parametrize("settings", [{"n_outputs_max": 2}, {"n_batch": 2}, {"n_ctx": 1, "n_batch": 2}])
def test_every_sequence_needs_room_for_a_row(target: pyspec.Model, settings: dict[str, int]) -> None:
    chosen = {"n_ctx": 64, "n_batch": 8, "n_seq_max": 3, **settings}
    with pytest.raises(ConfigError, match="3 sequences"):
        pyspec.Context(target, pyspec.ContextConfig(**chosen, n_ubatch=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("n_threads", [0, -1, 513, 1.5, "2", None])
def test_a_wrong_number_of_threads(context: pyspec.Context, n_threads: Any) -> None:
    with pytest.raises(ConfigError):
        context.set_threads(n_threads)
