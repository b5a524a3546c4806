"""How a draft model chooses a token from its logits row: the most likely one, or a draw."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from pyspec.config import require_float
from pyspec.errors import ConfigError
from pyspec.speculation.coupled import coupled_token
from pyspec.speculation.draft import Candidates, DraftRequest
from pyspec.speculation.noise import Stream, uniform
from pyspec.speculation.target import TargetRows

N_CANDIDATES = 10  # a token's draft probability is its share of the ten best, as in llama.cpp
SURE = 1.0 - 1e-9  # the largest signal of a share; from 1 on they are lengths of matches

Sampling = Literal["greedy", "probabilistic", "coupled"]


class Choice(NamedTuple):
    """A drafted token.

    Attributes:
        token: Its id.
        candidates: The distribution it was drawn from; None when it was not drawn.
        signal: How sure the draft model is: the best candidate's share, whichever was drawn. None if nobody asked.
    """

    token: int
    candidates: Candidates | None
    signal: float | None = None


class Chooser:
    """Chooses tokens for a draft and says when to stop.

    Args:
        n_vocab: Size of the target's vocabulary; ids beyond it are padding of the draft model's and never drafted.
        p_min: Drafting stops where the best candidate's share of the ten best is lower.
        sampling: "greedy" takes the most likely token. "probabilistic" draws at the target's temperature, so that
            drafts have a distribution to be judged by. "coupled" does so with the noise that the target has under
            the rule "coupled", so that the two often draw the same. At temperature 0 all are the same.

    Raises:
        ConfigError: An option is out of range.
    """

    def __init__(self, n_vocab: int, p_min: float = 0.0, sampling: Sampling = "greedy") -> None:
        if sampling not in get_args(Sampling):
            msg = f'sampling must be "greedy", "probabilistic" or "coupled", not {sampling!r}.'
            raise ConfigError(msg)
        self.p_min = require_float("p_min", p_min, 0.0, 1.0)
        self.sampling = sampling
        self._n_vocab = n_vocab

    def least(self, request: DraftRequest) -> float:
        """Return the least share that a request wants of a token."""
        return self.p_min if request.drafting.p_min is None else request.drafting.p_min

    def choose(
        self, rows: TargetRows, i: int, request: DraftRequest, position: int, *, p_min: float | None = None
    ) -> Choice | None:
        """Return the token that row ``i`` proposes for ``position``, or None to stop before it.

        Args:
            rows: Logits rows of the draft model.
            i: Number of the row.
            request: What the draft answers.
            position: Position of the token to choose.
            p_min: Instead of the chooser's own.
        """
        least = self.least(request) if p_min is None else p_min
        if not self._draws(request) and least == 0.0 and not request.wants_signals:
            return self._legal(Choice(rows.argmax(i), None))
        return self.of_candidates(*rows.top_k(i, N_CANDIDATES), request, position, p_min=least)

    def of_candidates(
        self,
        tokens: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
        request: DraftRequest,
        position: int,
        *,
        p_min: float | None = None,
    ) -> Choice | None:
        """Choose among candidates, both [k]; see ``choose``."""
        best = int(np.argmax(logits))
        share = float(shares(logits)[best])
        if share < (self.least(request) if p_min is None else p_min):
            return None
        signal = min(share, SURE) if request.wants_signals else None
        if not self._draws(request):
            return self._legal(Choice(int(tokens[best]), None, signal))
        legal = tokens < self._n_vocab
        if not legal.any():
            return None
        candidates = Candidates(tokens[legal], shares(logits[legal], request.temperature))
        return Choice(self._drawn(candidates, request.seed or 0, position), candidates, signal)

    def _draws(self, request: DraftRequest) -> bool:
        return self.sampling != "greedy" and request.temperature > 0.0

    def _drawn(self, candidates: Candidates, seed: int, position: int) -> int:
        if self.sampling == "coupled":
            return coupled_token(candidates, seed, position)
        return candidates.draw(uniform(seed, position, Stream.DRAFT))

    def _legal(self, choice: Choice) -> Choice | None:
        return choice if choice.token < self._n_vocab else None


def shares(logits: npt.NDArray[np.float32], temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the probabilities of candidates among themselves, [k]."""
    scaled = (logits.astype(np.float64) - float(logits.max())) / temperature
    weights = np.exp(scaled)
    probs: npt.NDArray[np.float64] = weights / weights.sum()
    return probs
