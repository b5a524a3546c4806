"""Several drafters, asked one after the other."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from pyspec.errors import DrafterError
from pyspec.speculation.draft import NO_DRAFT, Draft, Drafter, DraftRequest, EvaluatedBatch, Needs, Proposal, TokenView
from pyspec.speculation.rollback import run_all
from pyspec.speculation.stats import DrafterStats


class Chain:
    """Asks its drafters in order, per sequence; the first draft that is not empty wins.

    The others hear ``accept(own=False)``. A chain of none is plain decoding.

    Args:
        drafters: In the order to ask; the chain owns and closes them.

    Attributes:
        n_max: The longest draft that any of them may return; 0 for plain decoding.
        stats: Per drafter name.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafter for drafter in drafters if drafter.n_max > 0)
        self._closing = tuple(drafters)
        self.n_max = max((drafter.n_max for drafter in self.drafters), default=0)
        self.stats = {drafter.name: DrafterStats() for drafter in self.drafters}
        if len(self.stats) != len(self.drafters):
            names = ", ".join(drafter.name for drafter in self.drafters)
            msg = f"A chain cannot hold two drafters of the same name: {names}."
            raise DrafterError(msg)

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """A new request starts."""
        for drafter in self.drafters:
            began = time.perf_counter()
            drafter.begin(seq_id, tokens)
            stats = self.stats[drafter.name]
            stats.n_begin += 1
            stats.seconds["begin"] += time.perf_counter() - began

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this."""
        for drafter in self.drafters:
            if drafter.needs is not Needs.NOTHING:
                drafter.observe(batch)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return the first draft that is not empty, per request."""
        proposals = [NO_DRAFT] * len(requests)
        waiting = list(range(len(requests)))
        for drafter in self.drafters:
            if not waiting:
                break
            drafts = self._ask(drafter, [requests[i] for i in waiting])
            for i, draft in zip(waiting, drafts, strict=True):
                if draft.tokens:
                    proposals[i] = Proposal(_within(draft, requests[i].budget), drafter.name)
            waiting = [i for i in waiting if proposals[i] is NO_DRAFT]
        return proposals

    def accept(self, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        """Tell every drafter about a decision, also when one of them raises, and count it."""
        tell = functools.partial(self._tell, seq_id=seq_id, proposal=proposal, n_accepted=n_accepted)
        run_all(functools.partial(tell, drafter) for drafter in self.drafters)

    def discard(self, seq_id: int) -> None:
        """Tell the drafters that care that the round was undone."""
        hooks: list[Any] = [getattr(drafter, "discard", None) for drafter in self.drafters]
        run_all(functools.partial(hook, seq_id) for hook in hooks if hook is not None)

    def close(self) -> None:
        """Close the drafters. May be called again."""
        run_all(drafter.close for drafter in self._closing)

    def _tell(self, drafter: Drafter, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        own = drafter.name == proposal.drafter
        stats = self.stats[drafter.name]
        if own:
            stats.count(len(proposal.draft.tokens), n_accepted)
        began = time.perf_counter()
        drafter.accept(seq_id, n_accepted, own=own)
        stats.seconds["accept"] += time.perf_counter() - began

    def _ask(self, drafter: Drafter, requests: list[DraftRequest]) -> Sequence[Draft]:
        stats = self.stats[drafter.name]
        began = time.perf_counter()
        drafts = drafter.draft(requests)
        stats.seconds["draft"] += time.perf_counter() - began
        stats.n_asked += len(requests)
        stats.n_model_tokens = getattr(drafter, "n_model_tokens", 0)
        if len(drafts) != len(requests):
            msg = f"The drafter {drafter.name} answered {len(requests)} requests with {len(drafts)} drafts."
            raise DrafterError(msg)
        return drafts


def _within(draft: Draft, budget: int) -> Draft:
    """Cut a draft to its budget."""
    if len(draft.tokens) <= budget:
        return draft
    return Draft(draft.tokens[:budget], None if draft.probs is None else draft.probs[:budget])
