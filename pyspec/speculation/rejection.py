"""The rule "rejection": a drawn draft stands as often as the target allows, and the output is the target's.

Source: Leviathan, Kalman and Matias, 2023; Chen et al., 2023. A token drawn from the draft probabilities is accepted
with min(1, target / draft probability); a rejected one is replaced by a draw from what the target has above the draft.
At any position the two together give the target's probability::

    min(draft, target) + (1 - sum of it) * residual = target

The share of accepted tokens is the overlap of the two distributions, sum of min(draft, target).

This needs drafts that are what their probabilities say. Whether a position has a draft token may depend on the tokens
before it, never on the token that was drawn there, nor on anything that was drawn after it: who drops a draft because
of what came out proposes the rest more often than its probability says.
"""

from __future__ import annotations

import numpy as np

from pyspec.errors import DrafterError
from pyspec.speculation.accept import Verdict, follow_distribution
from pyspec.speculation.draft import Candidates, Draft
from pyspec.speculation.noise import Stream, Uniform, uniform
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import TargetRows


class RejectionRule:
    """Accepts a draft token with min(1, target / draft probability), else draws from the residual.

    A draft without probabilities is decided as "match" does it: the target draws, and the draft token stands when it
    is that draw. So it is without a draft and at the last row.

    Args:
        numbers: Where random numbers come from.
    """

    name = "rejection"
    valid = True

    def __init__(self, numbers: Uniform = uniform) -> None:
        self._numbers = numbers

    def accept(self, draft: Draft, rows: TargetRows, sequence: Sequence) -> Verdict:
        """See ``AcceptRule``.

        Raises:
            DrafterError: The draft probabilities cannot be those that the draft was drawn from.
            UnsupportedError: The sampler only draws.
        """
        if draft.probs is not None and len(draft.probs) != len(draft.tokens):
            msg = f"A draft of {len(draft.tokens)} tokens came with draft probabilities for {len(draft.probs)}."
            raise DrafterError(msg)
        seed, first = sequence.seed or 0, sequence.n_committed + 1

        def decide(target: Candidates, i: int) -> int:
            return self._decide(target, draft, i, seed, first + i)

        return follow_distribution(draft, rows, sequence, decide)

    def _decide(self, target: Candidates, draft: Draft, i: int, seed: int, position: int) -> int:
        if draft.probs is None or i == len(draft.tokens):
            return target.draw(self._numbers(seed, position, Stream.CHOICE))
        token, drawn_from = draft.tokens[i], draft.probs[i]
        if self._numbers(seed, position, Stream.ACCEPT) < acceptance(target, drawn_from, token):
            return token
        return residual(target, drawn_from).draw(self._numbers(seed, position, Stream.RESIDUAL))


def acceptance(target: Candidates, draft: Candidates, token: int) -> float:
    """Return the probability that a drafted token stands, in [0, 1].

    Args:
        target: The target's distribution; a token that it does not have never stands.
        draft: The distribution that the token was drawn from.
        token: The token.

    Raises:
        DrafterError: The token cannot have been drawn from ``draft``.
    """
    draft_prob = _prob(draft, token)
    if not draft_prob > 0.0:
        msg = f"A draft proposed the token {token}, to which its own draft probabilities give {draft_prob}."
        raise DrafterError(msg)
    return min(1.0, _prob(target, token) / draft_prob)


def residual(target: Candidates, draft: Candidates) -> Candidates:
    """Return what takes a rejected token's place: what the target has above the draft, normalised.

    Tokens that the draft does not have keep all of their probability.
    """
    by_token = np.zeros(int(target.tokens.max()) + 1)
    shared = draft.tokens < len(by_token)
    by_token[draft.tokens[shared]] = draft.probs[shared]
    left = target.probs - by_token[target.tokens]
    above = left > 0.0
    if not above.any():  # equal distributions, but for rounding, which rejected a token all the same
        return target
    return Candidates(target.tokens[above], left[above] / left[above].sum())


def _prob(candidates: Candidates, token: int) -> float:
    return float(candidates.probs[candidates.tokens == token].sum())
