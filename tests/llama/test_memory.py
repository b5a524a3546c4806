"""Memory: what it holds, what it gives up, and that a refusal cannot be overlooked."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import RollbackKind
from pyspec._native import contexts
from pyspec.errors import (
    ConfigError,
    DecodeAbortedError,
    OutOfMemoryError,
    PositionError,
    RollbackError,
    SequenceError,
    UnsupportedError,
)
from tests.helpers import PROMPT, decode, next_row
from tests.llama.conftest import NewContext
from tests.pairs import WITH_SNAPSHOTS

KINDS = {
    "target-llama": RollbackKind.TRIM,
    "target-swa": RollbackKind.TRIM,
    "target-mtp-chain": RollbackKind.TRIM,
    "target-mamba": RollbackKind.WHOLE,
    "target-lfm2": RollbackKind.WHOLE,
    "target-mtp": RollbackKind.WHOLE,
}


@pytest.mark.parametrize("n_batch", [1, 64])
@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_how_each_memory_rolls_back(new_context: NewContext, name: str, kind: RollbackKind, n_batch: int) -> None:
    context = new_context(name, n_batch=n_batch)
    assert context.memory.rollback is kind
    assert context.memory.range(0) == (-1, -1), "the probe must leave nothing"


def test_a_memory_in_use_is_not_probed(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2)
    decode(context, PROMPT, 1)
    with pytest.raises(PositionError, match="only be probed while it is empty"):
        _ = context.memory.rollback
    context.memory.clear()
    assert context.memory.rollback is RollbackKind.TRIM
    decode(context, PROMPT, 1)
    assert context.memory.rollback is RollbackKind.TRIM, "what was found once is known"


@pytest.mark.parametrize("error", [MemoryError, OutOfMemoryError])
def test_a_machine_without_memory_says_nothing_about_the_model(
    new_context: NewContext, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    context, real = new_context(), contexts.decode

    def decode_one(handle: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
        if positions == [1]:
            raise error
        return real(handle, tokens, positions, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(contexts, "decode", decode_one)
        with pytest.raises(MemoryError):
            _ = context.memory.rollback
    assert context.memory.rollback is RollbackKind.TRIM, "asked again, it is tried again"


@pytest.mark.parametrize("settings", [{}, {"n_rs_seq": 4}], ids=["", "snapshots"])
@pytest.mark.parametrize("name", KINDS)
def test_what_a_decode_that_stopped_leaves_is_right_or_nothing(
    new_context: NewContext, name: str, settings: dict[str, int]
) -> None:
    """Recurrent states move to be side by side, also those of sequences that only lie in between."""
    prompts = {3: PROMPT, 1: PROMPT[:5], 0: PROMPT[2:], 2: PROMPT[:3]}  # the states lie in this order
    context, alone = new_context(name, n_seq_max=4, **settings), new_context(name, n_seq_max=4, **settings)
    for seq_id, prompt in prompts.items():
        decode(context, prompt, seq_id)
        decode(alone, prompt, seq_id)
    context.request_abort()
    batch = pyspec.Batch()
    for seq_id in (2, 3):
        batch.add(99, len(prompts[seq_id]), seq_id, output=True)
    with pytest.raises(DecodeAbortedError):
        context.decode(batch)
    context.request_abort(value=False)
    for seq_id, prompt in prompts.items():
        held = context.memory.length(seq_id)
        assert held in (0, len(prompt))
        if not held:
            decode(context, prompt, seq_id)
        np.testing.assert_array_equal(next_row(context, 99, seq_id), next_row(alone, 99, seq_id))


@pytest.mark.parametrize("n_dropped", range(1, 6))
@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_a_state_that_was_not_kept_is_not_gone_back_to(new_context: NewContext, name: str, n_dropped: int) -> None:
    context, fresh = new_context(name, n_seq_max=2, n_rs_seq=8), new_context(name)
    decode(context, PROMPT[:5])
    decode(context, PROMPT[5:])
    length = len(PROMPT) - n_dropped
    if n_dropped >= 3:  # the last decode and more
        with pytest.raises(RollbackError, match="can drop the last 2"):
            context.memory.trim(0, length)
        with pytest.raises(RollbackError):
            context.memory.remove(0, length, len(PROMPT))
        length = len(PROMPT) - 2
    context.memory.trim(0, length)
    if length > 6:
        with pytest.raises(RollbackError, match="can drop the last 0"):
            context.memory.trim(0, length - 1)
    context.memory.copy(0, 1, length)
    decode(fresh, PROMPT[:length])
    expected = next_row(fresh, 99)
    for seq_id in (1, 0):
        np.testing.assert_allclose(next_row(context, 99, seq_id), expected, atol=1e-4)


@pytest.mark.parametrize("unified", [True, False], ids=["one buffer", "own buffers"])
@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_what_others_moved_on_is_dropped_rightly_or_not_at_all(
    new_context: NewContext, name: str, *, unified: bool
) -> None:
    exact: dict[str, Any] = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}
    context = new_context(name, n_seq_max=6, n_ctx=6 * 256, n_rs_seq=8, kv_unified=unified, **exact)
    fresh = new_context(name, n_ctx=256, **exact)
    n_refused = 0
    for seed in range(25):
        rng = random.Random(seed)  # noqa: S311 - the same in each run
        texts: dict[int, list[int]] = {seq_id: [] for seq_id in rng.sample(range(6), 6)}
        context.memory.clear()
        for group in (*([seq_id] for seq_id in texts), *(sorted(rng.sample(range(6), 4)) for _ in range(4))):
            batch, n_tokens = pyspec.Batch(), rng.randrange(2, 5)
            for seq_id in group:
                said = [rng.randrange(20, 300) for _ in range(n_tokens)]
                batch.extend(said, len(texts[seq_id]), seq_id, output=True)
                texts[seq_id] += said
            context.decode(batch)
            for seq_id in group:
                length = len(texts[seq_id]) - rng.randrange(n_tokens)
                try:
                    context.memory.trim(seq_id, length)
                except RollbackError:
                    n_refused += 1
                else:
                    del texts[seq_id][length:]
        for seq_id, text in texts.items():
            fresh.memory.clear()
            decode(fresh, text)
            np.testing.assert_allclose(next_row(context, 99, seq_id), next_row(fresh, 99), atol=1e-3)
    assert (n_refused == 0) is unified


@pytest.mark.parametrize("error", [KeyboardInterrupt, DecodeAbortedError, MemoryError])
def test_after_a_broken_off_decode_memory_is_asked_what_it_holds(
    context: pyspec.Context, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The tokens are in memory, and Python did not come to note it."""
    real = contexts.decode

    def broken_off(*arguments: Any) -> None:
        real(*arguments)
        raise error

    decode(context, PROMPT)
    with monkeypatch.context() as patched:
        patched.setattr(contexts, "decode", broken_off)
        with pytest.raises(error):
            decode(context, PROMPT)
    assert context.memory.length(0) == 2 * len(PROMPT)
    decode(context, PROMPT)
    assert context.memory.length(0) == 3 * len(PROMPT)


