"""Samplers: how the target chooses a token from a logits row.

A sampler's state holds exactly the tokens that were emitted: ``sample`` takes its token in. ``save`` and
``restore`` let a round be undone.
"""

from __future__ import annotations

import secrets
from typing import Any

from pyspec._native import Handle
from pyspec._native import samplers as native
from pyspec.config import MAX_INT32, MAX_SEED, SamplingConfig, as_index, require_int
from pyspec.errors import ConfigError, TokenError
from pyspec.llama.rows import Rows


class GreedySampler:
    """Takes the most likely token, the lowest id among equals. It has no state."""

    __slots__ = ()
    seed: int | None = None

    def sample(self, rows: Any, i: int) -> int:
        """Return the token for row ``i``."""
        token: int = rows.argmax(i)
        return token

    def accept(self, token: int) -> None:
        """Take in a token that was not drawn here, such as one of the prompt."""

    def save(self) -> None:
        """Return the state for ``restore``."""

    def restore(self, saved: None) -> None:
        """Return to a saved state."""


class SamplerChain:
    """llama.cpp's sampler chain: bias, penalties, top-k, typical, top-p, min-p, temperature, draw.

    Args:
        config: What to apply.
        n_vocab: Size of the vocabulary.

    Raises:
        TokenError: ``logit_bias`` names a token outside the vocabulary.
    """

    __slots__ = ("_handle", "_n_vocab", "_saved", "_stateful", "seed")

    def __init__(self, config: SamplingConfig, n_vocab: int) -> None:
        _require_sampling_config(config)
        require_int("n_vocab", n_vocab, 1, MAX_INT32)
        outside = [token for token in config.logit_bias if token >= n_vocab]
        if outside:
            msg = f"logit_bias names token {outside[0]}; the vocabulary has the ids 0 to {n_vocab - 1}."
            raise TokenError(msg)
        # The native generator takes 2^32 - 1 for "random", so it is never handed down.
        self.seed = config.seed if config.seed is not None else secrets.randbelow(MAX_SEED)
        self._handle = native.create(config, n_vocab, min(self.seed, MAX_SEED - 1))
        self._n_vocab = n_vocab
        self._stateful = config.temperature > 0.0 or config.has_penalties
        self._saved: Handle | None = None

    def sample(self, rows: Rows, i: int) -> int:
        """Draw a token from row ``i`` and take it into the state.

        Raises:
            ConfigError: These are not rows, or there is no such row.
            LifetimeError: The rows were overwritten.
        """
        if not isinstance(rows, Rows):
            msg = f"rows must be the Rows of a decode, not {type(rows).__name__}."
            raise ConfigError(msg)
        return native.sample(self._handle, rows.context_handle, rows.locate(i))

    def accept(self, token: int) -> None:
        """Take in a token that was not drawn here, such as one of the prompt, for the penalties."""
        number = as_index(token)
        if number is None or not 0 <= number < self._n_vocab:
            msg = f"Token {token!r} is outside the vocabulary, ids 0 to {self._n_vocab - 1}."
            raise TokenError(msg)
        native.accept(self._handle, number)

    def save(self) -> object:
        """Return the state for ``restore``; only the last one saved can be restored."""
        if not self._stateful:
            return None
        if self._saved is None:
            self._saved = native.clone(self._handle)
        else:
            native.assign(self._saved, self._handle)
        return self._saved

    def restore(self, saved: object) -> None:
        """Return to the state that was saved last."""
        if self._stateful and isinstance(saved, Handle):
            native.assign(self._handle, saved)

    def close(self) -> None:
        """Free the native chain. May be called again."""
        self._handle.close()
        if self._saved is not None:
            self._saved.close()


def make_sampler(config: SamplingConfig, n_vocab: int) -> GreedySampler | SamplerChain:
    """Return the cheapest sampler that does what ``config`` says.

    Raises:
        ConfigError: ``config`` is not a SamplingConfig.
        TokenError: ``logit_bias`` names a token outside the vocabulary.
    """
    _require_sampling_config(config)
    if config.temperature == 0.0 and not config.has_penalties and not config.logit_bias:
        return GreedySampler()
    return SamplerChain(config, n_vocab)


def _require_sampling_config(config: object) -> None:
    if not isinstance(config, SamplingConfig):
        msg = f"sampling must be a SamplingConfig, not {type(config).__name__}."
        raise ConfigError(msg)
