"""Worker threads of contexts: how many, whose, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pyspec
from tests.helpers import PROMPT, decode
from tests.llama.conftest import NewContext

COUNTS = (1, 2, 3, 5)


@pytest.mark.parametrize("n_threads", COUNTS)
def test_any_number_of_threads_computes_the_same(new_context: NewContext, n_threads: int) -> None:
    alone, several = new_context(n_threads=1), new_context(n_threads=n_threads, n_threads_batch=n_threads)
    assert np.abs(decode(alone, PROMPT).logits(7) - decode(several, PROMPT).logits(7)).max() < 0.01


@pytest.mark.parametrize("steps", [(2, 4, 1, 3), (5, 1, 5), (1, 2)])
def test_their_number_may_change_between_decodes(new_context: NewContext, steps: tuple[int, ...]) -> None:
    context, alone = new_context(n_threads=1), new_context(n_threads=1)
    expected = decode(alone, PROMPT).logits(7).copy()
    for n_threads in steps:
        context.set_threads(n_threads)
        context.memory.clear()
        assert np.abs(decode(context, PROMPT).logits(7) - expected).max() < 0.01


@pytest.fixture
def pair(target: pyspec.Model) -> Callable[[int, int], tuple[pyspec.Context, pyspec.Context]]:
    def make(few: int, many: int) -> tuple[pyspec.Context, pyspec.Context]:
        first = pyspec.Context(target, pyspec.ContextConfig(n_ctx=64, n_threads=few))
        second = pyspec.Context(target, pyspec.ContextConfig(n_ctx=64, n_threads=many), target=first)
        return first, second

    return make


@pytest.mark.parametrize(("few", "many"), [(1, 1), (2, 2), (1, 3), (3, 1), (2, 4)])
def test_contexts_that_share_threads_take_turns(
    pair: Callable[[int, int], tuple[pyspec.Context, pyspec.Context]], few: int, many: int
) -> None:
    first, second = pair(few, many)
    rows = []
    for _ in range(4):
        for context in (first, second):
            context.memory.clear()
            rows.append(decode(context, PROMPT).logits(7).copy())
    assert max(float(np.abs(row - rows[0]).max()) for row in rows) < 0.01
    first.close()
    second.memory.clear()
    assert np.abs(decode(second, PROMPT).logits(7) - rows[0]).max() < 0.01
    second.close()


def test_sharing_between_threads_of_python_is_safe(target: pyspec.Model) -> None:
    """Each context belongs to another one, and they all compute at once."""
    config = pyspec.ContextConfig(n_ctx=64, n_threads=2)
    owner = pyspec.Context(target, config)
    expected = decode(owner, PROMPT).logits(7).copy()

    def play(context: pyspec.Context) -> float:
        worst = 0.0
        for _ in range(20):
            context.memory.clear()
            worst = max(worst, float(np.abs(decode(context, PROMPT).logits(7) - expected).max()))
        return worst

    contexts = [pyspec.Context(target, config, target=owner) for _ in range(3)]
    for context in contexts:
        context.handle.hand_over()
    with ThreadPoolExecutor(len(contexts)) as executor:
        assert max(executor.map(play, contexts)) < 0.01
    for context in (*contexts, owner):
        context.close()
