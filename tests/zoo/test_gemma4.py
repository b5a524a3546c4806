"""gemma4-assistant drafts from the target's memory and its next-n rows, all tokens at the pending one's position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import pyspec
from pyspec._native import contexts as native
from tests.helpers import PROMPT, decode, greedy, make_context
from tests.zoo import gemma4

pytestmark = [pytest.mark.native, pytest.mark.model]

Rows = npt.NDArray[np.float32]
Models = dict[str, pyspec.Model]

N_DRAFT = 3
FIRST = 24  # positions before it do not count: the farthest head looks back further than the text begins
OTHER_PROMPTS = [[1, 200, 210, 75, 40, 300, 264, 111], [1, 33, 44, 55, 290]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """The target, its draft model, and one that reads a scrambled h."""
    folder = tmp_path_factory.mktemp("gemma4")
    makers = {"target": gemma4.target, "draft": gemma4.assistant, "negative": gemma4.negative}
    with ExitStack() as stack:
        opened: Models = {}
        for name, make in makers.items():
            make(folder / f"{name}.gguf")
            opened[name] = stack.enter_context(pyspec.Model(folder / f"{name}.gguf"))
        yield opened


@pytest.fixture(scope="module")
def text(models: Models) -> list[int]:
    """What the target says, after the prompt."""
    return continued(models, PROMPT, 150)


def continued(models: Models, prompt: Sequence[int], n: int) -> list[int]:
    with make_context(models["target"], n_ctx=256) as context:
        return [*prompt, *greedy(context, prompt, n)]


class Pair(NamedTuple):
    """A target's context and the draft context that reads its memory."""

    target: pyspec.Context
    draft: pyspec.Context

    def drafts(
        self, tokens: Sequence[int], positions: Sequence[int], rows: Sequence[Rows], *, own: bool = True
    ) -> list[list[int]]:
        """Draft for sequences 0, 1, ... together: [n_sequences][N_DRAFT].

        Args:
            tokens: Pending token per sequence.
            positions: Its position.
            rows: The target's next-n row of the position before, [n_embd] each.
            own: Go on from the draft model's own rows; or else from ``rows`` again.
        """
        drafted: list[list[int]] = [[] for _ in tokens]
        states, sequences = list(rows), [(seq_id,) for seq_id in range(len(tokens))]
        for _ in range(N_DRAFT):
            wanted = [True] * len(tokens)
            best = native.decode(self.draft.handle, tokens, positions, sequences, wanted, states)
            tokens = list(best[: len(tokens)])
            if own:
                states = list(self.draft.hidden.next_n())
            for draft, token in zip(drafted, tokens, strict=True):
                draft.append(token)
        return drafted


@pytest.fixture
def open_pair(models: Models) -> Iterator[Callable[..., Pair]]:
    """Return a function that opens a pair; it takes settings of both contexts."""
    with ExitStack() as stack:

        def opened(draft_model: str = "draft", **settings: Any) -> Pair:
            sizes = {"n_ctx": 256, "n_batch": 256, **settings}
            target = stack.enter_context(make_context(models["target"], **sizes))
            config = pyspec.ContextConfig(**{"n_threads": 1, "n_ubatch": 256, **sizes})
            draft = stack.enter_context(pyspec.Context(models[draft_model], config, target=target, next_n=True))
            target.hidden.keep_next_n("all")
            draft.hidden.keep_next_n("wanted")
            return Pair(target, draft)

        yield opened