def test_lengths_and_ranges(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2)
    decode(context, PROMPT, 1)
    assert (context.memory.length(0), context.memory.length(1)) == (0, 8)
    assert (context.memory.range(0), context.memory.range(1)) == ((-1, -1), (0, 7))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind is RollbackKind.TRIM])
def test_after_a_trim_the_rest_is_as_if_nothing_had_been(new_context: NewContext, name: str) -> None:
    context, fresh = new_context(name), new_context(name)
    decode(context, PROMPT[:5])
    decode(context, [200, 210, 220])
    context.memory.trim(0, 5)
    assert context.memory.length(0) == 5
    decode(fresh, PROMPT[:5])
    np.testing.assert_array_equal(next_row(context, 99), next_row(fresh, 99))


def test_trims_past_the_window_of_a_sliding_model(new_context: NewContext) -> None:
    context, fresh = new_context("target-swa", n_ctx=256), new_context("target-swa", n_ctx=256)
    for i in range(60):  # the window is 16
        row = next_row(context, 40 + i)
        decode(context, [200, 201, 202])
        context.memory.trim(0, i + 1)
        np.testing.assert_array_equal(row, next_row(fresh, 40 + i))


def test_trimming_to_what_is_there_does_nothing(context: pyspec.Context) -> None:
    decode(context, PROMPT)
    context.memory.trim(0, 8)
    context.memory.trim(0, 1000)
    assert context.memory.length(0) == 8
    context.memory.trim(0, 0)
    assert context.memory.length(0) == 0


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind is RollbackKind.WHOLE])
def test_a_refused_trim_raises_and_changes_nothing(new_context: NewContext, name: str) -> None:
    context, untouched = new_context(name), new_context(name)
    decode(context, PROMPT)
    decode(untouched, PROMPT)
    with pytest.raises(RollbackError):
        context.memory.trim(0, 5)
    with pytest.raises(RollbackError):
        context.memory.remove(0, 3, 4)
    assert context.memory.length(0) == 8
    np.testing.assert_array_equal(next_row(context, 99), next_row(untouched, 99))
    context.memory.clear(0)
    assert context.memory.length(0) == 0, "everything can always go"


