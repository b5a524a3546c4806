"""Vocabulary: text to tokens and back."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pyspec._native import Handle
from pyspec._native import models as native
from pyspec.config import MAX_INT32, as_index, as_list, require_bool, require_int, shown
from pyspec.errors import ConfigError, TokenError, VocabError


class VocabType(enum.Enum):
    """Tokenizer family, with llama.cpp's numbers."""

    NONE = 0
    SPM = 1
    BPE = 2
    WPM = 3
    UGM = 4
    RWKV = 5
    PLAMO2 = 6
    TEST = 7


class Vocab:
    """The vocabulary of a model. Any thread may use it.

    Attributes:
        type: Tokenizer family.
        n_tokens: Number of token ids.
        add_bos: Whether text normally starts with ``bos``.
        add_eos: Whether text normally ends with ``eos``.
        bos, eos, eot, sep, nl, pad, mask: Special tokens, None where there is none.
        fim_prefix, fim_suffix, fim_middle: Special tokens for filling in the middle.
        eog: The tokens that end a generation.
    """

    def __init__(self, handle: Handle) -> None:
        raw = native.vocab_info(handle)
        self._handle = handle
        self._all_pieces: Sequence[bytes] = ()
        self.type = VocabType(raw.type)
        self.n_tokens: int = raw.n_tokens
        self.add_bos = bool(raw.add_bos)
        self.add_eos = bool(raw.add_eos)
        self.bos = _optional(raw.bos)
        self.eos = _optional(raw.eos)
        self.eot = _optional(raw.eot)
        self.sep = _optional(raw.sep)
        self.nl = _optional(raw.nl)
        self.pad = _optional(raw.pad)
        self.mask = _optional(raw.mask)
        self.fim_prefix = _optional(raw.fim_pre)
        self.fim_suffix = _optional(raw.fim_suf)
        self.fim_middle = _optional(raw.fim_mid)
        flags = native.vocab_eog(handle, self.n_tokens)
        self.eog = frozenset(int(token) for token in np.flatnonzero(flags))

    def __len__(self) -> int:
        return self.n_tokens

    def tokenize(
        self, text: str | bytes | bytearray, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Turn text into token ids.

        Args:
            text: Any text; bytes must be UTF-8.
            add_special: Add BOS and EOS where the model wants them.
            parse_special: Read the names of special tokens, such as ``<|im_start|>``, as these tokens.

        Raises:
            VocabError: The text is not valid Unicode, too long, or the model has no vocabulary.
        """
        if isinstance(text, str):
            try:
                data = text.encode()
            except UnicodeEncodeError as error:
                msg = f"The text is not valid Unicode: {error}."
                raise VocabError(msg) from None
        elif isinstance(text, bytes | bytearray):
            data = bytes(text)
            try:
                data.decode()
            except UnicodeDecodeError as error:
                msg = f"The bytes are not UTF-8: {error}."
                raise VocabError(msg) from None
        else:
            msg = f"text must be a string or bytes, not {type(text).__name__}."
            raise ConfigError(msg)
        if self.type is VocabType.NONE:
            msg = "This model has no vocabulary; give token ids instead of text."
            raise VocabError(msg)
        if len(data) > MAX_INT32 // 2:
            msg = f"The text has {len(data)} bytes; at most {MAX_INT32 // 2} can be tokenised at once."
            raise VocabError(msg)
        return native.tokenize(
            self._handle,
            data,
            add_special=require_bool("add_special", add_special),
            parse_special=require_bool("parse_special", parse_special),
        )

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """Turn tokens into text; bytes that are not UTF-8 become U+FFFD. See ``detokenize_bytes``."""
        return self.detokenize_bytes(tokens, special=special).decode("utf-8", errors="replace")

    def detokenize_bytes(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """Return exactly the bytes that the tokens stand for, one after the other.

        Args:
            tokens: Token ids.
            special: Include the names of special tokens.

        Raises:
            TokenError: An id is outside the vocabulary.
        """
        return b"".join(self.pieces(tokens, special=special))

    def pieces(self, tokens: Iterable[int], *, special: bool = False) -> list[bytes]:
        """Return the bytes of each token.

        Raises:
            TokenError: An id is outside the vocabulary.
        """
        checked = self.check(tokens)
        if self.type is VocabType.NONE:
            return [b""] * len(checked)
        return native.pieces(
            self._handle, checked, native.PIECE_SPECIAL if require_bool("special", special) else native.PIECE
        )

    def all_pieces(self) -> Sequence[bytes]:
        """Return the bytes of every token, by its id; made once, in about a third of a microsecond per token."""
        if not self._all_pieces:
            self._all_pieces = self.pieces(range(self.n_tokens))
        return self._all_pieces

    def texts(self, first: int, end: int) -> list[bytes]:
        """Return the raw vocabulary entries of ids ``first`` to ``end - 1``, as stored in the file."""
        begin = require_int("first", first, 0, self.n_tokens)
        ids = range(begin, require_int("end", end, begin, self.n_tokens))
        if self.type is VocabType.NONE:
            return [b""] * len(ids)
        return native.pieces(self._handle, ids, native.PIECE_RAW)

    def attributes(self) -> npt.NDArray[np.int32]:
        """Return llama.cpp's attribute flags of all tokens, [n_tokens]."""
        return native.vocab_attributes(self._handle, self.n_tokens)

    def is_eog(self, token: int) -> bool:
        """Return whether a token ends the generation."""
        return as_index(token) in self.eog

    def check(self, tokens: Iterable[int]) -> Sequence[int]:
        """Return the tokens as a list of ints.

        Raises:
            TokenError: An id is not an integer or is outside the vocabulary.
        """
        given = as_list(tokens)
        if given is None:
            msg = f"tokens must be a sequence of token ids, not {type(tokens).__name__}."
            raise TokenError(msg)
        checked = []
        for i, token in enumerate(given):
            number = as_index(token)
            if number is None:
                msg = f"Token {i} is {shown(token)}; token ids are integers."
                raise TokenError(msg)
            if not 0 <= number < self.n_tokens:
                msg = f"Token {i} is {shown(number)}; the vocabulary has the ids 0 to {self.n_tokens - 1}."
                raise TokenError(msg)
            checked.append(number)
        return checked


def _optional(token: int) -> int | None:
    return token if token >= 0 else None
