"""Which shares of a round are computed at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.speculation.draft import Draft, Proposal
from pyspec.speculation.propose import draft_budget
from pyspec.speculation.verify import Share, decodes

N_UBATCH = 8


def target(**kind: bool) -> Any:
    memory = SimpleNamespace(**{"one_ubatch": False, "reuses_cells": False, "consecutive": False, **kind})
    return SimpleNamespace(memory=memory, n_ubatch=N_UBATCH, n_batch=64, n_outputs_max=64, n_ctx_seq=512)


def sequence(seq_id: int, lag: int) -> Any:
    ending, drafting = SimpleNamespace(remaining=100), SimpleNamespace(types=None, n_max=None)
    return SimpleNamespace(seq_id=seq_id, rows={}, n_committed=40, lag=lag, ending=ending, drafting=drafting)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=8))
def test_where_cells_are_reused_no_decode_is_computed_in_pieces(sizes: list[tuple[int, int]]) -> None:
    """The next piece would take what the rejected drafts of the former one still need."""
    shares = [
        Share(sequence(i, lag), Proposal(Draft((7,) * n_drafted), "x"), lag) for i, (lag, n_drafted) in enumerate(sizes)
    ]
    made = [list(together) for together in decodes(target(reuses_cells=True), shares)]
    assert [share for together in made for share in together] == shares
    assert all(sum(share.n_entries for share in together) <= N_UBATCH for together in made)
    assert [list(each) for each in decodes(target(), shares)] == [shares]


@pytest.mark.parametrize("kind", ["one_ubatch", "reuses_cells"])
def test_a_draft_fits_a_physical_batch_with_what_comes_before_it(kind: str) -> None:
    assert draft_budget(sequence(0, 3), target(**{kind: True}), 1) == N_UBATCH - 3 - 1
    assert draft_budget(sequence(0, 3), target(), 1) == 60
