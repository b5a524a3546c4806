"""Prompts of which a part is given as rows of floats, such as an image projected elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

import pyspec
from pyspec import Embeddings
from pyspec.errors import ConfigError, ContextFullError

OpenZoo = Callable[[str], pyspec.Model]
TEXT = [1, 60, 75, 112, 264, 300, 91, 130, 60, 75, 112, 264, 300, 91, 130, 60, 75]
PICTURE = slice(3, 9)  # the part that is given as rows


def embedding(path: Path) -> npt.NDArray[np.float32]:
    """Return the token embedding of a GGUF file, [n_vocab, n_embd]."""
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    return np.array(tensors["token_embd.weight"], np.float32)


def run(open_zoo: OpenZoo, prompt: Any, types: str, draft: str | None = None, target: str = "target-llama") -> Any:
    options = {name: {"size_n": 2, "size_m": 6} for name in types.split(",") if name == "ngram-simple"}
    speculation = pyspec.Speculation(types, open_zoo(draft) if draft else None, options)
    config = pyspec.ContextConfig(n_ctx=256, n_batch=64, n_ubatch=4, n_threads=1)
    with pyspec.Engine(open_zoo(target), speculation=speculation, context=config) as engine:
        return engine.generate(prompt, max_tokens=40)


@pytest.fixture
def picture(zoo: Path) -> list[Any]:
    """Return a prompt whose middle is rows; they are just what the tokens there would have given."""
    rows = embedding(zoo / "target-llama.gguf")[TEXT[PICTURE]]
    return [TEXT[: PICTURE.start], Embeddings(rows), TEXT[PICTURE.stop :]]


@pytest.mark.parametrize(
    ("types", "draft"),
    [
        ("none", None),
        ("ngram-simple", None),
        ("draft-simple", "draft-llama"),
        ("draft-simple", "draft-mamba"),
        ("ngram-simple,draft-eagle3", "draft-eagle3"),
        ("draft-dflash", "draft-dflash"),
        ("draft-dspark", "draft-dspark"),
    ],
)
def test_rows_do_what_their_tokens_would(open_zoo: OpenZoo, picture: list[Any], types: str, draft: str | None) -> None:
    result = run(open_zoo, picture, types, draft)
    assert result.tokens == run(open_zoo, TEXT, "none").tokens
    assert result.prompt_tokens == [*TEXT[: PICTURE.start], *[-1] * 6, *TEXT[PICTURE.stop :]]
    for name, stats in result.drafters.items():
        fed = name in ("draft-eagle3", "draft-dflash", "draft-dspark")
        assert stats.n_stepped_aside == fed
        if name.startswith("draft-"):
            assert fed is (stats.n_drafted == 0)


def test_the_next_request_is_drafted_for_again(open_zoo: OpenZoo, picture: list[Any], target: pyspec.Model) -> None:
    speculation = pyspec.Speculation("draft-eagle3", open_zoo("draft-eagle3"))
    config = pyspec.ContextConfig(n_ctx=256, n_ubatch=4, n_batch=64, n_threads=1)
    with pyspec.Engine(target, speculation=speculation, context=config) as engine:
        engine.generate(picture, max_tokens=10)
        stats = engine.generate(TEXT, max_tokens=30).drafters["draft-eagle3"]
    assert stats.n_stepped_aside == 0
    assert stats.n_accepted > 5


def test_draft_simple_reads_rows_of_its_own_width(open_zoo: OpenZoo, zoo: Path, target: pyspec.Model) -> None:
    """A model that drafts for itself is right also after rows, so it must have read the same ones."""
    rows = np.random.default_rng(3).normal(size=(5, target.info.n_embd_inp)).astype(np.float32) / 8
    result = run(open_zoo, [[1, 60], Embeddings(rows), [75, 112]], "draft-simple", "target-llama")
    assert result.stats.acceptance == 1.0
    assert zoo.exists()


def test_rows_of_another_width_are_zeros_for_the_draft_model(
    open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture
) -> None:
    """draft-gemma4 is no text model; a wider target stands in for one whose width differs."""
    from pyspec.drafters.draft_simple import DraftSimple
    from pyspec.speculation.draft import DraftRequest

    target = open_zoo("target-llama")
    with pyspec.Context(target, pyspec.ContextConfig(n_ctx=64, n_threads=1)) as context:
        resources = pyspec.drafters.Resources(target, context, open_zoo("draft-llama"), n_sequences=1)
        drafter = DraftSimple(resources=resources, n_threads=1)
        wide = {2: np.ones(7, np.float32), 3: np.ones(7, np.float32)}
        for _request in range(2):
            drafter.embed(0, wide)
            tokens = [1, 60, -1, -1, 75]
            drafter.begin(0, tokens)
            (draft,) = drafter.draft([DraftRequest(0, tokens, 76, 5, 1)])
            assert len(draft.tokens) == 1
            assert drafter.memory.length(0) == 6
        drafter.close()
    assert caplog.text.count("zeros in place of embeddings") == 1


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([Embeddings(np.ones((2, 48)))], "ends with a row"),
        ([[1], Embeddings(np.ones((2, 7))), [2]], "width 7"),
    ],
)
def test_rows_that_cannot_be_read_are_refused(open_zoo: OpenZoo, prompt: Any, message: str) -> None:
    width = open_zoo("target-llama").info.n_embd_inp
    if message == "ends with a row":
        prompt = [Embeddings(np.ones((2, width)))]
    with pytest.raises(ConfigError, match=message):
        run(open_zoo, prompt, "none")


def test_rows_count_as_positions(open_zoo: OpenZoo) -> None:
    width = open_zoo("target-llama").info.n_embd_inp
    with pytest.raises(ContextFullError, match="301 tokens"):
        run(open_zoo, [Embeddings(np.ones((300, width))), [1]], "none")


@pytest.mark.parametrize("rows", [[], np.ones((0, 4)), np.ones(4), np.ones((2, 3, 4)), "ab", None, [[1.0], [1.0, 2.0]]])
def test_what_is_no_array_of_rows_is_refused(rows: Any) -> None:
    with pytest.raises(ConfigError, match="rows must"):
        Embeddings(rows)


def test_a_prompt_of_parts(open_zoo: OpenZoo) -> None:
    vocab = open_zoo("target-llama").vocab
    whole = run(open_zoo, ["a b", [60, 75], "c"], "none")
    assert whole.prompt_tokens == [
        *vocab.tokenize("a b", add_special=True),
        60,
        75,
        *vocab.tokenize("c", add_special=False),
    ]
