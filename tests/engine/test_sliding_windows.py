"""Sequences that share a buffer take the cells that a sliding window has left; what is said stays the same."""

from __future__ import annotations

from typing import Any

import pytest

import pyspec
from tests.engine.test_engine_native import same_or_tied
from tests.pairs import OpenZoo, sizes
from tests.pulled import PulledEngine

WINDOW = 16
TEXT = [1, *(20 + i % 90 for i in range(60))]
OTHER = [1, *(200 + i % 70 for i in range(59))]


def decoded(context: pyspec.Context, *shares: tuple[int, int, list[int]]) -> None:
    """Decode tokens of sequences: number, first position, tokens."""
    batch = pyspec.Batch()
    for seq_id, first, tokens in shares:
        batch.extend(tokens, first, seq_id)
    context.decode(batch)


def in_pieces(context: pyspec.Context, seq_id: int, tokens: list[int], first: int = 0) -> None:
    for at in range(0, len(tokens), WINDOW):
        decoded(context, (seq_id, first + at, tokens[at : at + WINDOW]))


@pytest.fixture
def context(open_zoo: OpenZoo) -> Any:
    config = pyspec.ContextConfig(n_ctx=512, n_batch=64, n_ubatch=WINDOW, n_seq_max=3, kv_unified=True, n_threads=1)
    with pyspec.Context(open_zoo("target-swa"), config) as made:
        yield made


def low_cells_are_free(context: pyspec.Context) -> None:
    """Leave a hole before a text, where the search for cells begins."""
    in_pieces(context, 0, OTHER[:WINDOW])
    in_pieces(context, 1, TEXT)
    context.memory.clear(0)


def test_a_window_does_not_go_back_when_others_took_its_cells(context: pyspec.Context) -> None:
    low_cells_are_free(context)
    assert context.memory.reuses_cells
    assert all(context.memory.reaches(1, length) for length in range(len(TEXT) + 1))
    in_pieces(context, 2, OTHER)
    assert not context.memory.reaches(1, 20)
    assert context.memory.reaches(1, len(TEXT))
    assert context.memory.reaches(1, 0)


def test_drafts_move_the_window_on_for_the_next_physical_batch(context: pyspec.Context) -> None:
    """This is why drafts must be computed at once with all that stands beside them."""
    low_cells_are_free(context)
    decoded(context, (1, len(TEXT), TEXT[1:13]), (2, 0, OTHER[:52]))
    context.memory.trim(1, len(TEXT) + 1)
    assert not context.memory.reaches(1, len(TEXT) + 1)


@pytest.mark.parametrize("types", ["none", "ngram-simple"])
def test_a_request_that_begins_like_one_whose_window_is_lost_reads_it_again(types: str, open_zoo: OpenZoo) -> None:
    settings: dict[str, Any] = {"speculation": pyspec.Speculation(types), "context": sizes(2), "n_slots": 2}
    with PulledEngine(open_zoo("target-swa"), **settings) as fresh:
        expected = fresh.generate([*TEXT[:45], 7], max_tokens=12, n_top=4)
    with PulledEngine(open_zoo("target-swa"), **settings) as engine:
        first = [engine.stream(prompt, max_tokens=2) for prompt in (OTHER[:20], TEXT)]
        while engine.place.busy:
            engine.place.scheduler.step()
        for stream in first:
            stream.close()
        engine.generate([5, *(250 + i % 60 for i in range(50))], max_tokens=8)
        again = engine.generate([*TEXT[:45], 7], max_tokens=12, n_top=4)
    assert dict(again.top[0]) == pytest.approx(dict(expected.top[0]), abs=0.01)
    same_or_tied(expected, again)