def accepted_lengths(
    pair: Pair, text: Sequence[int], *, rows_from: int = 0, own: bool = True, memory: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Draft at every position of a text, and count how many tokens of each draft stand, [n_positions].

    Args:
        pair: Target and draft context.
        text: What the target says.
        rows_from: How far from the right position the target's rows are taken.
        own: See ``Pair.drafts``.
        memory: What the target's memory holds when drafting, in place of the text.
    """
    decode(pair.target, text)
    rows = pair.target.hidden.next_n()
    if memory is not None:
        pair.target.memory.clear(0)
        decode(pair.target, memory)
    lengths = []
    for position in range(len(text) - N_DRAFT - 1, FIRST, -1):
        pair.target.memory.trim(0, position)
        (draft,) = pair.drafts([text[position]], [position], [rows[position - 1 + rows_from]], own=own)
        right = [token == text[position + 1 + i] for i, token in enumerate(draft)]
        lengths.append((*right, False).index(False))
    return np.array(lengths)


def test_files_are_small(tmp_path: Path) -> None:
    for make in (gemma4.target, gemma4.assistant):
        make(tmp_path / "model.gguf")
        assert (tmp_path / "model.gguf").stat().st_size < 1_000_000


def test_the_target_rows_make_drafts_right(open_pair: Callable[..., Pair], text: list[int]) -> None:
    right = accepted_lengths(open_pair(), text).mean()
    assert right > 1.8
    assert accepted_lengths(open_pair(), text, rows_from=-5).mean() < right - 0.5
    assert accepted_lengths(open_pair("negative"), text).mean() < right - 0.5


def test_the_target_memory_makes_drafts_right(open_pair: Callable[..., Pair], text: list[int]) -> None:
    shifted = [*text[5:], *text[:5]]
    right = accepted_lengths(open_pair(), text)
    wrong = accepted_lengths(open_pair(), text, memory=shifted)
    assert wrong.mean() < right.mean() - 0.25


def test_later_tokens_need_the_own_rows(open_pair: Callable[..., Pair], text: list[int]) -> None:
    own = accepted_lengths(open_pair(), text)
    again = accepted_lengths(open_pair(), text, own=False)
    assert np.array_equal(own > 0, again > 0)
    assert (own > 1).sum() > (again > 1).sum() + 10


def test_drafting_leaves_the_memory_alone(open_pair: Callable[..., Pair], text: list[int]) -> None:
    pair, n = open_pair(), 40
    decode(pair.target, text[:n])
    before = native.state_save(pair.target.handle, 0, 0)
    row = pair.target.hidden.next_n()[n - 1]
    assert pair.drafts([text[n]], [n], [row]) == pair.drafts([text[n]], [n], [row])
    assert native.state_save(pair.target.handle, 0, 0) == before
    assert pair.target.memory.range(0) == pair.draft.memory.range(0) == (0, n - 1)


def test_a_draft_stands_right_behind_the_target(open_pair: Callable[..., Pair], text: list[int]) -> None:
    pair, n = open_pair(), 40
    decode(pair.target, text[:n])
    row = pair.target.hidden.next_n()[n - 1]
    for position in (n - 1, n + 1):
        with pytest.raises(pyspec.errors.BatchError):
            pair.drafts([text[n]], [position], [row])


@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize("n_ubatch", [256, 16, 7])
def test_sequences_draft_together_as_alone(
    *, kv_unified: bool, n_ubatch: int, models: Models, open_pair: Callable[..., Pair], text: list[int]
) -> None:
    texts = [text[:45], *(continued(models, prompt, 30) for prompt in OTHER_PROMPTS)]
    ends = [len(each) - 1 for each in texts]
    pending = [each[-1] for each in texts]
    alone, rows_alone = [], []
    for each, end in zip(texts, ends, strict=True):
        pair = open_pair()
        decode(pair.target, each[:end])
        rows_alone.append(pair.target.hidden.next_n()[end - 1])
        alone += pair.drafts([each[end]], [end], rows_alone[-1:])
    n_buffers = 1 if kv_unified else len(texts)
    pair = open_pair(n_seq_max=len(texts), n_ctx=256 * n_buffers, kv_unified=kv_unified, n_ubatch=n_ubatch)
    batch = pyspec.Batch()
    for seq_id, each in enumerate(texts):
        batch.extend(each[:-1], 0, seq_id)
    pair.target.decode(batch)
    rows = pair.target.hidden.next_n()[np.cumsum(ends) - 1]
    assert np.allclose(rows, rows_alone, atol=5e-3)
    assert pair.drafts(pending, ends, list(rows)) == alone
