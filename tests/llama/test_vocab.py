"""Text to tokens and back, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import pyspec
from pyspec.errors import ConfigError, TokenError, VocabError
from tests.zoo.vocabulary import EOS, EOT, SPECIALS, SYMBOLS, TOKENS

BYTE_OF = {symbol: byte for byte, symbol in SYMBOLS.items()}
TEXTS = [
    "hello world",
    "",
    " ",
    "a\0b",
    "naïve café",
    "日本語",
    "👩‍👩‍👧 emoji",
    "tabs\tand\nlines\r\n",
    "\x7f\x01",
    "e\u0301",
    "x" * 5000,
]


@pytest.fixture(scope="module")
def vocab(target: pyspec.Model) -> pyspec.Vocab:
    return target.vocab


def expected_bytes(token: int) -> bytes:
    return b"" if token < len(SPECIALS) else bytes(BYTE_OF[symbol] for symbol in TOKENS[token])


def test_sizes_and_special_tokens(vocab: pyspec.Vocab) -> None:
    assert (len(vocab), vocab.n_tokens, vocab.type.name) == (384, 384, "BPE")
    assert (vocab.pad, vocab.bos, vocab.eos, vocab.eot, vocab.mask) == (0, 1, 2, 4, 5)
    assert (vocab.add_bos, vocab.add_eos) == (True, False)
    assert vocab.sep is None


def test_the_tokens_that_end_a_generation(vocab: pyspec.Vocab) -> None:
    assert vocab.eog == {EOS, EOT}
    assert vocab.is_eog(EOS)
    assert not vocab.is_eog(300)
    assert not vocab.is_eog("2")  # type: ignore[arg-type]


def test_every_token_has_exactly_its_bytes(vocab: pyspec.Vocab) -> None:
    assert vocab.pieces(range(384)) == [expected_bytes(token) for token in range(384)]


def test_special_tokens_have_names_when_asked(vocab: pyspec.Vocab) -> None:
    assert [piece.decode() for piece in vocab.pieces(range(8), special=True)] == SPECIALS


def test_raw_entries_are_those_of_the_file(vocab: pyspec.Vocab) -> None:
    assert [text.decode() for text in vocab.texts(0, 384)] == TOKENS
    assert vocab.texts(5, 5) == []


def test_the_attributes_tell_special_tokens(vocab: pyspec.Vocab) -> None:
    flags = vocab.attributes()
    assert flags.shape == (384,)
    assert len(set(flags[:8])) == 1
    assert flags[0] != flags[100]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(vocab: pyspec.Vocab, text: str) -> None:
    tokens = vocab.tokenize(text)
    assert vocab.detokenize(tokens) == text
    assert vocab.tokenize(text.encode()) == tokens


@hypothesis.given(st.text(max_size=60))
def test_any_text_comes_back(vocab: pyspec.Vocab, text: str) -> None:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        with pytest.raises(VocabError):
            vocab.tokenize(text)
        return
    assert vocab.detokenize_bytes(vocab.tokenize(text)) == data


@hypothesis.given(st.lists(st.integers(0, 383), max_size=50))
def test_any_tokens_have_the_bytes_of_each(vocab: pyspec.Vocab, tokens: list[int]) -> None:
    assert vocab.detokenize_bytes(tokens) == b"".join(map(expected_bytes, tokens))


def test_bytes_that_are_not_a_character_become_a_mark(vocab: pyspec.Vocab) -> None:
    half = vocab.tokenize("é")[:1]
    assert vocab.detokenize(half) == "\ufffd"
    assert vocab.detokenize_bytes(half) == b"\xc3"


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", b"\xff", b"\xc3"])
def test_what_is_not_text_is_refused(vocab: pyspec.Vocab, text: Any) -> None:
    with pytest.raises(VocabError):
        vocab.tokenize(text)


@pytest.mark.parametrize("text", [None, 5, ["a"], memoryview(b"a")])
def test_another_type_of_text_is_refused(vocab: pyspec.Vocab, text: Any) -> None:
    with pytest.raises(ConfigError):
        vocab.tokenize(text)


def test_bos_is_added_when_asked(vocab: pyspec.Vocab) -> None:
    assert vocab.tokenize("hi", add_special=True) == [1, *vocab.tokenize("hi")]


def test_names_of_special_tokens_are_text_unless_parsed(vocab: pyspec.Vocab) -> None:
    assert vocab.tokenize("<|im_end|>", parse_special=True) == [EOT]
    plain = vocab.tokenize("<|im_end|>")
    assert EOT not in plain
    assert vocab.detokenize(plain) == "<|im_end|>"


@pytest.mark.parametrize("token", [-1, 384, 2**31, -(2**40), 1.0, "1", None, True, [1]])
def test_a_wrong_token_is_named(vocab: pyspec.Vocab, token: Any) -> None:
    with pytest.raises(TokenError, match=r"Token 1 is"):
        vocab.detokenize([60, token])


@pytest.mark.parametrize("tokens", ["abc", b"abc", 5, None])
def test_what_is_no_list_of_tokens_is_refused(vocab: pyspec.Vocab, tokens: Any) -> None:
    with pytest.raises(TokenError):
        vocab.pieces(tokens)


def test_numpy_integers_are_tokens(vocab: pyspec.Vocab) -> None:
    tokens = np.array(vocab.tokenize("hello"), np.int64)
    assert vocab.detokenize(tokens) == "hello"
    assert vocab.is_eog(np.int32(EOS))


@pytest.mark.parametrize(("first", "end"), [(-1, 3), (0, 385), (5, 4), ("a", 3), (0, None)])
def test_a_range_outside_the_vocabulary_is_refused(vocab: pyspec.Vocab, first: Any, end: Any) -> None:
    with pytest.raises(ConfigError):
        vocab.texts(first, end)


def test_the_padded_vocabulary_is_larger(zoo: Path) -> None:
    with pyspec.Model(zoo / "draft-llama-paddedvocab.gguf") as model:
        assert len(model.vocab) == 400
        assert model.vocab.texts(399, 400) == [b"[PAD399]"]


def test_a_real_vocabulary_is_byte_exact(smollm2: Path) -> None:
    with pyspec.Model(smollm2, pyspec.ModelConfig(vocab_only=True)) as model:
        vocab = model.vocab
        assert vocab.n_tokens == 49152
        pieces = vocab.pieces(range(vocab.n_tokens), special=True)
        assert all(pieces)
        for text in TEXTS:
            assert vocab.detokenize_bytes(vocab.tokenize(text)) == text.encode()
        random = np.random.default_rng(1)
        for _ in range(200):
            text = "".join(map(chr, random.choice([*range(32, 127), *range(0x400, 0x460), 0x1F680, 0x4E2D], 40)))
            assert vocab.detokenize(vocab.tokenize(text)) == text
        assert vocab.is_eog(vocab.tokenize("<|im_end|>", parse_special=True)[0])
