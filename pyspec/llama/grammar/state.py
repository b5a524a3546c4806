"""How far an output has come in its grammar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from pyspec.config import as_index, as_list, require_int, shown
from pyspec.errors import ConfigError, GrammarError, TokenError, WrongThreadError
from pyspec.llama.grammar.faults import plain

if TYPE_CHECKING:
    from pyspec.llama.grammar.compiled import CompiledGrammar

Answer = TypeVar("Answer")
_DEAD_END = "NoExtensionBias"  # llguidance's name for it
_MARK = 0xFF  # stands before tokens that are no text among llguidance's bytes


class GrammarState:
    """The tokens of an output so far, and what may follow. It belongs to the first thread that uses it.

    Legal means: the text can still become one that the grammar allows. A token that ends the generation is legal
    where the text is complete; behind it nothing is. A call that raises leaves the state as it was.
    """

    __slots__ = ("_grammar", "_masked", "_matcher", "_thread", "_tokens")

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._tokens: list[int] = []
        self._masked = 0  # number of tokens at the last mask
        self._thread: int | None = None

    @property
    def n_accepted(self) -> int:
        """Number of tokens accepted, one that ended the generation included."""
        return len(self._tokens)

    @property
    def may_end(self) -> bool:
        """Whether the text is complete, so that a token that ends the generation is legal."""
        return not self._closed and bool(self._ask(lambda matcher: matcher.is_stopped() or matcher.is_accepting()))

    @property
    def ended(self) -> bool:
        """Whether nothing is legal but a token that ends the generation, or not even that."""
        if self._closed or self._ask(lambda matcher: matcher.is_stopped()):
            return True
        return self.may_end and not (self.mask() & self._grammar.vocab.text_words).any()

    def mask(self) -> npt.NDArray[np.uint32]:
        """Return which tokens are legal: bit ``token % 32`` of word ``token // 32``, uint32 [ceil(n_vocab / 32)].

        The array is the caller's.

        Raises:
            GrammarError: No token is legal although the text is incomplete, because the vocabulary cannot spell what
                must follow; or the grammar became too much to follow.
        """
        vocab = self._grammar.vocab
        if self._closed:
            return np.zeros_like(vocab.text_words)
        words = np.frombuffer(self._ask(self._bitmask), dtype="<u4")
        allowed: npt.NDArray[np.uint32] = words[: len(vocab.text_words)] & vocab.text_words
        if self.may_end:
            allowed |= vocab.eog_words
        elif not allowed.any():
            raise self._dead_end()
        return allowed

    def accept(self, token: int) -> None:
        """Take in a token of the output.

        Raises:
            TokenError: There is no such token.
            GrammarError: It is not legal here; or the grammar became too much to follow.
        """
        vocab = self._grammar.vocab
        number = as_index(token)
        if number is None or not 0 <= number < vocab.n_vocab:
            msg = f"The token is {shown(token)}; the vocabulary has the ids 0 to {vocab.n_vocab - 1}."
            raise TokenError(msg)
        if not self._take(number):
            text = vocab.pieces[number].decode("utf-8", "replace")
            msg = f"Token {number} ({text!r}) is not what the grammar allows after {self.n_accepted} tokens."
            raise GrammarError(msg)
        self._tokens.append(number)

    def _take(self, token: int) -> bool:
        """Move behind a token; return whether it was legal."""
        if token in self._grammar.vocab.eog:
            return self.may_end
        if self._closed:
            return False
        self._forget_mask()
        return bool(self._ask(lambda matcher: matcher.try_consume_tokens([token]), lambda n_tokens: n_tokens == 0))

    def rollback(self, n_tokens: int) -> None:
        """Take back the last tokens. The time depends on their number alone.

        Raises:
            ConfigError: More than were accepted.
        """
        dropped = self._tokens[self.n_accepted - require_int("n_tokens", n_tokens, 0, self.n_accepted) :]
        n_text = len(dropped) - (bool(dropped) and self._closed)
        if n_text:
            self._ask(lambda matcher: matcher.rollback(n_text))
        del self._tokens[self.n_accepted - len(dropped) :]

    def save(self) -> int:
        """Return a mark to come back to with ``restore``; it costs nothing and holds nothing."""
        return self.n_accepted

    def restore(self, mark: int) -> None:
        """Take back the tokens accepted since ``save`` gave this mark.

        Raises:
            ConfigError: The state is before the mark.
        """
        if require_int("mark", mark, 0, 2**62) > self.n_accepted:
            msg = f"The mark is behind {mark} tokens; the state has only {self.n_accepted}."
            raise ConfigError(msg)
        self.rollback(self.n_accepted - mark)

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens are legal, one after the other. The state stays where it is.

        Tokens outside the vocabulary are not legal: a draft model's may be larger.

        Raises:
            TokenError: These are no token ids.
        """
        vocab = self._grammar.vocab
        given = as_list(tokens)
        numbers = [None] if given is None else [as_index(token) for token in given]
        text: list[int] = []
        closing = False
        for number in numbers:
            if number is None:
                msg = f"tokens must be a list of token ids, not {shown(tokens)}."
                raise TokenError(msg)
            closing = number in vocab.eog
            if closing or not 0 <= number < vocab.n_vocab:
                break
            text.append(number)
        if self._closed or not (text or closing):
            return 0
        if self._ask(lambda matcher: matcher.is_stopped()):
            return int(closing and not text)
        asked = [*text, vocab.end] if closing else text
        return int(self._ask(lambda matcher: matcher.validate_tokens(asked), lambda n_legal: n_legal < len(asked)))

    def forced(self) -> list[int]:
        """Return tokens for the text that must follow, as the tokenizer splits it; the state stays where it is.

        Other tokens may be legal for the same text. The end is left open where a longer token could still be legal.
        Without a tokenizer that returns exactly the bytes of a text, there are none.

        Raises:
            GrammarError: The grammar became too much to follow.
        """
        if self._closed or self._ask(lambda matcher: matcher.is_stopped()):
            return []
        self._forget_mask()
        text, tokens = self._ask(_forced_by, lambda _: True)
        if _MARK in text:
            self._rebuild()  # llguidance keeps what it found; its masks are wrong where that is no text
        return tokens[: self.legal_prefix(tokens)]

    @property
    def _closed(self) -> bool:
        """Whether the last token ended the generation; llguidance is not told of it."""
        return bool(self._tokens) and self._tokens[-1] in self._grammar.vocab.eog

    def _ask(self, question: Callable[[Any], Answer], doubt: Callable[[Answer], bool] = lambda _: False) -> Answer:
        """Ask llguidance's matcher, which never gets out of an error: then another one is asked, once.

        Args:
            question: What to ask.
            doubt: Whether an answer may be wrong: a lexer that has hit a limit refuses everything, and only masks
                say so.
        """
        self._check_thread()
        trouble = ""
        for renewed in (False, True):
            answer = question(self._matcher)
            doubted = doubt(answer)
            if doubted:
                self._bitmask(self._matcher)
            if not self._matcher.is_error():
                return answer
            trouble = self._matcher.get_error()
            if _DEAD_END not in trouble and not renewed:
                self._grammar.renew()  # other states may have used up what all share
            self._rebuild()
            if _DEAD_END in trouble and doubted:
                return answer
            if _DEAD_END in trouble:
                raise self._dead_end()
        msg = f"The grammar is too much to follow after {self.n_accepted} tokens: {plain(trouble)}."
        raise GrammarError(msg)

    def _forget_mask(self) -> None:
        """Replace the mask that llguidance keeps, if it was made behind this place.

        After a rollback it would be taken for the mask of another way to go on. This one, made where the two ways
        part, is good for both.
        """
        if self._masked > self.n_accepted:
            self._ask(self._bitmask, lambda _: True)

    def _bitmask(self, matcher: Any) -> bytes:
        self._masked = self.n_accepted
        bitmask: bytes = matcher.compute_bitmask()
        return bitmask

    def _check_thread(self) -> None:
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        elif self._thread != thread:
            msg = f"The state of a grammar belongs to thread {self._thread}; this is thread {thread}."
            raise WrongThreadError(msg)

    def _rebuild(self) -> None:
        """Make a matcher that stands where this state does."""
        self._matcher = self._grammar.matcher()
        self._matcher.consume_tokens(self._tokens[:-1] if self._closed else self._tokens)

    def _dead_end(self) -> GrammarError:
        n_tokens = self.n_accepted
        return GrammarError(f"No token can follow after {n_tokens} tokens: none spells what the grammar asks for.")


def _forced_by(matcher: Any) -> tuple[bytes, list[int]]:
    return matcher.compute_ff_bytes(), matcher.compute_ff_tokens()
