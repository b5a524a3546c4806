"""Samplers: how the target chooses a token from a logits row.

A sampler's state holds exactly the tokens that were emitted: ``sample`` takes its token in. ``save`` and
``restore`` let a round be undone.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec._native import samplers as native
from pyspec.config import MAX_INT32, MAX_SEED, SamplingConfig, as_index, require_float, require_int, shown
from pyspec.errors import ConfigError, TokenError, UnsupportedError
from pyspec.llama.breakers import breakers
from pyspec.llama.mask import TokenMask, checked_mask
from pyspec.llama.rows import Rows
from pyspec.llama.vocab import Vocab

_MOST_MU = 1e9
Distribution = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]
"""Tokens, [k], in no particular order, and their probabilities, [k], which are positive and sum to 1."""


class GreedySampler:
    """Takes the most likely token, the lowest id among equals. It has no state."""

    __slots__ = ()
    seed: int | None = None
    exact_per_row = True

    def sample(self, rows: Any, i: int, mask: TokenMask | None = None) -> int:
        """Return the token for row ``i``; see ``SamplerChain.sample``."""
        token: int = rows.argmax(i) if mask is None else rows.argmax(i, mask)
        return token

    def distribution(self, rows: Any, i: int, mask: TokenMask | None = None) -> Distribution:
        """Return the one token that ``sample`` returns, with probability 1."""
        return np.array([self.sample(rows, i, mask)], np.int32), np.ones(1)

    def accept(self, token: int) -> None:
        """Take in a token that was not drawn here, such as one of the prompt."""

    def save(self) -> None:
        """Return the state for ``restore``."""

    def restore(self, saved: None) -> None:
        """Return to a saved state."""

    def progress(self) -> tuple[int, float]:
        """Return how far it has come; see ``SamplerChain.progress``."""
        return 0, 0.0

    def resume(self, n_draws: int, mu: float) -> None:
        """Return to there."""

    def hand_over(self) -> None:
        """Any thread may use it."""


class SamplerChain:
    """What ``SamplingConfig`` describes, applied to one row after the other.

    Each ``sample`` spends one random number at temperatures above 0 and none at 0, whatever is on; so the number of
    draws is the number of tokens chosen here. XTC, which is random by itself, spends none of its own: tossing its coin
    and then drawing is the same as drawing from the mixture of the two distributions, with and without top choices.

    Args:
        config: What to apply.
        n_vocab: Size of the vocabulary.
        vocab: The vocabulary; only DRY's sequence breakers ask for it.

    Raises:
        TokenError: ``logit_bias`` names a token outside the vocabulary.
        ConfigError: DRY has sequence breakers and there is no vocabulary.

    Attributes:
        seed: The seed in use; the config's, or a fresh one.
        exact_per_row: Whether a choice depends on nothing but the row, the tokens taken in and one random number, so
            that ``distribution`` and ``accept`` can take the place of ``sample``. Not so with mirostat: its bound moves
            with the probability of what ``sample`` drew. A caller that draws every emitted token with ``sample``, in
            order, and no other, stays exact all the same.
    """

    __slots__ = ("_handle", "_n_vocab", "_saved", "_stateful", "exact_per_row", "seed")

    def __init__(self, config: SamplingConfig, n_vocab: int, vocab: Vocab | None = None) -> None:
        _require_sampling_config(config)
        require_int("n_vocab", n_vocab, 1, MAX_INT32)
        outside = [token for token in config.logit_bias if token >= n_vocab]
        if outside:
            msg = f"logit_bias names token {outside[0]}; the vocabulary has the ids 0 to {n_vocab - 1}."
            raise TokenError(msg)
        self.seed = config.seed if config.seed is not None else secrets.randbelow(MAX_SEED)
        # llama.cpp takes 2^32 - 1 for "random", so that it stands for the one before here as there.
        self._handle = native.create(config, n_vocab, min(self.seed, MAX_SEED - 1), _breakers(config, vocab))
        self._n_vocab = n_vocab
        self._stateful = config.temperature > 0.0 or config.has_penalties
        self.exact_per_row = config.mirostat == 0 or config.temperature == 0.0
        self._saved: object = None

    def sample(self, rows: Rows, i: int, mask: TokenMask | None = None) -> int:
        """Draw a token from row ``i`` and take it into the state.

        Args:
            rows: The rows of a decode.
            i: Which one.
            mask: The tokens that may be chosen; None allows all. It comes before everything else.

        Raises:
            ConfigError: These are not rows, there is no such row, or the mask does not fit the vocabulary.
            DecodeError: There is nothing to choose: all is banned, or the row is not of numbers.
            LifetimeError: The rows were overwritten.
        """
        return native.sample(self._handle, *self._place(rows, i), self._words(mask))

    def distribution(self, rows: Rows, i: int, mask: TokenMask | None = None) -> Distribution:
        """Return what ``sample`` would draw from; nothing is drawn and nothing taken in.

        At temperature 0 it is one token with probability 1. ``accept`` tells the sampler which token it became.

        Args:
            rows: See ``sample``.
            i: See ``sample``.
            mask: See ``sample``.

        Raises:
            UnsupportedError: The sampler is not ``exact_per_row``.
            ConfigError: See ``sample``; so are the others.
        """
        if not self.exact_per_row:
            msg = (
                "mirostat has no distribution that others could draw from, because its bound moves with what it draws "
                'itself; use the rule "match", or mirostat 0.'
            )
            raise UnsupportedError(msg)
        return native.distribution(self._handle, *self._place(rows, i), self._words(mask))

    def progress(self) -> tuple[int, float]:
        """Return how far it has come beside the tokens that it took in: draws, and mirostat's bound."""
        return native.progress(self._handle)

    def resume(self, n_draws: int, mu: float) -> None:
        """Let a new sampler of the same settings and seed, which took in the same tokens, go on as the other one.

        Args:
            n_draws: Of ``progress``, at most 2^31 - 1.
            mu: The same.

        Raises:
            ConfigError: They are no such numbers.
        """
        native.resume(
            self._handle, require_int("n_draws", n_draws, 0, MAX_INT32), require_float("mu", mu, -_MOST_MU, _MOST_MU)
        )

    def hand_over(self) -> None:
        """Let the next thread that uses the sampler own it."""
        self._handle.hand_over()

    def accept(self, token: int) -> None:
        """Take in a token that was not drawn here, such as one of the prompt, for the penalties.

        Raises:
            TokenError: It is outside the vocabulary.
        """
        number = as_index(token)
        if number is None or not 0 <= number < self._n_vocab:
            msg = f"Token {shown(token)} is outside the vocabulary, ids 0 to {self._n_vocab - 1}."
            raise TokenError(msg)
        native.accept(self._handle, number)

    def save(self) -> object:
        """Return the state for ``restore``; only the last one saved can be restored.

        It takes the same short time however far the penalties look back.
        """
        if not self._stateful:
            return None
        native.save(self._handle)
        self._saved = object()
        return self._saved

    def restore(self, saved: object) -> None:
        """Return to the state that was saved last, as often as wanted.

        Raises:
            ConfigError: ``saved`` is not that state.
        """
        if saved is not self._saved:
            msg = "Only the state that save() returned last can be restored."
            raise ConfigError(msg)
        if saved is not None:
            native.restore(self._handle)

    def close(self) -> None:
        """Free the native sampler. May be called again."""
        self._handle.close()

    def _place(self, rows: Rows, i: int) -> tuple[Any, int]:
        if not isinstance(rows, Rows):
            msg = f"rows must be the Rows of a decode, not {type(rows).__name__}."
            raise ConfigError(msg)
        return rows.context_handle, rows.locate(i)

    def _words(self, mask: TokenMask | None) -> TokenMask | None:
        return None if mask is None else checked_mask(mask, self._n_vocab)


