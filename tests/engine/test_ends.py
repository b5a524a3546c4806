"""When a request may end: tokens of its own that end it, and not before there are enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec import Finish, Grammar, SamplingConfig
from pyspec.errors import ConfigError, TokenError
from tests.engine.conftest import Make
from tests.helpers import PROMPT

OpenZoo = Callable[[str], pyspec.Model]


@pytest.mark.parametrize("types", ["none", "draft-simple", "ngram-simple"])
def test_a_token_of_the_request_ends_it(make: Make, types: str) -> None:
    engine = make(types, 1)
    whole = engine.generate(PROMPT, max_tokens=40)
    end = whole.tokens[25]
    n_tokens = whole.tokens.index(end) + 1
    result = engine.generate(PROMPT, max_tokens=40, stop_tokens=[end, 5])
    assert (result.tokens, result.finish) == (whole.tokens[:n_tokens], Finish.EOG)
    assert result.text == engine.model.vocab.detokenize(whole.tokens[: n_tokens - 1])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("types", ["draft-simple", "ngram-simple"])
def test_no_end_before_there_are_enough_with_and_without_drafts(
    make: Make, open_zoo: OpenZoo, types: str, temperature: float
) -> None:
    model = open_zoo("target-llama-eog")
    alone, engine = make("none", 1, model), make(types, 1, model)
    early = alone.generate(PROMPT, max_tokens=100)
    assert early.finish is Finish.EOG
    n_min = len(early.tokens) + 10
    sampling = SamplingConfig(temperature=temperature, seed=3)
    request: dict[str, Any] = {"max_tokens": n_min + 30, "min_tokens": n_min, "sampling": sampling}
    expected, result = alone.generate(PROMPT, **request), engine.generate(PROMPT, **request)
    assert result.tokens == expected.tokens
    assert len(expected.tokens) >= n_min
    assert not model.vocab.eog & set(expected.tokens[:n_min])
    if temperature == 0.0:
        assert expected.tokens[: len(early.tokens) - 1] == early.tokens[:-1]


def test_a_grammar_that_is_complete_ends_all_the_same(make: Make) -> None:
    engine = make("none", 1)
    result = engine.generate(PROMPT, max_tokens=40, min_tokens=30, grammar=Grammar.regex("abc"))
    assert (result.text, result.finish) == ("abc", Finish.EOG)
    result = engine.generate(PROMPT, max_tokens=40, min_tokens=10, grammar=Grammar.regex("[a-z]*"))
    assert len(result.tokens) >= 10


def test_both_come_back_with_a_saved_slot(make: Make, tmp_path: Path) -> None:
    engine = make("none", 1)
    whole = engine.generate(PROMPT, max_tokens=60)
    end = whole.tokens[30]
    request: dict[str, Any] = {"max_tokens": 60, "min_tokens": whole.tokens.index(end) + 4, "stop_tokens": [end]}
    expected = engine.generate(PROMPT, **request)
    stream = engine.stream(PROMPT, **request)
    chunks = [next(stream), next(stream)]
    n_saved = engine.save_slot(0, tmp_path / "slot")
    stream.close()
    resumed = make("none", 1).restore_slot(tmp_path / "slot")
    assert resumed is not None
    rest = [token for chunk in resumed for token in chunk.tokens]
    assert len(chunks) <= n_saved
    assert expected.tokens[:n_saved] + rest == expected.tokens


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"min_tokens": -1}, ConfigError), ({"stop_tokens": [10**6]}, TokenError), ({"stop_tokens": 5}, TokenError)],
)
def test_what_is_wrong_is_refused(make: Make, settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make("none", 1).generate(PROMPT, max_tokens=1, **settings)
