"""Vocabularies with chosen pieces, languages that can be listed, and walks through a grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

import pyspec
from pyspec.errors import GrammarError, VocabError
from pyspec.llama.grammar import CompiledGrammar, GrammarState
from pyspec.llama.vocab import VocabType

NORMAL, CONTROL = 4, 8  # llama.cpp's attributes


@dataclass(frozen=True)
class Special:
    """A token without text of its own: a control token, or with ``eog`` one that ends the generation."""

    name: str
    eog: bool = False
    text: str = ""


EOG = Special("<end>", eog=True)
Entry = bytes | str | Special


class FakeVocab:
    """A vocabulary of these entries. Text is split into the longest pieces from left to right.

    Attributes:
        begins_with_space: Put a space before a text, as some tokenizers do.
    """

    begins_with_space = False

    type = VocabType.BPE

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = list(entries)
        self.n_tokens = len(self.entries)
        self.eog = frozenset(i for i, entry in enumerate(self.entries) if isinstance(entry, Special) and entry.eog)
        self._pieces = [as_bytes(entry.text if isinstance(entry, Special) else entry) for entry in self.entries]

    def all_pieces(self) -> Sequence[bytes]:
        return self._pieces

    def attributes(self) -> npt.NDArray[np.int32]:
        flags = [CONTROL if isinstance(entry, Special) else NORMAL for entry in self.entries]
        return np.array(flags, dtype=np.int32)

    def pieces(self, tokens: Iterable[int], *, special: bool = False) -> list[bytes]:
        return [self._name(token) if special else self._pieces[token] for token in tokens]

    def _name(self, token: int) -> bytes:
        entry = self.entries[token]
        return entry.name.encode() if isinstance(entry, Special) else as_bytes(entry)

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        named = [token for token in range(self.n_tokens) if self._name(token) == text.encode()]
        if parse_special and named:
            return named[:1]
        rest, tokens = (" " * self.begins_with_space + text).encode(), []
        while rest:
            fitting = [token for token, piece in enumerate(self._pieces) if piece and rest.startswith(piece)]
            if not fitting:
                msg = "no token fits"
                raise VocabError(msg)
            tokens.append(max(fitting, key=lambda token: len(self._pieces[token])))
            rest = rest[len(self._pieces[tokens[-1]]) :]
        return tokens

    def detokenize_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self._pieces[token] for token in tokens)


def as_bytes(entry: bytes | str) -> bytes:
    return entry.encode() if isinstance(entry, str) else entry


def fake_vocab(*entries: Entry) -> pyspec.Vocab:
    return cast("pyspec.Vocab", FakeVocab(entries))


class Language:
    """Knows which bytes are a text of the language, and which begin one."""

    def __init__(self, is_text: Callable[[bytes], bool], is_beginning: Callable[[bytes], bool]) -> None:
        self.is_text = is_text
        self.is_beginning = is_beginning

    @classmethod
    def listed(cls, texts: Iterable[str], beginnings: Iterable[str] = ()) -> Language:
        """Make a language of all its texts up to some length, and of what begins longer ones."""
        known = {text.encode() for text in texts}
        whole = known.union(beginning.encode() for beginning in beginnings)
        begun = {text[:i] for text in whole for i in range(len(text) + 1)}
        return cls(known.__contains__, begun.__contains__)

    def legal(self, vocab: pyspec.Vocab, text: bytes) -> set[int]:
        """Return the tokens that are legal behind a text."""
        pieces = enumerate(vocab.all_pieces())
        going_on = {token for token, piece in pieces if piece and self.is_beginning(text + piece)}
        return going_on | (set(vocab.eog) if self.is_text(text) else set())


def allowed(state: GrammarState, n_vocab: int) -> set[int]:
    """Return the tokens of the mask; none at a dead end."""
    try:
        mask = state.mask()
    except GrammarError:
        return set()
    assert mask.dtype == np.uint32
    assert mask.shape == ((n_vocab + 31) // 32,)
    return {int(token) for token in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))}


def replay(grammar: CompiledGrammar, tokens: Iterable[int]) -> GrammarState:
    state = grammar.start()
    for token in tokens:
        state.accept(token)
    return state


def walk(state: GrammarState, vocab: pyspec.Vocab, depth: int) -> Iterator[list[int]]:
    """Visit every output of up to ``depth`` tokens that the state allows, without those that end the generation.

    The state stands behind the tokens that are yielded.
    """

    def visit(tokens: list[int]) -> Iterator[list[int]]:
        yield tokens
        if len(tokens) < depth:
            for token in range(vocab.n_tokens):
                if token not in vocab.eog and state.legal_prefix([token]):
                    state.accept(token)
                    yield from visit([*tokens, token])
                    state.rollback(1)

    yield from visit([])


def check_state(state: GrammarState, vocab: pyspec.Vocab, language: Language, tokens: list[int]) -> None:
    """Compare what a state says with the language."""
    text = vocab.detokenize_bytes(tokens)
    everything = range(vocab.n_tokens)
    wanted = language.legal(vocab, text)
    assert allowed(state, vocab.n_tokens) == wanted, text
    assert {token for token in everything if state.legal_prefix([token])} == wanted, text
    assert state.may_end is language.is_text(text)
    assert state.ended is (wanted <= vocab.eog and state.may_end)
    assert state.n_accepted == len(tokens)
    for token in set(everything) - wanted:
        with pytest.raises(GrammarError, match="is not what the grammar allows"):
            state.accept(token)
    assert allowed(state, vocab.n_tokens) == wanted, text


def check_forced(state: GrammarState, vocab: pyspec.Vocab, language: Language, tokens: list[int]) -> int:
    """Check that at each byte of what is forced nothing else is possible; return how many bytes are forced."""
    text = vocab.detokenize_bytes(tokens)
    before = allowed(state, vocab.n_tokens)
    forced = state.forced()
    assert state.legal_prefix(forced) == len(forced)
    assert allowed(state, vocab.n_tokens) == before
    must_follow = vocab.detokenize_bytes(forced)
    for i in range(len(must_follow)):
        so_far = text + must_follow[:i]
        possible = [byte for byte in range(256) if language.is_beginning(so_far + bytes([byte]))]
        assert possible == [must_follow[i]]
        assert not language.is_text(so_far)
    return len(must_follow)