def make_sampler(config: SamplingConfig, n_vocab: int, vocab: Vocab | None = None) -> GreedySampler | SamplerChain:
    """Return the cheapest sampler that does what ``config`` says.

    Raises:
        ConfigError: ``config`` is not a SamplingConfig; see ``SamplerChain`` for more.
        TokenError: ``logit_bias`` names a token outside the vocabulary.
    """
    _require_sampling_config(config)
    if config.temperature == 0.0 and not config.has_penalties and not config.logit_bias:
        return GreedySampler()
    return SamplerChain(config, n_vocab, vocab)


def _breakers(config: SamplingConfig, vocab: Vocab | None) -> native.Breakers:
    if not config.has_dry or not config.dry_sequence_breakers:
        return ()
    if not isinstance(vocab, Vocab):
        msg = (
            "DRY's sequence breakers are texts, so the sampler needs vocab, the model's vocabulary, not "
            f"{shown(vocab)}; without it, set dry_sequence_breakers to ()."
        )
        raise ConfigError(msg)
    return breakers(vocab, config.dry_sequence_breakers)


def _require_sampling_config(config: object) -> None:
    if not isinstance(config, SamplingConfig):
        msg = f"sampling must be a SamplingConfig, not {type(config).__name__}."
        raise ConfigError(msg)
