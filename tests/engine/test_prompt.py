from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspec.engine.prompt import checked_prompt, checked_stops
from pyspec.errors import ConfigError, ContextFullError


def model(*, bos: int | None = None) -> Any:
    """One token per character."""

    def tokenize(text: str | bytes | bytearray, **_options: bool) -> list[int]:
        return [ord(character) for character in (text if isinstance(text, str) else text.decode())]

    def check(tokens: Iterable[int]) -> list[int]:
        return list(tokens)

    vocabulary = SimpleNamespace(tokenize=tokenize, check=check, bos=bos)
    return SimpleNamespace(
        vocab=vocabulary, info=SimpleNamespace(n_embd_inp=2, n_ctx_train=64), path=Path("target.gguf")
    )


def test_text_and_tokens_are_prompts() -> None:
    assert checked_prompt("ab", model(), 8).tokens == [97, 98]
    assert checked_prompt([1, 2], model(), 8).tokens == [1, 2]
    assert checked_prompt((1,) * 8, model(), 8).tokens == [1] * 8


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_are_text(kind: Any) -> None:
    assert checked_prompt(kind(b"ab"), model(), 8).tokens == [97, 98]
    assert checked_prompt([kind(b"ab"), [1, 2]], model(), 8).tokens == [97, 98, 1, 2]
    assert checked_prompt([kind(b"ab")], model(), 8).tokens == [97, 98]


def test_an_empty_text_is_the_beginning_of_a_text() -> None:
    assert checked_prompt("", model(bos=7), 8).tokens == [7]


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="empty"):
        checked_prompt(prompt, model(), 8)


def test_a_prompt_must_fit() -> None:
    with pytest.raises(ContextFullError, match="9 tokens; the context has room for 8"):
        checked_prompt([1] * 9, model(), 8)


def test_a_prompt_that_no_context_holds_is_not_told_to_use_a_larger_one() -> None:
    most = model().info.n_ctx_train
    with pytest.raises(ContextFullError, match="Use a larger n_ctx"):
        checked_prompt([1] * 9, model(), 8)
    with pytest.raises(ContextFullError, match=f"made for {most}; shorten it"):
        checked_prompt([1] * (most + 1), model(), 8)


def test_stop_strings() -> None:
    assert checked_stops("é") == ["é".encode()]
    assert checked_stops(["a", "\ud800"]) == [b"a", b"\xed\xa0\x80"]
    assert checked_stops(()) == []


@pytest.mark.parametrize("stop", ["", ["a", ""], [5], b"ab", 5, None])
def test_what_is_no_stop_string_is_refused(stop: Any) -> None:
    with pytest.raises(ConfigError, match="stop strings"):
        checked_stops(stop)
