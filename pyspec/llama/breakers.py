"""Sequence breakers of DRY: texts as the tokens that may write them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspec.llama.vocab import Vocab


class Breaker(NamedTuple):
    """Ways to write a text.

    Attributes:
        heads: Tokens it may begin in, [n].
        tail: The tokens behind; empty when the heads hold the text whole.
    """

    heads: npt.NDArray[np.int32]
    tail: list[int]


# Looking through a vocabulary takes tens of milliseconds, and every request asks for the same few texts.
_found: weakref.WeakKeyDictionary[Vocab, dict[str, list[Breaker]]] = weakref.WeakKeyDictionary()


def breakers(vocab: Vocab, texts: Iterable[str]) -> list[Breaker]:
    """Return the ways to write texts, found once per vocabulary.

    A text may stand inside a token, or begin at the end of one and go on as the tokenizer writes the rest.
    """
    known = _found.setdefault(vocab, {})
    wanted = list(dict.fromkeys(texts))
    missing = [text for text in wanted if text not in known]
    if missing:
        pieces = vocab.pieces(range(vocab.n_tokens), special=True)
        known.update((text, _ways(vocab, pieces, text)) for text in missing)
    return [breaker for text in wanted for breaker in known[text]]


def _ways(vocab: Vocab, pieces: list[bytes], text: str) -> list[Breaker]:
    whole = text.encode()
    ways: list[tuple[npt.NDArray[np.int32], list[int]]] = [(_tokens(whole in piece for piece in pieces), [])]
    for n_first in range(1, len(text)):
        first = text[:n_first].encode()
        heads = _tokens(piece.endswith(first) and whole not in piece for piece in pieces)
        ways.append((heads, _written(vocab, pieces, text[n_first:])))
    tokens = _written(vocab, pieces, text)  # a character may take several
    ways.append((np.array(tokens[:1], np.int32), tokens[1:]))
    return [Breaker(heads, tail) for i, (heads, tail) in enumerate(ways) if len(heads) and (tail or i == 0)]


def _tokens(chosen: Iterable[bool]) -> npt.NDArray[np.int32]:
    return np.flatnonzero(np.fromiter(chosen, np.bool_)).astype(np.int32)


def _written(vocab: Vocab, pieces: list[bytes], text: str) -> list[int]:
    """Return a text's tokens, without the space that some tokenizers put in front; empty where it cannot be written."""
    if not any(pieces):
        return []  # a vocabulary without texts
    data = text.encode()
    tokens = vocab.tokenize(text)
    for part in (tokens, tokens[1:]):
        if b"".join(pieces[token] for token in part) == data:
            return part
    return []
