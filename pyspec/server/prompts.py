"""Conversations as tokens, so that what somebody says cannot pass for what the template says.

A template writes names of control tokens, such as ``<|im_end|>``, to tell who speaks. The same name inside a message
would let its author end the message and go on as somebody else. So such names are marked before the template sees them,
and between the marks they are tokenised as the plain text that they are. All other text is tokenised in one piece.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from pyspec.errors import VocabError
from pyspec.llama.vocab import Vocab

_CONTROL = 8  # LLAMA_TOKEN_ATTR_CONTROL
_SPECIAL = _CONTROL | 2 | 16  # those of unknown text, and user-defined ones: all whose names are tokens in text
_MOST_NAMES = 10_000  # llama.cpp's time grows with their square
_BEGIN, _END = "\ue000", "\ue001"  # of Unicode's private use area
_MARKED = re.compile(f"{_BEGIN}(.*?){_END}", re.DOTALL)


class Speech:
    """What is said in conversations with one model.

    Args:
        vocab: The model's.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    @functools.cached_property
    def _names(self) -> re.Pattern[str]:
        longest_first = sorted(self._named(_CONTROL), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @functools.cached_property
    def _special(self) -> set[str]:
        return self._named(_SPECIAL)

    def _named(self, kinds: int) -> set[str]:
        tokens = [int(token) for token in np.flatnonzero(self._vocab.attributes() & kinds)]
        return {piece.decode("utf-8", "replace") for piece in self._vocab.pieces(tokens, special=True)} - {""}

    @functools.cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self._vocab.pieces(range(self._vocab.n_tokens), special=True)))

    def marked(self, value: Any) -> Any:
        """Return what a client said, a JSON value, with its control tokens' names marked."""
        if isinstance(value, str):
            bare = value.replace(_BEGIN, "").replace(_END, "") if _BEGIN in value or _END in value else value
            return self._names.sub(lambda found: f"{_BEGIN}{found[0]}{_END}", bare)
        if isinstance(value, dict):
            return {key: self.marked(part) for key, part in value.items()}
        return [self.marked(part) for part in value] if isinstance(value, list) else value

    @staticmethod
    def unmarked(text: str) -> str:
        """Return a rendered conversation without the marks."""
        return text.replace(_BEGIN, "").replace(_END, "")

    def read(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Return text as tokens.

        Raises:
            VocabError: It has very many names of special tokens.
        """
        if parse_special and len(text) > _MOST_NAMES and sum(map(text.count, self._special)) > _MOST_NAMES:
            msg = f"The text has more than {_MOST_NAMES} names of special tokens; give it in parts."
            raise VocabError(msg)
        return self._vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def joined(self, parts: Iterable[str | int]) -> list[int]:
        """Return a prompt of texts and token ids as tokens, with BOS before a text at its beginning."""
        tokens: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.read(part, add_special=i == 0)
        return tokens

    def tokens(self, text: str) -> list[int]:
        """Return a rendered conversation as tokens, with exactly one BOS where the model wants it."""
        found: list[int] = []
        for i, part in enumerate(_MARKED.split(text)):
            if i % 2:
                found += self.read(part, parse_special=False)
            elif part or i == 0:
                found += self.read(part, add_special=i == 0)
        return self._with_one_bos(found)

    def _with_one_bos(self, tokens: list[int]) -> list[int]:
        doubled = self._vocab.add_bos and tokens[:2] == [self._vocab.bos] * 2
        return tokens[1:] if doubled else tokens
