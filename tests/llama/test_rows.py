"""Logits rows: values, order, and how long they live."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec.errors import ConfigError, DecodeError, LifetimeError, TokenError
from tests.helpers import PROMPT, decode
from tests.llama.conftest import NewContext, Place
from tests.sampling import N


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


def test_rows_are_split_in_order(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    parts = rows[1:].split([2, 0, 3])
    assert [len(part) for part in parts] == [2, 0, 3]
    found = [part.argmax(i) for part in parts for i in range(len(part))]
    assert found == [rows.argmax(i) for i in range(1, 6)]
    assert [len(part) for part in rows.split(np.array([2, 0, 3]))] == [2, 0, 3]
    assert [len(part) for part in rows.split([np.int64(len(PROMPT))])] == [len(PROMPT)]
    assert rows.split([]) == []
    decode(context, [1])
    with pytest.raises(LifetimeError):
        parts[2].argmax(0)


WRONG_COUNTS = [None, 3, "12", [9], [4, 5], [-1, 3], [1.0], [True], [None], [2**80], [np.array([1, 2])]]


@pytest.mark.parametrize("counts", WRONG_COUNTS)
def test_wrong_parts_are_refused(context: pyspec.Context, counts: Any) -> None:
    rows = decode(context, PROMPT)
    with pytest.raises(ConfigError):
        rows.split(counts)


@pytest.mark.parametrize("row", [-1, 8, 2**40, 0.0, "0", None, True])
def test_a_wrong_row(context: pyspec.Context, row: Any) -> None:
    rows = decode(context, PROMPT)
    for read in (rows.logits, rows.argmax, lambda i: rows.top_k(i, 1), lambda i: rows.logprobs(i, [1])):
        with pytest.raises(ConfigError, match="does not exist"):
            read(row)


@pytest.mark.parametrize("k", [0, -1, 1.0, None, 2**40])
def test_a_wrong_k(context: pyspec.Context, k: Any) -> None:
    with pytest.raises(ConfigError):
        decode(context, PROMPT).top_k(0, k)


@settings(deadline=None)  # machines are shared
@given(st.integers(0, 2**20), st.sampled_from([0.0, 1.0, 10.0, 1e4, 1e30]), st.sampled_from([0.0, -500.0, 1e6]))
def test_logprobs_are_those_of_numpy(place: Place, seed: int, spread: float, offset: float) -> None:
    rows, row = place
    row[:] = np.random.default_rng(seed).normal(offset, spread, N)
    logits = row.astype(np.float64)
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    tokens = [7, 0, 383, 7, int(np.argmax(row))]
    found = rows.logprobs(0, tokens)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected[tokens], rtol=1e-12, atol=1e-6)
    np.testing.assert_array_equal(rows.logprobs(0, np.array(tokens)), found)
    assert rows.logprobs(0, iter(tokens)).tolist() == found.tolist()
    assert rows.logprobs(0, ()).shape == (0,)


def test_logprobs_of_strange_rows(place: Place) -> None:
    rows, row = place
    row[:] = -math.inf
    with pytest.raises(DecodeError, match="not numbers"):
        rows.logprobs(0, [1])
    row[:] = math.nan
    with pytest.raises(DecodeError, match="not numbers"):
        rows.logprobs(0, [1])
    row[[3, 4, 5]] = [1.0, 1.0, -math.inf]
    np.testing.assert_allclose(rows.logprobs(0, [3, 4, 5, 6]), [-math.log(2), -math.log(2), -math.inf, -math.inf])
    row[[7, 8]] = math.inf
    np.testing.assert_allclose(rows.logprobs(0, [3, 7, 8]), [-math.inf, -math.log(2), -math.log(2)])


@pytest.mark.parametrize("tokens", [[-1], [384], [2**40], [1.5], ["a"], [None], [True], "abc", 5, None, [[1]]])
def test_logprobs_of_wrong_tokens(context: pyspec.Context, tokens: Any) -> None:
    with pytest.raises(TokenError, match="0 to 383"):
        decode(context, PROMPT).logprobs(0, tokens)


def test_a_row_without_a_number_above_minus_infinity_has_no_best(place: Place) -> None:
    from pyspec._native import contexts

    rows, row = place
    for value in (-math.inf, math.nan):
        row[:] = value
        every = np.full(12, 2**32 - 1, np.uint32)
        assert contexts.best_allowed(rows._context.handle, 0, every) == -1
        row[9] = -3e38
        assert contexts.best_allowed(rows._context.handle, 0, every) == 9


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
    for read in (rows.logits, lambda i: rows.top_k(i, 2), lambda i: rows.logprobs(i, [2])):
        with pytest.raises(pyspec.errors.ClosedError):
            read(0)
