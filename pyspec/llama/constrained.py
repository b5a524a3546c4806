"""A sampler under a constraint: it chooses only what that allows, from rows that are otherwise as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspec.llama.minimum import Constraint
from pyspec.llama.sampler import Distribution, GreedySampler, SamplerChain


class ConstrainedSampler:
    """Masks each row with what is legal, before everything else, and follows what was chosen.

    So the target's distribution is that of the legal tokens, renormalised; every rule judges drafts by it.

    Args:
        unconstrained: How a token is chosen.
        state: How far the output has come, and what may follow: a ``GrammarState``, a ``MinimumLength``.
    """

    __slots__ = ("_state", "exact_per_row", "seed", "unconstrained")

    def __init__(self, unconstrained: GreedySampler | SamplerChain, state: Constraint) -> None:
        self.unconstrained = unconstrained
        self.exact_per_row = unconstrained.exact_per_row
        self.seed = unconstrained.seed
        self._state = state

    def sample(self, rows: Any, i: int) -> int:
        """Choose a legal token from row ``i``; see ``SamplerChain.sample``."""
        token = self.unconstrained.sample(rows, i, self._state.mask())
        self._state.accept(token)
        return token

    def distribution(self, rows: Any, i: int) -> Distribution:
        """Return the distribution over the legal tokens; see ``SamplerChain.distribution``."""
        return self.unconstrained.distribution(rows, i, self._state.mask())

    def accept(self, token: int) -> None:
        """Take in a token that was emitted and not chosen here.

        Raises:
            GrammarError: It is not legal.
        """
        self._state.accept(token)
        self.unconstrained.accept(token)

    def save(self) -> tuple[Any, int]:
        """Return the state for ``restore``; only the last one saved can be restored."""
        return self.unconstrained.save(), self._state.save()

    def restore(self, saved: tuple[Any, int]) -> None:
        """Return to a saved state."""
        self.unconstrained.restore(saved[0])
        self._state.restore(saved[1])

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens are legal, one after the other."""
        return self._state.legal_prefix(tokens)

    def forced(self) -> list[int]:
        """Return the tokens that must follow as text; they can be proposed for nothing."""
        return self._state.forced()
