"""The drafts of one round: which is the best for each sequence, and how much of it to verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.curves import CostCurve
from pyspec.speculation.draft import Draft, Drafter, DraftRequest, Expectation, Proposal
from pyspec.speculation.planning import LEAST, MARGIN, Base, Plan, Prices, Restoring, best_lengths, best_prefix
from pyspec.speculation.round import Outcome

_MOST_TRIED = 15  # rows
_ALIKE = 0.3  # of a round: what is lost by trying something counts little below that


class Candidate(NamedTuple):
    """A draft that may be verified.

    Attributes:
        drafter: Who made it.
        draft: The draft.
        path: Chance of each token and all before it, up to where it is too small.
        plan: How much of it to verify if it were alone.
        least: A shorter part of it is not verified.
    """

    drafter: str
    draft: Draft
    path: Sequence[float]
    plan: Plan
    least: int

    @property
    def drawn(self) -> bool:
        """Whether it has to be verified as it is."""
        return self.draft.probs is not None


class Trial(NamedTuple):
    """Rows that are verified to see what they cost.

    Attributes:
        i: Number of a request.
        length: How many tokens of its best draft.
        rate: Tokens per second of what would be chosen otherwise.
    """

    i: int
    length: int
    rate: float

    def loss(self, outcomes: Sequence[Outcome]) -> float:
        """Return the seconds that were lost, less than nothing if it went better."""
        seconds = outcomes[0].seconds
        return seconds["total"] - seconds["draft"] - sum(len(each.emitted) for each in outcomes) / self.rate


class Market:
    """What is on offer in one round.

    Args:
        requests: Its sequences' requests.
        prices: What rows cost.
        restoring: What the target's memory costs when tokens are rejected.
        verify: What decodes cost.
        together: All sequences are decoded at once; else those with drafts of one length are.

    Attributes:
        requests: See above.
        prices: See above.
        restoring: See above.
        best: Per request the best draft so far.
        offered: Per request who made one.
    """

    def __init__(
        self,
        requests: Sequence[DraftRequest],
        prices: Prices,
        restoring: Restoring,
        verify: CostCurve,
        *,
        together: bool,
    ) -> None:
        self.requests = requests
        self.prices = prices
        self.restoring = restoring
        self.best: list[Candidate | None] = [None] * len(requests)
        self.offered: list[list[Drafter]] = [[] for _ in requests]
        self._verify = verify
        self._together = together

    def worth(self, i: int) -> float:
        """Return the tokens that a second is worth: what the best draft of a request makes of it, or plain decoding."""
        found = self.best[i]
        return max(self.prices.base.rate, 0.0 if found is None else found.plan.rate)

    def gain(self, i: int) -> float:
        """Return the tokens that the best draft of a request gains over none, at that worth."""
        found = self.best[i]
        return 0.0 if found is None else found.plan.gain_at(self.worth(i), self.prices.base.rate)

    def is_taken(self, i: int) -> bool:
        """Return whether a request has a draft that has to be verified as it is."""
        found = self.best[i]
        return found is not None and found.drawn

    def add(  # noqa: PLR0913 - who offers what, and what it costs
        self,
        i: int,
        drafter: Drafter,
        draft: Draft,
        acceptance: Acceptance,
        extra: Sequence[float] | None = None,
        *,
        base: Base | None = None,
        least: int = 1,
        spent: float = 0.0,
    ) -> Plan:
        """Offer a draft, and return how much of it would be verified if it were alone.

        Args:
            i: Number of its request.
            drafter: Who made it.
            draft: The draft; not empty.
            acceptance: Tells its chances.
            extra: Seconds that 0, 1, ... rows of it cost; None takes those of a draft that is alone.
            base: What it is compared with; None takes the round without drafts.
            least: A shorter part of it is not verified.
            spent: Seconds that were spent on it.
        """
        self.offered[i].append(drafter)
        cut = 0.0 if draft.probs is not None else LEAST
        path = acceptance.path(self.requests[i].seq_id, drafter.name, draft.signals, len(draft.tokens), cut)
        extra = extra if extra is not None else self.prices.more_rows(len(path))
        plan = best_prefix(path, extra, base or self.prices.base, self.restoring, least=least, spent=spent)
        candidate, former = Candidate(drafter.name, draft, path, plan, least), self.best[i]
        if former is None or (not former.drawn and (candidate.drawn or _merit(candidate) > _merit(former))):
            self.best[i] = candidate
        return plan

    def lengths(self, beside: float) -> list[int]:
        """Return how many tokens of each draft to verify.

        Args:
            beside: Seconds of the round beside its decode.
        """
        best = self.best
        if len(best) == 1:
            only = best[0]
            return [0 if only is None else len(only.draft.tokens) if only.drawn else only.plan.length]
        if not any(best):
            return [0] * len(best)
        found = best_lengths(
            [() if each is None else each.path for each in best],
            [each is not None and each.drawn for each in best],
            self._round_seconds(beside),
            self.restoring,
        )
        return [
            length if each is None or each.drawn or length >= each.least else 0
            for length, each in zip(found, best, strict=True)
        ]

    def _round_seconds(self, beside: float) -> Callable[[Sequence[int], int], float]:
        """Return the function that tells the seconds of the round with drafts of some lengths, given their sum too."""
        if self._together:
            plain = self.prices.decode(self.prices.n_entries) + beside
            extra = self.prices.more_rows(sum(len(each.path) for each in self.best if each is not None))
            return lambda _lengths, n_rows: plain + extra[n_rows]
        way_back = self.prices.way_back
        return lambda lengths, n_rows: self.verify_seconds(lengths) + beside + (way_back if n_rows else 0.0)

    def verify_seconds(self, lengths: Sequence[int]) -> float:
        """Return what decoding drafts of these lengths takes; see ``speculation.verify.decodes``."""
        seconds, n_entries = self._verify.seconds, self.prices.n_entries
        if self._together:
            return self.prices.decode(n_entries + sum(lengths))
        each = n_entries / len(lengths)
        groups = {length: lengths.count(length) for length in lengths}
        return sum(seconds(max(1, round(n * (each + length)))) for length, n in groups.items())

    def rows_to_try(self, lengths: Sequence[int], most: float) -> Trial | None:
        """Return rows whose cost is in doubt (``CostCurve.doubt``), and that would be chosen if it were so much less.

        Of several, those that would gain most for what is lost now.

        Args:
            lengths: What would be verified otherwise.
            most: Seconds that may be expected to be lost.
        """
        found = [(each.path[0], i) for i, each in enumerate(self.best) if each is not None and not each.drawn]
        candidate = self.best[i := max(found)[1]] if found else None
        if candidate is None:
            return None
        others = sum(lengths) - lengths[i]
        n_most = min(_MOST_TRIED, len(candidate.path))
        extra, base = self.prices.more_rows(others + max(n_most, lengths[i])), self.prices.base
        doubts = self.prices.doubts(others + n_most)
        chosen = sum(sum(each.path[:n]) for each, n in zip(self.best, lengths, strict=True) if each is not None)
        rate = (base.tokens + chosen) / (base.seconds + extra[sum(lengths)])
        least_rate = rate * (1.0 + (0.0 if any(lengths) else MARGIN / len(lengths)))
        tried: list[tuple[float, int]] = []
        for k in range(max(1, candidate.least), n_most + 1):
            doubt = doubts[others + k]
            if k == lengths[i] or not doubt:
                continue
            together = sum(candidate.path[:k])
            tokens = base.tokens + chosen + together - sum(candidate.path[: lengths[i]])
            restoring = self.restoring.seconds(k, candidate.path[k - 1], together)
            seconds = base.seconds + extra[others + k] + restoring
            hoped = tokens / (seconds - doubt)
            loss = max(0.0, seconds - tokens / least_rate)
            if hoped > least_rate and loss <= most:
                tried.append(((hoped - least_rate) / (loss + _ALIKE * base.seconds), k))
        return Trial(i, max(tried)[1], rate) if tried else None

    def proposals(self, lengths: Sequence[int], seconds: float, *, explores: bool) -> list[Proposal]:
        """Return the drafts of these lengths, and what is expected of them.

        Args:
            lengths: Per request how much of its best draft is verified.
            seconds: What the round is expected to take.
            explores: Something is tried in it.
        """
        proposals = []
        for candidate, length in zip(self.best, lengths, strict=True):
            name, draft, n_expected = None, Draft(), 1.0
            if candidate is not None and length:
                name, draft = candidate.drafter, candidate.draft
                n_expected += sum(candidate.path[:length])
                if length < len(draft.tokens):
                    draft = draft.cut(length)
            expected = Expectation(name, length, n_expected, seconds, self.prices.plain, explores)
            proposals.append(Proposal(draft, name, expected))
        return proposals


def _merit(candidate: Candidate) -> tuple[bool, float, float]:
    """Return what to compare drafts of one sequence by: the rate, or where nothing is verified the first chance."""
    plan = candidate.plan
    return plan.length > 0, plan.rate if plan.length else 0.0, candidate.path[0]
