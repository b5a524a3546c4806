"""The drafts of one round: which is the best for each sequence, and how much of it to verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import CostCurve
from pyspec.speculation.draft import Draft, Drafter, DraftRequest, Expectation, Proposal
from pyspec.speculation.planning import Plan, Prices, Restoring, best_lengths, best_prefix

_MOST_TRIED = 4  # rows
_NEARLY = 0.7  # of their price: rows that are worth so much may be cheaper than they are thought to be


class Candidate(NamedTuple):
    """A draft that may be verified.

    Attributes:
        drafter: Who made it.
        draft: The draft.
        path: Chance of each token and all before it.
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

    def gain(self, i: int) -> float:
        """Return the tokens that the best draft of a request gains over none."""
        found = self.best[i]
        return 0.0 if found is None else found.plan.gain

    def is_taken(self, i: int) -> bool:
        """Return whether a request has a draft that has to be verified as it is."""
        found = self.best[i]
        return found is not None and found.drawn

    def add(
        self, i: int, drafter: Drafter, draft: Draft, acceptance: Acceptance, extra: Sequence[float], *, least: int = 0
    ) -> float:
        """Offer a draft, and return what it gains.

        Args:
            i: Number of its request.
            drafter: Who made it.
            draft: The draft; not empty.
            acceptance: Tells its chances.
            extra: Seconds that 0, 1, ... rows of it cost.
            least: A shorter part of it is not verified.
        """
        self.offered[i].append(drafter)
        path = acceptance.path(self.requests[i].seq_id, drafter.name, draft.signals, len(draft.tokens))
        plan = best_prefix(path, extra, self.prices.worth, self.restoring, least=least)
        candidate, former = Candidate(drafter.name, draft, path, plan, least), self.best[i]
        if former is None or (
            not former.drawn and (candidate.drawn or (plan.gain, path[0]) > (former.plan.gain, former.path[0]))
        ):
            self.best[i] = candidate
        return plan.gain

    def lengths(self) -> list[int]:
        """Return how many tokens of each draft to verify."""
        best = self.best
        if len(best) == 1:
            only = best[0]
            return [0 if only is None else len(only.draft.tokens) if only.drawn else only.plan.length]
        if not any(best):
            return [0] * len(best)
        found = best_lengths(
            [() if each is None else each.path for each in best],
            [each is not None and each.drawn for each in best],
            self.verify_seconds,
            self.prices.worth,
            self.restoring,
        )
        return [
            length if each is None or each.drawn or length >= each.least else 0
            for length, each in zip(found, best, strict=True)
        ]

    def verify_seconds(self, lengths: Sequence[int]) -> float:
        """Return what decoding drafts of these lengths takes; see ``speculation.verify.decodes``."""
        seconds, n_entries = self._verify.seconds, self.prices.n_entries
        if self._together:
            return seconds(n_entries + sum(lengths))
        each = n_entries / len(lengths)
        groups = {length: lengths.count(length) for length in lengths}
        return sum(seconds(max(1, round(n * (each + length)))) for length, n in groups.items())

    def rows_to_try(self) -> tuple[int, int, float] | None:
        """Return rows whose cost was not measured for long and may be lower than it is thought to be.

        Returns:
            Number of a request, how many tokens of its best draft, and the seconds that they are thought to cost; None
            when there are none.
        """
        found = [(each.path[0], i) for i, each in enumerate(self.best) if each is not None and not each.drawn]
        if not found:
            return None
        _, i = max(found)
        candidate = self.best[i]
        if candidate is None:
            return None
        n_most = min(_MOST_TRIED, len(candidate.path))
        extra, worth, n_entries = self.prices.more_rows(n_most), self.prices.worth, self.prices.n_entries
        stale = [
            (worth * extra[k] - sum(candidate.path[:k]), k)
            for k in range(max(1, candidate.least), n_most + 1)
            if not self._verify.is_fresh(n_entries + k) and sum(candidate.path[:k]) > _NEARLY * worth * extra[k]
        ]
        if not stale:
            return None
        _, k = min(stale)
        return i, k, extra[k]

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
            expected = Expectation(name, length, n_expected, seconds, self.prices.plain_seconds, explores)
            proposals.append(Proposal(draft, name, expected))
        return proposals
