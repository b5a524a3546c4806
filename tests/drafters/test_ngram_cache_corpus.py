"""Counting large texts in pieces gives what counting them whole gives."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec.drafters import ngram_corpus
from pyspec.drafters.ngram_corpus import PairCounter, Piece, Tokenizer, pieces
from pyspec.drafters.ngram_counts import NgramCounts

Tokenize = Callable[[str], list[str]]

TEXT = """Once upon a time there was a small boat. The boat left the harbour\r\n\r\nin the morning, and "the sea"
was calm;\tand the   wind was light. 1234 times 5 is naïve, or so the old man told us.

    def told(story: str) -> str:
        return story + "the story of the stone and the river" # the river

<|im_start|>user Über straße ist 日本語 text und das ist gut<|im_end|> the end the end
"""


class FakeTokenizer:
    """Numbers the parts of a text as they come; ``parts`` has them."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self.parts: dict[str, int] = {}

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        assert parse_special
        return [self.parts.setdefault(part, len(self.parts)) for part in self._tokenize(text)]


def words(text: str) -> list[str]:
    """As byte-level BPE: a word takes the space before it; of other white space the last character stands alone."""
    return re.findall(r" ?\w+| ?[^\s\w]+|\s+(?!\S)|\s+", text)


def sentence_pieces(text: str) -> list[str]:
    """As SentencePiece: the text gets a space in front."""
    return re.findall(r"▁*\w+|▁+|.|\n", ("▁" + text.replace(" ", "▁"))) if text else []


def threes(text: str) -> list[str]:
    """As nothing at all: every three characters, wherever they are."""
    return re.findall(r".{1,3}", text, re.DOTALL)


def counted(tokenizer: Tokenizer, text: str, size: int, longest: int = 1 << 20) -> PairCounter:
    counter = PairCounter(tokenizer)
    for piece in pieces(io.StringIO(text, newline=""), size, longest):
        counter.add(piece)
    return counter


def naive_pairs(runs: list[list[int]]) -> dict[tuple[int, int], Counter[int]]:
    found: dict[tuple[int, int], Counter[int]] = {}
    for run in runs:
        for i in range(2, len(run)):
            found.setdefault((run[i - 2], run[i - 1]), Counter())[run[i]] += 1
    return found


def pairs(counts: NgramCounts) -> dict[tuple[int, ...], dict[int, int]]:
    found = {}
    for row in counts.ngrams.tolist():
        assert row[2:] == [-1, -1]
        followers = counts.get(tuple(row[:2]))
        assert followers is not None
        found[tuple(row[:2])] = dict(zip(*followers, strict=True))
    return found


def require_counts_of_the_whole(tokenizer: Tokenizer, size: int) -> None:
    text = TEXT * 3
    counter, whole = counted(tokenizer, text, size), tokenizer.tokenize(text, parse_special=True)
    assert counter.n_tokens == len(whole)
    assert pairs(counter.total()) == naive_pairs([whole])


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
@pytest.mark.parametrize("tokenize", [words, sentence_pieces])
def test_pieces_count_as_the_whole(tokenize: Tokenize, size: int) -> None:
    require_counts_of_the_whole(FakeTokenizer(tokenize), size)


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_a_real_tokenizer_agrees(target: pyspec.Model, size: int) -> None:
    require_counts_of_the_whole(target.vocab, size)


@pytest.mark.parametrize("size", [7, 100])
def test_a_large_real_tokenizer_agrees(smollm2: Path, size: int) -> None:
    with pyspec.Model(smollm2, pyspec.ModelConfig(vocab_only=True)) as model:
        require_counts_of_the_whole(model.vocab, size)


@settings(deadline=None)  # machines and disks are shared
@given(st.text(st.sampled_from("ab \n.é1"), max_size=80), st.integers(1, 20), st.integers(1, 40))
def test_pieces_are_the_text_and_cuts_stand_between_words(text: str, size: int, longest: int) -> None:
    found = list(pieces(io.StringIO(text, newline=""), size, longest))
    assert "".join(piece.text for piece in found) == text
    done = ""
    for piece in found:
        assert piece.text
        if piece.before:
            assert done.endswith(piece.before)
            assert re.match(r" [^\W\d_]", piece.text)
            assert done[-1].isalpha()
        done += piece.text


def test_a_text_without_words_is_cut_and_nothing_reaches_over() -> None:
    tokenizer = FakeTokenizer(list)
    counter = counted(tokenizer, "0123456789" * 10, 10, longest=30)
    parts = ["0123456789" * 3] * 3 + ["0123456789"]
    assert pairs(counter.total()) == naive_pairs([tokenizer.tokenize(part, parse_special=True) for part in parts])
    assert counter.n_tokens == 100


def test_what_a_tokenizer_joins_is_not_taken_apart() -> None:
    text = "one two three four five six"
    found = list(pieces(io.StringIO(text), 10))
    assert found[:2] == [Piece("one two", ""), Piece(" three four", "two")]
    tokenizer = FakeTokenizer(lambda text: [text])  # one token for whatever it is given
    assert pairs(counted(tokenizer, text, 10).total()) == {}
    tokenizer = FakeTokenizer(threes)  # it reads "two" + " three four" as "two", " th", and so on
    tokens = [tokenizer.tokenize(piece.text, parse_special=True) for piece in found]
    assert pairs(counted(tokenizer, text, 10).total()) == naive_pairs([tokens[0] + tokens[1], *tokens[2:]])


@settings(deadline=None)  # machines and disks are shared
@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=6), st.integers(1, 40))
def test_pairs_are_counted(texts: list[list[int]], count_every: int) -> None:
    letters = "abcd"
    counter = PairCounter(FakeTokenizer(list))
    tokenizer = FakeTokenizer(list)
    counter._tokenizer = tokenizer
    for letter in letters:
        tokenizer.tokenize(letter, parse_special=True)
    former = ngram_corpus._COUNT_EVERY
    ngram_corpus._COUNT_EVERY = count_every
    try:
        for text in texts:
            counter.add(Piece("".join(letters[k] for k in text), ""))
            assert counter._n_waiting < count_every  # memory is for the different pairs only
    finally:
        ngram_corpus._COUNT_EVERY = former
    assert pairs(counter.total()) == naive_pairs(texts)
    assert pairs(counter.total()) == naive_pairs(texts)  # and may be asked again
    assert counter.n_tokens == sum(map(len, texts))


def test_of_two_followers_the_later_is_the_more_recent() -> None:
    counter = PairCounter(FakeTokenizer(list))
    for text in ("abc", "abd", "abc"):
        counter.add(Piece(text, ""))
    followers = counter.total().get((0, 1))
    assert followers == ([3, 2], [1, 2])
