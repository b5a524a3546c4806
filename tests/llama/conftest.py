"""Contexts on the zoo's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyspec
from tests import sampling
from tests.helpers import decode, make_context

NewContext = Callable[..., pyspec.Context]
Place = tuple[pyspec.Rows, sampling.Row]


@pytest.fixture
def new_context(open_zoo: Callable[[str], pyspec.Model]) -> Iterator[NewContext]:
    """Make a context of a zoo model, target-llama unless named; closed after the test."""
    made: list[pyspec.Context] = []

    def make(name: str = "target-llama", **settings: Any) -> pyspec.Context:
        made.append(make_context(open_zoo(name), **settings))
        return made[-1]

    yield make
    for context in made:
        context.close()


@pytest.fixture
def context(new_context: NewContext) -> pyspec.Context:
    return new_context()


@pytest.fixture(scope="module")
def place(open_zoo: Callable[[str], pyspec.Model]) -> Iterator[Place]:
    """Two rows, the first of which a test can overwrite."""
    with make_context(open_zoo("target-llama")) as context:
        rows = decode(context, [1, 60])
        yield rows, sampling.writable(rows, 0)
