"""A drafter that costs time, as the controller sees it: what it takes, what it is expected to gain, how to ask it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import Costs
from pyspec.speculation.draft import Draft, Drafter, DraftRequest
from pyspec.speculation.planning import Base, Judge, Plan, Prices, Restoring, best_prefix

_FIRST_GUESS = 0.3  # of a plain decode, per step, before anything was measured
_RESTS = 8  # rounds
_GOES_ON = 0.7  # of the sequences that draft together, per step: those that are left share what a step takes
_KEEP = 0.95  # of the gains seen, per draft
_STRENGTH = 5.0  # drafts that the reckoned gain counts for
_LASTS = 64.0  # rounds that a drafter is asked in once it has caught up, before any were seen
_LASTS_LEAST = 8.0
_IN_STEP = 8  # missing tokens that are decoded along with the first step


class Offer(NamedTuple):
    """What drafting costs each of the sequences that may draft, for 0, 1, ... tokens.

    Attributes:
        n_sequences: How many draft.
        base: A sequence's part of the round without drafts.
        extra: Seconds to verify, [limit + 1].
        steps: Seconds to draft, [limit + 1].
        restoring: What the memory costs.
        catching_up: Returns the seconds to read so many tokens before the first step.
    """

    n_sequences: int
    base: Base
    extra: Sequence[float]
    steps: Sequence[float]
    restoring: Restoring
    catching_up: Callable[[int], float]


class PaidDrafter:
    """What is known of a drafter that costs time.

    Args:
        drafter: The drafter.
        costs: Of the machine; what its calls take is added.
        acceptance: What is known of its drafts.

    Attributes:
        drafter: See above.
        heard: Sequence to the number of tokens that its model has read.
    """

    def __init__(self, drafter: Drafter, costs: Costs, acceptance: Acceptance) -> None:
        self.drafter = drafter
        self.heard: dict[int, int] = {}
        self._acceptance = acceptance
        self._costs = costs
        self._cost = costs.draft(drafter.name)
        self._heeds_judge = bool(getattr(drafter, "heeds_judge", False))
        self._reads_late = bool(getattr(drafter, "reads_late", False))
        self._n_rests = 0
        self._lasts = _LASTS
        self._rate = 1.0  # of the rounds that it drafts in, compared with plain ones
        self._stint = 0  # rounds since it caught up
        self._beyond: dict[int, tuple[float, float]] = {}  # gains beyond what was reckoned: sum and weight

    def begin(self, seq_id: int, n_tokens: int, n_same: int = 0) -> None:
        """A new request starts; of its tokens the first ``n_same`` were read for a former one.

        The others are read now, or when a draft is asked for (``reads_late``).
        """
        self.heard[seq_id] = min(self.heard.get(seq_id, 0), n_same) if self._reads_late else n_tokens
        self._n_rests = 0
        self._beyond.pop(seq_id, None)

    def rest(self) -> None:
        """It is not worth a thought for the next few rounds."""
        self._n_rests = _RESTS

    def rests(self) -> bool:
        """Return whether it is not worth a thought in this round."""
        self._n_rests -= 1
        return self._n_rests >= 0

    def offer(self, limit: int, n_sequences: int, prices: Prices, restoring: Restoring) -> Offer:
        """Return what drafts of up to ``limit`` tokens cost each of so many sequences."""
        steps = [0.0]
        active = float(n_sequences)
        for n in range(1, limit + 1):
            company = max(1, round(active))
            before = self._seconds(n - 1, company, prices) if n > 1 else 0.0
            steps.append(steps[-1] + max(0.0, self._seconds(n, company, prices) - before) / company)
            active *= _GOES_ON
        return Offer(
            n_sequences,
            Base(1, 1 / prices.base.rate),
            prices.shared(limit, n_sequences),
            steps,
            restoring,
            lambda n_tokens: self._catching_up(n_tokens, prices),
        )

    def gain(self, request: DraftRequest, offer: Offer, worth: float) -> float:
        """Return the tokens that asking is expected to gain, its own time paid, when a second is worth so many.

        It is reckoned from the chances of a draft of the best length. What its drafts gained beyond that lately is
        added: they are stopped where they become doubtful, which no reckoning beforehand knows.
        """
        total, weight = self._beyond.get(request.seq_id, (0.0, 0.0))
        waiting = worth * self.waiting(request, offer) / max(self._lasts, self._stint)
        reckoned = self._reckoned(request, offer).gain_at(worth, offer.base.rate)
        return reckoned + total / (weight + _STRENGTH) - waiting

    def hope(self, request: DraftRequest, offer: Offer, worth: float) -> float:
        """Return what it would gain if it were as good as it may be, once it has caught up."""
        return self._reckoned(request, offer, hopeful=True).gain_at(worth, offer.base.rate)

    def waiting(self, request: DraftRequest, offer: Offer) -> float:
        """Return the seconds that its model needs to read what it has missed."""
        return offer.catching_up(self._missing(request))

    def wanting(self, request: DraftRequest, offer: Offer) -> DraftRequest:
        """Return the request to ask with."""
        limit = min(request.budget, len(offer.steps) - 1)
        seq_id, name, acceptance = request.seq_id, self.drafter.name, self._acceptance
        reckoned = self._reckoned(request, offer)
        if not self._heeds_judge:
            return wanting(request, reckoned.length)
        worth = max(offer.base.rate, reckoned.rate, self._rate * offer.base.rate)
        judge = Judge(
            lambda signal, i: acceptance.chance(seq_id, name, signal, i),
            acceptance.expected(seq_id, name, limit),
            offer.extra,
            offer.steps,
            worth,
        )
        return wanting(request, limit, judge)

    def took(self, requests: Sequence[DraftRequest], drafts: Sequence[Draft], seconds: float, offer: Offer) -> None:
        """Take in what a call took."""
        missing = max(self._missing(request) for request in requests)
        n_steps = max(1, *(len(draft.tokens) for draft in drafts))
        if missing <= _IN_STEP:
            self._cost.observe(n_steps, len(requests), max(0.1 * seconds, seconds - offer.catching_up(missing)))
        if missing > _IN_STEP:
            self._lasts = max(_LASTS_LEAST, (self._lasts + self._stint) / 2)
            self._stint = 0
        self._stint += 1
        for request, draft in zip(requests, drafts, strict=True):
            self.heard[request.seq_id] = request.position + 1 + len(draft.tokens)

    def gained(self, request: DraftRequest, draft: Draft, plan: Plan | None, offer: Offer) -> None:
        """Take in what verifying a draft gains, now that it is there.

        Args:
            request: What it answers.
            draft: The draft.
            plan: How much of it would be verified; None if it is empty.
            offer: What was reckoned with.
        """
        plain, steps = offer.base.rate, offer.steps[max(1, len(draft.tokens))]
        gain = (plan.gain if plan is not None else 0.0) - plain * steps
        total, weight = self._beyond.get(request.seq_id, (0.0, 0.0))
        beyond = gain - self._reckoned(request, offer).gain
        self._beyond[request.seq_id] = _KEEP * total + beyond, _KEEP * weight + 1.0
        rate = plan.rate if plan is not None else 1 / (offer.base.seconds + steps)
        self._rate += (rate / plain - self._rate) * (1 - _KEEP)

    def _reckoned(self, request: DraftRequest, offer: Offer, *, hopeful: bool = False) -> Plan:
        """Return what a draft of the best length brings, its own time paid; that may be less than nothing."""
        limit = min(request.budget, len(offer.steps) - 1)
        missing = self._missing(request)
        chances = self._acceptance.expected(request.seq_id, self.drafter.name, limit, n_stale=missing, hopeful=hopeful)
        both = [extra + step for extra, step in zip(offer.extra, offer.steps, strict=True)]
        return best_prefix(list(accumulate(chances, mul)), both, offer.base, offer.restoring, always=True)

    def _missing(self, request: DraftRequest) -> int:
        """Return how many tokens its model has not read."""
        return max(0, request.position - self.heard.get(request.seq_id, 0))

    def _seconds(self, n_steps: int, n_sequences: int, prices: Prices) -> float:
        known = self._cost.seconds(n_steps, n_sequences, self._costs.verify)
        return known or _FIRST_GUESS * n_steps * prices.base.seconds

    def _catching_up(self, n_tokens: int, prices: Prices) -> float:
        """Return the seconds to read tokens: they grow like the target's with its rows."""
        shallow = self._costs.verify.shallow
        growth = shallow(1 + n_tokens) / shallow(1) - 1.0 if n_tokens else 0.0
        return growth * max(0.0, self._seconds(2, 1, prices) - self._seconds(1, 1, prices)) if n_tokens else 0.0


def wanting(request: DraftRequest, budget: int, judge: Callable[[float], bool] | None = None) -> DraftRequest:
    """Return a request for so many tokens with their signals."""
    return DraftRequest(
        request.seq_id,
        request.tokens,
        request.pending,
        request.position,
        budget,
        request.temperature,
        request.seed,
        request.drafting,
        request.n_entries,
        wants_signals=True,
        judge=judge,
    )
