"""Saved state: what was saved goes on exactly as if it had never been interrupted."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import State
from pyspec.errors import SequenceError, StateError
from tests.helpers import PROMPT, decode, next_row
from tests.llama.conftest import NewContext


@pytest.mark.parametrize("name", ["target-llama", "target-swa", "target-mamba", "target-lfm2", "target-mtp"])
def test_a_restored_sequence_goes_on_equally(new_context: NewContext, name: str) -> None:
    first, second = new_context(name, n_seq_max=2), new_context(name, n_seq_max=2)
    decode(first, PROMPT)
    state = State.save(first)
    assert state.length == 8
    expected = next_row(first, 99)
    state.restore(second, 1)
    assert (second.memory.length(0), second.memory.length(1)) == (0, 8)
    np.testing.assert_array_equal(next_row(second, 99, 1), expected)
    state.restore(first)
    assert first.memory.length(0) == 8
    np.testing.assert_array_equal(next_row(first, 99), expected)


def test_a_restore_replaces_what_was_there(context: pyspec.Context) -> None:
    decode(context, PROMPT[:3])
    state = State.save(context)
    decode(context, PROMPT[3:])
    state.restore(context)
    assert context.memory.length(0) == 3


def test_a_state_can_be_stored(context: pyspec.Context) -> None:
    decode(context, PROMPT)
    state = pickle.loads(pickle.dumps(State.save(context)))  # noqa: S301 - what was just made here
    context.memory.clear()
    state.restore(context)
    assert context.memory.length(0) == 8


def test_an_empty_sequence_has_no_state(context: pyspec.Context) -> None:
    with pytest.raises(StateError, match="empty"):
        State.save(context)


@pytest.mark.parametrize("seq_id", [-1, 1, "0", None, True])
def test_a_wrong_sequence(context: pyspec.Context, seq_id: Any) -> None:
    decode(context, PROMPT)
    with pytest.raises(SequenceError):
        State.save(context, seq_id)
    state = State.save(context)
    with pytest.raises(SequenceError):
        state.restore(context, seq_id)
    assert context.memory.length(0) == 8


@pytest.mark.parametrize("where", [0, 40, -1])
def test_a_damaged_state_is_refused_and_changes_nothing(context: pyspec.Context, where: int) -> None:
    decode(context, PROMPT)
    state = State.save(context)
    data = bytearray(state.data)
    data[where] ^= 1
    for damaged in (bytes(data), state.data[:-1], b"", state.data + b"x", None):
        with pytest.raises(StateError, match="damaged"):
            dataclasses.replace(state, data=damaged).restore(context)  # type: ignore[arg-type]
    assert context.memory.length(0) == 8


@pytest.mark.parametrize(
    "settings", [{"type_k": "f32"}, {"flash_attn": "off"}, {"n_seq_max": 2}, {"name": "draft-llama"}]
)
def test_the_state_of_another_model_or_layout_is_refused(
    context: pyspec.Context, new_context: NewContext, settings: dict[str, Any]
) -> None:
    decode(context, PROMPT)
    other = new_context(**settings)
    decode(other, PROMPT[:2])
    with pytest.raises(StateError, match="This state is of"):
        State.save(context).restore(other)
    assert other.memory.length(0) == 2


def test_a_state_too_long_for_the_context_is_refused(new_context: NewContext) -> None:
    large, small = new_context(n_ctx=512, n_batch=512), new_context(n_ctx=256)
    decode(large, [60 + i % 90 for i in range(300)])
    with pytest.raises(StateError, match="room for 256"):
        State.save(large).restore(small)
