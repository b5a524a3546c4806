"""A vocabulary as llguidance takes it: made once for each, because that takes a quarter of a second.

llguidance knows tokens by their bytes. Control tokens have none; they have names, which a grammar in Lark or GBNF can
ask for. Tokens of more than 1000 bytes, which it cannot hold, are never legal. About the tokens that end a
generation llguidance is never asked; the states of a grammar know where one is legal.

One id more than the vocabulary has stands for the end of the text, because llguidance wants a single token for that
and vocabularies have none, one or several.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec.errors import GrammarError, PyspecError
from pyspec.llama.grammar.library import llguidance
from pyspec.llama.vocab import Vocab, VocabType

_CONTROL = 8  # LLAMA_TOKEN_ATTR_CONTROL
_MARK = b"\xff"
_END = _MARK + b"end"  # no grammar can name it; without any marked token llguidance panics when one is named
_MAX_PIECE = 1000  # bytes
_MAX_TOKENS = 2**24 - 2
_SENTINEL = "\n"


class GrammarVocab:
    """What the grammars of one vocabulary share.

    Attributes:
        n_vocab: Number of token ids.
        end: The id that stands for the end of the text, ``n_vocab``.
        eog: The tokens that end a generation.
        pieces: The bytes of each token.
        specials: Names of the control tokens that a grammar can ask for, by id.
        tokenizer: llguidance's tokenizer.
        text_words: Mask of the tokens that do not end a generation, uint32 [ceil(n_vocab / 32)].
        eog_words: Mask of those that do, uint32 [ceil(n_vocab / 32)].
        kept: Compiled grammars, the last used one at the end.
    """

    __slots__ = ("end", "eog", "eog_words", "kept", "n_vocab", "pieces", "specials", "text_words", "tokenizer")

    def __init__(self, vocab: Vocab) -> None:
        if vocab.type is VocabType.NONE:
            msg = "This model has no vocabulary, so that a grammar has no text to look at."
            raise GrammarError(msg)
        if vocab.n_tokens > _MAX_TOKENS:
            msg = f"The vocabulary has {vocab.n_tokens} tokens; grammars work with at most {_MAX_TOKENS}."
            raise GrammarError(msg)
        self.n_vocab = self.end = vocab.n_tokens
        self.eog = vocab.eog
        self.pieces: Sequence[bytes] = vocab.all_pieces()
        self.specials = _specials(vocab)
        self.tokenizer = self._make_tokenizer(vocab)
        allowed = np.ones(32 * ((self.n_vocab + 31) // 32), dtype=bool)
        allowed[self.n_vocab :] = False
        allowed[list(self.eog)] = False
        self.text_words = _words(allowed)
        allowed[: self.n_vocab] ^= True
        self.eog_words = _words(allowed)
        self.kept: dict[Hashable, Any] = {}

    def _make_tokenizer(self, vocab: Vocab) -> Any:
        tokens = [piece if len(piece) <= _MAX_PIECE else b"" for piece in self.pieces]
        for token, name in self.specials.items():
            tokens[token] = _MARK + name
        try:
            return llguidance().LLTokenizer(_Wrapper(vocab, [*tokens, _END]))
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # derives from BaseException alone
                raise
            msg = f"llguidance cannot work with this vocabulary: {error}."
            raise GrammarError(msg) from None


class _Wrapper:
    """What llguidance asks a tokenizer for.

    Args:
        vocab: Turns text into tokens. Not kept alive: the cache of vocabularies is keyed by it.
        tokens: The bytes of each token, and of the end.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, vocab: Vocab, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = len(tokens) - 1
        self._vocab = weakref.ref(vocab)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that begins anywhere; none where they would not have exactly its bytes.

        An exception must not reach llguidance, which would panic.
        """
        vocab = self._vocab()
        if vocab is None:
            return []
        try:
            return _tokens_inside(vocab, text)
        except PyspecError:  # the model is closed
            return []


def _tokens_inside(vocab: Vocab, text: str) -> list[int]:
    """Tokenise a text that does not stand at the beginning, where some tokenizers would put a space."""
    tokens = vocab.tokenize(text)
    if vocab.detokenize_bytes(tokens) == text.encode():
        return tokens
    before = vocab.tokenize(_SENTINEL)
    tokens = vocab.tokenize(_SENTINEL + text)
    rest = tokens[len(before) :]
    same = tokens[: len(before)] == before and vocab.detokenize_bytes(rest) == text.encode()
    return rest if same else []


def _specials(vocab: Vocab) -> dict[int, bytes]:
    """Return the names of control tokens, without those that end a generation; the first of equal ones counts."""
    control = [int(token) for token in np.flatnonzero(vocab.attributes() & _CONTROL) if int(token) not in vocab.eog]
    names: dict[bytes, int] = {}
    for token, name in zip(control, vocab.pieces(control, special=True), strict=True):
        if 0 < len(name) <= _MAX_PIECE:
            names.setdefault(name, token)
    return {token: name for name, token in names.items()}


def _words(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    return np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)


_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[Vocab, GrammarVocab] = weakref.WeakKeyDictionary()


def grammar_vocab(vocab: Vocab) -> GrammarVocab:
    """Return what the grammars of this vocabulary share, made at the first call.

    Raises:
        GrammarError: Grammars cannot work with it.
        LibraryNotFoundError: llguidance is not installed.
    """
    with _lock:
        if vocab not in _known:
            _known[vocab] = GrammarVocab(vocab)
        return _known[vocab]
