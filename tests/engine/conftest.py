"""Engines for the tests of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyspec
from pyspec import ContextConfig, Speculation

OpenZoo = Callable[[str], pyspec.Model]
Make = Callable[..., pyspec.Engine]


@pytest.fixture
def make(target: pyspec.Model, open_zoo: OpenZoo) -> Iterator[Make]:
    """Make engines on target-llama; closed after the test."""
    made: list[pyspec.Engine] = []

    def engine(types: str = "none", n_slots: int = 2, model: pyspec.Model | None = None, **settings: Any) -> Any:
        draft_model = open_zoo("draft-llama") if "draft" in types else None
        context = ContextConfig(n_ctx=256 * n_slots, n_batch=64, n_ubatch=16, n_threads=1)
        options = {"ngram-simple": {"size_n": 2, "size_m": 6}} if "ngram" in types else {}
        speculation = Speculation(types, draft_model, options)
        made.append(
            pyspec.Engine(model or target, speculation=speculation, context=context, n_slots=n_slots, **settings)
        )
        return made[-1]

    yield engine
    for each in made:
        each.close()
