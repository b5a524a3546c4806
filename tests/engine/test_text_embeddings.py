"""Texts as vectors: the right states, however a text is cut into pieces, and nobody else notices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import pyspec
from pyspec import ContextConfig
from pyspec.engine.embedding import Pool, pooling_of
from pyspec.errors import BatchError, ClosedError, ConfigError, ContextFullError, UnsupportedError
from tests.at_work import idle, in_threads
from tests.engine.conftest import Make
from tests.helpers import PROMPT

OpenZoo = Callable[[str], pyspec.Model]
TEXT = [1, *(20 + 7 * i % 90 for i in range(40))]


def states_of(model: pyspec.Model, tokens: list[int]) -> tuple[Any, Any]:
    """States after the output norm and logits of a text that is read at once."""
    with pyspec.Context(model, ContextConfig(n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1)) as context:
        context.hidden.keep_output_states()
        batch = pyspec.Batch()
        for position, token in enumerate(tokens):
            batch.add(token, position, output=True)
        context.decode(batch)
        return context.hidden.output_states(), np.array(context.logits_view())


def weight(path: Path, *names: str) -> Any:
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    return np.array(next(tensors[name] for name in names if name in tensors), np.float32)


def test_the_states_are_those_that_logits_are_made_of(target: pyspec.Model, target_path: Path) -> None:
    states, logits = states_of(target, TEXT)
    head = weight(target_path, "output.weight", "token_embd.weight")
    np.testing.assert_allclose(states @ head.T, logits, atol=2e-3 * float(np.abs(logits).max()))


@pytest.mark.parametrize("name", ["target-llama", "target-mamba", "target-swa"])
@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_text_that_is_read_in_pieces(make: Make, open_zoo: OpenZoo, name: str, pooling: str) -> None:
    model = open_zoo(name)
    states, _ = states_of(model, TEXT)
    pooled = {"mean": states.mean(axis=0), "last": states[-1], "cls": states[0]}[pooling]
    engine = make(model=model)  # which reads 16 tokens at once
    for found in [engine.embed(TEXT, pooling=pooling) for _ in range(2)]:  # the second one begins anew
        np.testing.assert_allclose(found, pooled / np.linalg.norm(pooled), atol=1e-3)
        assert found.dtype == np.float32


def test_requests_do_not_notice(make: Make) -> None:
    engine = make("ngram-simple")
    expected = engine.generate(PROMPT, max_tokens=60).tokens
    alone = engine.embed(TEXT, pooling="mean")

    def ask(i: int) -> Any:
        return engine.embed(TEXT, pooling="mean") if i % 2 else engine.generate(PROMPT, max_tokens=60).tokens

    found = in_threads(6, ask)
    assert found[::2] == [expected] * 3
    for vector in found[1::2]:
        np.testing.assert_array_equal(vector, alone)
    assert idle(engine)


def test_what_cannot_be(make: Make) -> None:
    engine = make()
    with pytest.raises(UnsupportedError, match=r"target-llama\.gguf was not made for embeddings"):
        engine.embed(TEXT)
    with pytest.raises(ConfigError, match=r"pooling must be one of mean, cls, last"):
        engine.embed(TEXT, pooling="rank")
    with pytest.raises(ContextFullError):
        engine.embed([1] * 257, pooling="last")
    rows: Any = pyspec.Embeddings(np.zeros((1, engine.model.info.n_embd_inp)))
    with pytest.raises(UnsupportedError, match="rows of floats"):
        engine.embed([rows, [1]], pooling="last")
    engine.close()
    with pytest.raises(ClosedError):
        engine.embed(TEXT, pooling="last")


def test_the_file_says_how_to_pool() -> None:
    class Fake:
        class info:  # noqa: N801 - a field
            architecture = "qwen3"

        path = Path("m.gguf")
        metadata: dict[str, str] = {}  # noqa: RUF012

    model: Any = Fake()
    for number, name in (("1", "mean"), ("2", "cls"), ("3", "last")):
        model.metadata = {"qwen3.pooling_type": number}
        assert pooling_of(model) == name
        assert pooling_of(model, "mean") == "mean"
    for number in ("0", "4"):
        model.metadata = {"qwen3.pooling_type": number}
        with pytest.raises(UnsupportedError):
            pooling_of(model)


@pytest.mark.parametrize("kind", ["mean", "cls", "last"])
def test_pooling_does_not_depend_on_the_pieces(kind: str) -> None:
    states = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    found = []
    for cut, other in itertools.combinations(range(1, 7), 2):
        pool = Pool(kind)
        for part in np.split(states, [cut, other]):
            pool.add(part)
        found.append(pool.vector())
    np.testing.assert_allclose(found, [found[0]] * len(found), atol=1e-6)
    assert np.linalg.norm(found[0]) == pytest.approx(1)
    zero = Pool(kind)
    zero.add(np.zeros((2, 3), np.float32))
    assert zero.vector().tolist() == [0, 0, 0]


def test_states_are_kept_only_where_every_row_is_wanted(target: pyspec.Model) -> None:
    with pyspec.Context(target, ContextConfig(n_ctx=64, n_threads=1)) as context:
        batch = pyspec.Batch()
        batch.add(1, 0, output=True)
        context.decode(batch)
        with pytest.raises(ConfigError, match="did not keep"):
            context.hidden.output_states()
        context.hidden.keep_output_states()
        batch.clear()
        for position in (1, 2):
            batch.add(5, position, output=position == 2)
        with pytest.raises(BatchError, match="every entry"):
            context.decode(batch)
        assert context.memory.length(0) == 1
