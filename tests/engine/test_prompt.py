from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyspec.engine.prompt import checked_prompt, checked_stops, prefill
from pyspec.errors import ConfigError, ContextFullError
from tests.fakes import FakeTarget, HashLogits


def vocab(*, bos: int | None = None) -> Any:
    """One token per character."""

    def tokenize(text: str, **_options: bool) -> list[int]:
        return [ord(character) for character in text]

    def check(tokens: Iterable[int]) -> list[int]:
        return list(tokens)

    return SimpleNamespace(tokenize=tokenize, check=check, bos=bos)


def test_text_and_tokens_are_prompts() -> None:
    assert checked_prompt("ab", vocab(), 8) == [97, 98]
    assert checked_prompt([1, 2], vocab(), 8) == [1, 2]
    assert checked_prompt((1,) * 8, vocab(), 8) == [1] * 8


def test_an_empty_text_is_the_beginning_of_a_text() -> None:
    assert checked_prompt("", vocab(bos=7), 8) == [7]


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="empty"):
        checked_prompt(prompt, vocab(), 8)


def test_a_prompt_must_fit() -> None:
    with pytest.raises(ContextFullError, match="9 tokens; the context has room for 8"):
        checked_prompt([1] * 9, vocab(), 8)


def test_stop_strings() -> None:
    assert checked_stops("é") == ["é".encode()]
    assert checked_stops(["a", "\ud800"]) == [b"a", b"\xed\xa0\x80"]
    assert checked_stops(()) == []


@pytest.mark.parametrize("stop", ["", ["a", ""], [5], b"ab", 5, None])
def test_what_is_no_stop_string_is_refused(stop: Any) -> None:
    with pytest.raises(ConfigError, match="stop strings"):
        checked_stops(stop)


@pytest.mark.parametrize("n_tokens", [0, 1, 7, 8, 9, 25])
def test_a_prompt_is_read_a_physical_batch_at_a_time(n_tokens: int) -> None:
    target = FakeTarget(HashLogits(1, 8), 8, n_ubatch=8, n_seq_max=2)
    prefill(cast("Any", target), [i % 8 for i in range(n_tokens)], 1)
    sizes = [len(decoded.tokens) for decoded in target.decodes]
    assert sizes == [8] * (n_tokens // 8) + [n_tokens % 8] * (n_tokens % 8 > 0)
    assert target.memory.length(1) == n_tokens
    assert all(decoded.n_outputs == 0 for decoded in target.decodes)