def test_clear_drops_one_or_all(new_context: NewContext) -> None:
    context = new_context(n_seq_max=3)
    for seq_id in range(3):
        decode(context, PROMPT, seq_id)
    context.memory.clear(1)
    assert [context.memory.length(seq_id) for seq_id in range(3)] == [8, 0, 8]
    context.memory.clear()
    assert [context.memory.length(seq_id) for seq_id in range(3)] == [0, 0, 0]


def test_keep_drops_the_others(new_context: NewContext) -> None:
    context = new_context(n_seq_max=3, kv_unified=True)
    for seq_id in range(3):
        decode(context, PROMPT, seq_id)
    context.memory.keep(1)
    assert [context.memory.length(seq_id) for seq_id in range(3)] == [0, 8, 0]


@pytest.mark.parametrize(("unified", "length"), [(True, 8), (True, 5), (False, 8)])
def test_a_copy_goes_on_like_the_original(new_context: NewContext, unified: bool, length: int) -> None:  # noqa: FBT001
    context, fresh = new_context(n_seq_max=2, kv_unified=unified), new_context(n_seq_max=2, kv_unified=unified)
    decode(context, PROMPT)
    context.memory.copy(0, 1, length)
    assert context.memory.length(1) == length
    decode(fresh, PROMPT[:length], 1)
    np.testing.assert_allclose(next_row(context, 99, 1), next_row(fresh, 99, 1), atol=1e-5)
    assert context.memory.length(0) == 8


def test_a_part_cannot_be_copied_between_buffers(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2)
    decode(context, PROMPT)
    with pytest.raises(UnsupportedError, match="kv_unified"):
        context.memory.copy(0, 1, 5)
    context.memory.copy(0, 1, 0)
    assert context.memory.length(1) == 0


@pytest.mark.parametrize("name", ["target-mamba", "target-lfm2"])
def test_a_recurrent_state_is_copied_whole(new_context: NewContext, name: str) -> None:
    context = new_context(name, n_seq_max=2, kv_unified=True)
    decode(context, PROMPT)
    with pytest.raises(UnsupportedError, match="recurrent"):
        context.memory.copy(0, 1, 5)
    context.memory.copy(0, 1, 8)
    np.testing.assert_allclose(next_row(context, 99, 1), next_row(context, 99), atol=1e-5)


def test_wrong_copies(new_context: NewContext) -> None:
    context = new_context(n_seq_max=2)
    decode(context, PROMPT)
    with pytest.raises(PositionError, match="9 cannot be copied"):
        context.memory.copy(0, 1, 9)
    with pytest.raises(PositionError, match="another sequence"):
        context.memory.copy(0, 0, 3)
    decode(context, PROMPT, 1)
    with pytest.raises(PositionError, match="empty"):
        context.memory.copy(0, 1, 8)


def test_a_block_can_be_cut_out_and_the_rest_shifted(context: pyspec.Context) -> None:
    assert context.memory.can_shift
    decode(context, PROMPT)
    context.memory.remove(0, 2, 5)
    context.memory.shift(0, 5, -3)
    assert context.memory.length(0) == 5
    assert np.isfinite(next_row(context, 99)).all()


def test_wrong_shifts(context: pyspec.Context) -> None:
    decode(context, PROMPT)
    with pytest.raises(PositionError, match="negative"):
        context.memory.shift(0, 2, -3)
    with pytest.raises(PositionError, match="past"):
        context.memory.shift(0, 2, 2**31 - 1)
    assert context.memory.length(0) == 8


@pytest.mark.parametrize("seq_id", [-1, 2, 2**40, 0.0, "0", None, True])
def test_a_wrong_sequence_in_every_call(new_context: NewContext, seq_id: Any) -> None:
    memory = new_context(n_seq_max=2).memory
    calls: list[Any] = [
        memory.length,
        memory.range,
        lambda s: memory.trim(s, 0),
        lambda s: memory.remove(s, 0, 1),
        lambda s: memory.copy(s, 0, 0),
        lambda s: memory.copy(0, s, 0),
        lambda s: memory.shift(s, 0, 1),
        memory.keep,
    ]
    if seq_id is not None:  # clear(None) drops everything
        calls.append(memory.clear)
    for call in calls:
        with pytest.raises(SequenceError, match="There is no sequence"):
            call(seq_id)


@pytest.mark.parametrize("number", [-1, 2**31, 1.5, "1", None])
def test_wrong_positions(context: pyspec.Context, number: Any) -> None:
    memory = context.memory
    for call in (memory.trim, lambda s, n: memory.remove(s, n, 5), lambda s, n: memory.shift(s, n, 1)):
        with pytest.raises(ConfigError):
            call(0, number)


def test_numpy_sequences_are_fine(context: pyspec.Context) -> None:
    decode(context, PROMPT)
    context.memory.trim(np.int64(0), np.int32(3))
    assert context.memory.length(np.int8(0)) == 3
