"""No end before its time: the constraint by itself, and beside another one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.llama.mask import TokenMask, allows
from pyspec.llama.minimum import MinimumLength

N_VOCAB = 70
ENDS = frozenset({3, 64})


class Only:
    """Allows the same few tokens always."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.seen: list[int] = []

    def mask(self) -> TokenMask:
        words = np.zeros(3, np.uint32)
        for token in self.tokens:
            words[token // 32] |= np.uint32(1 << token % 32)
        return words

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def save(self) -> int:
        return len(self.seen)

    def restore(self, mark: int) -> None:
        del self.seen[mark:]

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        return next((i for i, token in enumerate(tokens) if token not in self.tokens), len(tokens))

    def forced(self) -> list[int]:
        return [7]


def legal(constraint: MinimumLength) -> set[int]:
    mask = constraint.mask()
    return set(range(N_VOCAB)) if mask is None else {token for token in range(N_VOCAB) if allows(mask, token)}


def test_ends_are_illegal_until_there_are_enough() -> None:
    constraint = MinimumLength(2, ENDS, N_VOCAB)
    for _ in range(2):
        assert legal(constraint) == set(range(N_VOCAB)) - ENDS
        constraint.accept(5)
    assert constraint.mask() is None
    assert constraint.forced() == []


def test_both_must_hold_and_a_text_that_can_only_end_ends() -> None:
    other = Only([3, 5, 64])
    constraint = MinimumLength(1, ENDS, N_VOCAB, other)
    assert legal(constraint) == {5}
    assert constraint.forced() == [7]
    other.tokens = [3]
    assert legal(constraint) == {3}
    other.tokens = [3, 5]
    constraint.accept(5)
    assert other.seen == [5]
    assert legal(constraint) == {3, 5}


@given(st.integers(0, 5), st.lists(st.sampled_from([1, 2, 3, 64]), max_size=8), st.booleans())
def test_a_prefix_is_legal_token_by_token(n_min: int, tokens: list[int], alone: bool) -> None:  # noqa: FBT001
    constraint = MinimumLength(n_min, ENDS, N_VOCAB, None if alone else Only([1, 3, 64]))
    start, n_legal = constraint.save(), constraint.legal_prefix(tokens)
    assert constraint.save() == start
    expected = 0
    for token in tokens:
        if token not in legal(constraint):
            break
        constraint.accept(token)
        expected += 1
    assert n_legal == expected
    constraint.restore(start)
    assert constraint.save() == start
    assert constraint.legal_prefix(tokens) == n_legal


@pytest.mark.parametrize("n_vocab", [1, 31, 32, 33, 64])
def test_words_cover_any_vocabulary(n_vocab: int) -> None:
    mask = MinimumLength(1, {n_vocab - 1}, n_vocab).mask()
    assert mask is not None
    assert mask.dtype == np.uint32
    assert len(mask) == (n_vocab + 31) // 32
    assert [allows(mask, token) for token in range(n_vocab)] == [True] * (n_vocab - 1) + [False]
