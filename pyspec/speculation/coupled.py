"""The rule "coupled": target and drafter draw with the same noise, so that they often draw the same.

Source: Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative decoding", 2024.
With standard Gumbel noise of its own for every token, the token with the largest log probability + noise is a draw
from the distribution (the Gumbel-max trick). The noise depends on seed, position and token only. So the output does
too, given the target's distributions: no drafter, no draft length and no neighbour changes it. A drafter that uses the
same noise on its own distribution agrees with the target with a probability between (1 - d) / (1 + d) and 1 - d, where
d is the total variation distance of the two distributions.
"""

from __future__ import annotations

import numpy as np

from pyspec.speculation.accept import Verdict, follow_distribution, supported
from pyspec.speculation.draft import Candidates, Draft
from pyspec.speculation.noise import Gumbel, gumbel
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import TargetRows


class CoupledRule:
    """The target draws with noise that drafters can share; a draft token stands while it is that draw.

    Args:
        noise: Where the noise comes from.
    """

    name = "coupled"
    valid = True

    def __init__(self, noise: Gumbel = gumbel) -> None:
        self._noise = noise

    def accept(self, draft: Draft, rows: TargetRows, sequence: Sequence) -> Verdict:
        """See ``AcceptRule``.

        Raises:
            UnsupportedError: The sampler only draws.
        """
        seed, first = sequence.seed or 0, sequence.n_committed + 1

        def decide(target: Candidates, i: int) -> int:
            return coupled_token(target, seed, first + i, self._noise)

        return follow_distribution(draft, rows, sequence, decide)


def coupled_token(candidates: Candidates, seed: int, position: int, noise: Gumbel = gumbel) -> int:
    """Return the token with the largest log probability + noise.

    Args:
        candidates: What to draw from.
        seed: The request's.
        position: Position of the token that is drawn.
        noise: Where the noise comes from.
    """
    possible = supported(candidates)
    scores = np.log(possible.probs) + noise(seed, position, possible.tokens)
    return int(possible.tokens[np.argmax(scores)])
