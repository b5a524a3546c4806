"""Logits rows: values, order, and how long they live."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec.errors import ConfigError, LifetimeError
from tests.helpers import PROMPT, decode
from tests.llama.conftest import NewContext


def test_only_wanted_rows_come_in_batch_order(context: pyspec.Context, new_context: NewContext) -> None:
    every = decode(new_context(), PROMPT)
    batch = pyspec.Batch()
    for i, token in enumerate(PROMPT):
        batch.add(token, i, output=i in (1, 4, 7))
    some = context.decode(batch)
    assert len(some) == 3
    for row, position in enumerate((1, 4, 7)):
        np.testing.assert_allclose(some.logits(row), every.logits(position), atol=1e-5)


def test_no_rows_when_none_is_wanted(context: pyspec.Context) -> None:
    batch = pyspec.Batch()
    batch.add(60, 0)
    rows = context.decode(batch)
    assert len(rows) == 0
    assert context.logits_view().shape == (0, 384)
    with pytest.raises(ConfigError, match="There are 0 logits rows"):
        rows.argmax(0)


def test_best_tokens_are_those_of_numpy(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    for i in range(len(PROMPT)):
        logits = rows.logits(i)
        order = np.lexsort((np.arange(384), -logits))
        assert rows.argmax(i) == int(np.argmax(logits)) == order[0]
        for k in (1, 2, 10, 383, 384, 500):
            tokens, values = rows.top_k(i, k)
            assert tokens.tolist() == order[:k].tolist()
            np.testing.assert_array_equal(values, logits[order[:k]])


def test_among_equals_the_lowest_id_comes_first(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    logits = rows.logits(7)
    equal = np.flatnonzero(logits == logits[0])  # tokens outside the ring share one logit
    assert len(equal) > 100
    tokens, _ = rows.top_k(7, 384)
    ranked = [int(token) for token in tokens if token in set(equal.tolist())]
    assert ranked == sorted(ranked)


def test_a_slice_is_a_part_of_the_rows(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    part = rows[2:5][1:]
    assert len(part) == 2
    assert [part.argmax(i) for i in range(2)] == [rows.argmax(3), rows.argmax(4)]
    assert len(rows[5:2]) == 0
    assert len(rows[3:99]) == 5
    with pytest.raises(ConfigError):
        part.argmax(2)


@pytest.mark.parametrize("part", [0, "a", None, slice(0, 4, 2), slice(None, None, -1)])
def test_other_ways_to_index_are_refused(context: pyspec.Context, part: Any) -> None:
    rows = decode(context, PROMPT)
    with pytest.raises(ConfigError):
        rows[part]


@pytest.mark.parametrize("row", [-1, 8, 2**40, 0.0, "0", None, True])
def test_a_wrong_row(context: pyspec.Context, row: Any) -> None:
    rows = decode(context, PROMPT)
    for read in (rows.logits, rows.argmax, lambda i: rows.top_k(i, 1)):
        with pytest.raises(ConfigError, match="does not exist"):
            read(row)


@pytest.mark.parametrize("k", [0, -1, 1.0, None, 2**40])
def test_a_wrong_k(context: pyspec.Context, k: Any) -> None:
    with pytest.raises(ConfigError):
        decode(context, PROMPT).top_k(0, k)


def test_a_view_cannot_be_written(context: pyspec.Context) -> None:
    view = decode(context, PROMPT).logits(0)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.setflags(write=True)


def test_rows_end_with_the_next_decode(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    part = rows[1:]
    decode(context, [60])
    for stale in (rows, part):
        with pytest.raises(LifetimeError, match="overwritten"):
            stale.argmax(0)
        with pytest.raises(LifetimeError, match="overwritten"):
            stale.logits(0)


def test_rows_end_with_a_probe_of_the_memory(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    context.memory.clear()
    assert context.memory.rollback is pyspec.RollbackKind.TRIM
    with pytest.raises(LifetimeError, match="overwritten"):
        rows.argmax(0)


def test_a_view_survives_the_context(new_context: NewContext) -> None:
    context = new_context()
    view = decode(context, PROMPT).logits(3)
    copy = view.copy()
    context.close()
    del context
    gc.collect()
    np.testing.assert_array_equal(view, copy)


def test_a_decode_that_would_move_a_view_is_refused(new_context: NewContext) -> None:
    context = new_context()
    view = decode(context, [60]).logits(0)
    before = view.copy()
    with pytest.raises(LifetimeError, match="Drop or copy"):
        decode(context, [61] * 32)
    assert context.memory.length(0) == 1, "the refused decode must not have happened"
    np.testing.assert_array_equal(view, before)
    decode(context, [61])  # no more rows than before: fine, and the view shows the new ones
    assert not np.array_equal(view, before)
    del view
    decode(context, [61] * 32)


def test_reading_a_closed_context_is_refused(new_context: NewContext) -> None:
    context = new_context()
    rows = decode(context, PROMPT)
    context.close()
    assert rows.argmax(0) >= 0  # came with the decode
    for read in (rows.logits, lambda i: rows.top_k(i, 2)):
        with pytest.raises(pyspec.errors.ClosedError):
            read(0)
