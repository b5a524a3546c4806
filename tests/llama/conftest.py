"""Contexts on the zoo's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyspec
from tests.helpers import make_context

NewContext = Callable[..., pyspec.Context]


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
