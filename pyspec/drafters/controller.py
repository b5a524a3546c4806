"""``auto``: a chain that decides each round who drafts, how much, and how much of it is verified.

One round::

    follow   what was emitted since is compared with the drafts that were made, verified or not
    look up  drafters that cost next to nothing are asked always; the draft that gains most is kept
    ask      a drafter that costs time is asked where it is expected to gain more; its judge ends the draft
    weigh    how many rows of all drafts are verified

What something gains is reckoned in tokens, see ``pyspec.speculation.planning``; what it costs is measured
(``costs``), and how likely tokens are accepted is learned (``acceptance``, ``scoring``). A drafter that is not worth
asking is tried again now and then, and a number of rows that is not worth verifying likewise: for at most 1 % of the
time.

Under the rule "rejection" a drawn draft must not be shortened by what was drawn. So it is verified as it is; its judge
decides before the next token is drawn.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspec.drafters.chain import Chain, Rows
from pyspec.drafters.paid import Offer, PaidDrafter, wanting
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.draft import Draft, Drafter, DraftRequest, Expectation, Proposal, TokenView
from pyspec.speculation.planning import TRIMS, Plan, Prices, Restoring, best_lengths, best_prefix
from pyspec.speculation.rollback import run_all
from pyspec.speculation.round import Outcome
from pyspec.speculation.scoring import Scores
from pyspec.speculation.target import TargetMemory

_EXPLORE = 0.01  # of the time
_HOPE = 0.8  # chance of a token of a drafter that costs time, so that it can start at all
_ADVANCE = 30  # plain rounds, whose share may be spent before they were played: trying early costs least
_SAFE = 1.5  # what is tried may cost more than expected
_CHEAP = 0.02  # of a plain decode: a drafter that takes longer has to be worth it
_FADE = 0.98  # of the long run, per round
_LONG_RUN = 10.0  # rounds that the long run has seen at the beginning
_KEEP = 0.9  # of what a lookup took, per call
_MOST_TRIED = 4  # rows
_NEARLY = 0.7  # of their price: rows that are worth so much may be cheaper than they are thought to be


class Candidate(NamedTuple):
    """A draft that may be verified.

    Attributes:
        drafter: Who made it.
        draft: The draft.
        path: Chance of each token and all before it.
        plan: How much of it to verify if it were alone.
    """

    drafter: str
    draft: Draft
    path: Sequence[float]
    plan: Plan

    @property
    def drawn(self) -> bool:
        """Whether it has to be verified as it is."""
        return self.draft.probs is not None


class Controller(Chain):
    """Chooses among its drafters by what they are expected to gain.

    Args:
        drafters: As for a chain; their order counts only where drafts are equally good.
        memory: The target's.
        costs: What is known of the machine.
        n_max: Longest draft to verify; None leaves each drafter its own.
        clock: Tells the time, for what drafters take.
        farewell: Called with what is known when it closes after it played.

    Attributes:
        costs: What is known by now.
        acceptance: What is known of the drafters.
        explored_seconds: Time that was spent on trying things.
        played_seconds: Time of all rounds that did not read prompts.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        memory: TargetMemory,
        *,
        costs: Costs | None = None,
        n_max: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        farewell: Callable[[Costs, Acceptance], None] | None = None,
    ) -> None:
        super().__init__(drafters)
        self._farewell = farewell
        self.costs = costs if costs is not None else Costs()
        self.acceptance = Acceptance()
        self.explored_seconds = self.played_seconds = 0.0
        if n_max is not None:
            self.n_max = min(self.n_max, n_max)
        self._memory = memory
        self._clock = clock
        self._scores = Scores(self.acceptance)
        self._paid = {each.name: self._as_paid(each) for each in self.drafters if hasattr(each, "n_model_tokens")}
        self._lookup_seconds: dict[str, float] = {}
        self._tokens = self._rounds = _LONG_RUN  # of the long run, in plain rounds
        self._expected: tuple[float, float] | None = None  # seconds of the round under way, and without drafts
        self._spent = 0.0  # on the drafts of the round under way
        self._explores = False

    # What requests a sequence has

    def begin(self, seq_id: int, tokens: TokenView, rows: Rows | None = None) -> None:
        """A new request starts; see ``Chain.begin``."""
        self._forget(seq_id, tokens)
        super().begin(seq_id, tokens, rows)

    def rebegin(self, seq_id: int, tokens: TokenView) -> None:
        """The history of a request has become another one."""
        self._scores.forget(seq_id)
        for paid in self._paid.values():
            paid.heard[seq_id] = len(tokens)
        super().rebegin(seq_id, tokens)

    def rewind(self, seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:
        """A new request starts, whose beginning the sequence holds already."""
        self._forget(seq_id, tokens)
        super().rewind(seq_id, tokens, length, n_same)

    def load_state(self, seq_id: int, tokens: TokenView, states: Mapping[str, bytes]) -> None:
        """Go on with a sequence."""
        self._forget(seq_id, tokens)
        super().load_state(seq_id, tokens, states)

    def close(self) -> None:
        """Close the drafters. May be called again."""
        farewell, self._farewell = self._farewell, None
        if farewell is not None and self.played_seconds > 0.0:
            run_all((functools.partial(farewell, self.costs, self.acceptance), super().close))
        else:
            super().close()

    def _forget(self, seq_id: int, tokens: TokenView) -> None:
        self._scores.forget(seq_id)
        self.acceptance.begin(seq_id)
        for paid in self._paid.values():
            paid.begin(seq_id, len(tokens))

    # A round

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return per request the part of a draft that is worth verifying, which may be none."""
        self._spent, self._explores = 0.0, False
        for request in requests:
            self._scores.follow(request.seq_id, request.tokens, request.pending)
        prices = Prices(
            self.costs.verify, requests[0].n_entries, len(requests), self.speedup, self.costs.overhead
        )  # fmt: skip
        best: list[Candidate | None] = [None] * len(requests)
        offered: list[list[Drafter]] = [[] for _ in requests]
        for drafter in self.drafters:
            if drafter.name not in self._paid:
                self._look_up(drafter, requests, prices, best, offered)
        for paid in self._paid.values():
            self._ask_paid(paid, requests, prices, best, offered)
        lengths = self._weighed(requests, best, prices)
        if not any(lengths):
            lengths = self._tried_rows(best, prices)
        proposals = self._proposals(requests, best, lengths, prices)
        for request, proposal, drafters in zip(requests, proposals, offered, strict=True):
            if drafters and not proposal.draft.tokens:  # they will not hear of a decision
                hooks = [getattr(drafter, "discard", None) for drafter in drafters]
                run_all(functools.partial(hook, request.seq_id) for hook in hooks if hook is not None)
        return proposals

    def played(self, decodes: Sequence[Decoded], outcomes: Sequence[Outcome]) -> None:
        """Learn from a round what it cost."""
        expected, self._expected = self._expected, None
        if not outcomes:
            return
        seconds = outcomes[0].seconds
        saved = any(outcome.n_checkpoint_bytes or outcome.rollback == "replay" for outcome in outcomes)
        self.costs.take(decodes, seconds, saved=saved)
        if any(decoded.reading for decoded in decodes):
            return
        self.played_seconds += seconds["total"]
        if expected is not None:
            n_emitted = sum(len(outcome.emitted) for outcome in outcomes)
            self._tokens = _FADE * self._tokens + n_emitted / len(outcomes)
            self._rounds = _FADE * self._rounds + expected[0] / expected[1]

    @property
    def speedup(self) -> float:
        """What the drafts gain over plain decoding in the long run, at least 1."""
        return max(1.0, self._tokens / self._rounds)

    def _may_spend(self, seconds: float) -> bool:
        """Return whether so much may be spent on trying something."""
        advance = _ADVANCE * self.costs.verify.seconds(1)
        return self.explored_seconds + _SAFE * seconds <= _EXPLORE * (self.played_seconds + advance)

    # Who drafts

    def _look_up(
        self,
        drafter: Drafter,
        requests: Sequence[DraftRequest],
        prices: Prices,
        best: list[Candidate | None],
        offered: list[list[Drafter]],
    ) -> None:
        """Ask a drafter that costs next to nothing, and keep its drafts where they are the best."""
        name = drafter.name
        asked = [i for i, request in enumerate(requests) if request.drafting.allows(name)]
        if not asked:
            return
        began = self._clock()
        drafts = self._ask(drafter, [self._wanting(requests[i]) for i in asked])
        taken = (self._clock() - began) / len(asked)
        known = self._lookup_seconds.get(name, 0.0)
        self._lookup_seconds[name] = known + (taken - known) * (1 - _KEEP)
        self._spent += taken * len(asked)
        if self._lookup_seconds[name] > _CHEAP * prices.plain_seconds:
            self._paid[name] = self._as_paid(drafter)
        for i, draft in zip(asked, drafts, strict=True):
            if draft.tokens:
                offered[i].append(drafter)
                self._offer(i, requests[i], name, draft, prices.more_rows(len(draft.tokens)), prices, best)

    def _ask_paid(
        self,
        paid: PaidDrafter,
        requests: Sequence[DraftRequest],
        prices: Prices,
        best: list[Candidate | None],
        offered: list[list[Drafter]],
    ) -> None:
        """Ask a drafter that costs time, where that is expected to be worth it."""
        name = paid.drafter.name
        allowed = [
            i
            for i, request in enumerate(requests)
            if request.drafting.allows(name) and not ((found := best[i]) and found.drawn)
        ]
        if not allowed:
            return
        limit = min(self.n_max, paid.drafter.n_max, max(requests[i].budget for i in allowed))
        offer, asked, loss = self._best_company(paid, limit, allowed, requests, best, prices)
        explores = loss >= 0.0
        if explores and not self._is_worth_trying(paid, [(requests[i], best[i]) for i in asked], offer, loss):
            return
        wanted = [paid.wanting(requests[i], offer) for i in asked]
        began = self._clock()
        drafts = self._ask(paid.drafter, wanted)
        seconds = self._clock() - began
        self._spent += seconds
        paid.took(wanted, drafts, seconds, offer)
        gained = 0.0
        for i, draft in zip(asked, drafts, strict=True):
            former, gain = _gain_of(best[i]), 0.0
            if draft.tokens:
                offered[i].append(paid.drafter)
                gain = self._offer(i, requests[i], name, draft, offer.extra, prices, best)
            paid.gained(requests[i], draft, gain, offer)
            gained += max(0.0, gain - former)
        if explores:
            self._explores = True
            self.explored_seconds += max(0.0, seconds - gained / prices.worth)

    def _best_company(
        self,
        paid: PaidDrafter,
        limit: int,
        allowed: Sequence[int],
        requests: Sequence[DraftRequest],
        best: Sequence[Candidate | None],
        prices: Prices,
    ) -> tuple[Offer, Sequence[int], float]:
        """Return what drafting together costs, who should, and what is lost by that (less than nothing is gained).

        The more draft together, the less it costs each of them, so half of them, a quarter, ... are weighed, those
        that gain most. When nothing is gained, it is those who lose the least each.
        """
        found: list[tuple[float, Offer, Sequence[int]]] = []
        n, left = len(allowed), allowed
        while True:
            offer = paid.offer(limit, n, prices, self._restoring)
            losses = sorted((_gain_of(best[i]) - paid.gain(requests[i], offer), i) for i in left)[:n]
            left = [i for _loss, i in losses]
            found.append((sum(loss for loss, _i in losses), offer, left))
            if n == 1:
                break
            n = (n + 1) // 2
        if (least := min(found, key=lambda each: each[0]))[0] >= 0.0:
            least = min(found, key=lambda each: each[0] / len(each[2]))
        return least[1], least[2], least[0]

    def _is_worth_trying(
        self,
        paid: PaidDrafter,
        asked: Sequence[tuple[DraftRequest, Candidate | None]],
        offer: Offer,
        loss: float,
    ) -> bool:
        """Return whether a drafter may be better than it seems, and trying it can be afforded.

        Args:
            paid: The drafter.
            asked: What it would be asked, and the best draft without it.
            offer: What that costs.
            loss: Tokens that are expected to be lost.
        """
        waiting = sum(paid.waiting(request, offer) for request, _found in asked)
        return self._may_spend(loss / offer.worth + waiting) and (
            sum(paid.hope(request, offer) - _gain_of(found) for request, found in asked) > 0.0
        )

    def _offer(
        self,
        i: int,
        request: DraftRequest,
        name: str,
        draft: Draft,
        extra: Sequence[float],
        prices: Prices,
        best: list[Candidate | None],
    ) -> float:
        """Note a draft of request i, keep it if it is the best one, and return what it gains."""
        self._scores.watch(request.seq_id, name, request.position, draft)
        path = self.acceptance.path(request.seq_id, name, draft.signals, len(draft.tokens))
        least = request.drafting.n_min or 0 if name in self._paid else 0
        plan = best_prefix(path, extra, prices.worth, self._restoring, least=least)
        candidate, former = Candidate(name, draft, path, plan), best[i]
        if former is None or (
            not former.drawn and (candidate.drawn or (plan.gain, path[0]) > (former.plan.gain, former.path[0]))
        ):
            best[i] = candidate
        return plan.gain

    # How much is verified

    def _weighed(self, requests: Sequence[DraftRequest], best: Sequence[Candidate | None], prices: Prices) -> list[int]:
        """Return how many tokens of each draft to verify."""
        if not any(best):
            return [0] * len(best)
        if len(best) == 1:
            only = best[0]
            return [0 if only is None else len(only.draft.tokens) if only.drawn else only.plan.length]
        paths = [candidate.path if candidate is not None else () for candidate in best]
        fixed = [candidate is not None and candidate.drawn for candidate in best]
        lengths = best_lengths(
            paths, fixed, lambda found: self._verify_seconds(found, prices), prices.worth, self._restoring
        )  # fmt: skip
        least = [request.drafting.n_min or 0 for request in requests]
        return [
            length if whole or length >= n_min or (found is not None and found.drafter not in self._paid) else 0
            for length, whole, n_min, found in zip(lengths, fixed, least, best, strict=True)
        ]

    def _verify_seconds(self, lengths: Sequence[int], prices: Prices) -> float:
        """Return what decoding drafts of these lengths takes; see ``speculation.verify.decodes``."""
        seconds = self.costs.verify.seconds
        if not self._memory.one_ubatch:
            return seconds(prices.n_entries + sum(lengths))
        each = prices.n_entries / len(lengths)
        groups = {length: lengths.count(length) for length in lengths}
        return sum(seconds(round(n * (each + length))) for length, n in groups.items())

    def _tried_rows(self, best: Sequence[Candidate | None], prices: Prices) -> list[int]:
        """Verify a few rows of a draft to see what they cost now, if they were not measured for long."""
        lengths = [0] * len(best)
        i = max(range(len(best)), key=lambda i: found.path[0] if (found := best[i]) else 0.0)
        candidate = best[i]
        if candidate is None or candidate.drawn:
            return lengths
        losses = [
            (prices.more_rows(k)[k] - sum(candidate.path[:k]) / prices.worth, k)
            for k in range(1, min(_MOST_TRIED, len(candidate.path)) + 1)
            if not self.costs.verify.is_fresh(prices.n_entries + k)
            and sum(candidate.path[:k]) > _NEARLY * prices.worth * prices.more_rows(k)[k]
        ]
        if losses:
            loss, k = min(losses)
            if self._may_spend(prices.more_rows(k)[k]):
                self.explored_seconds += max(loss, prices.more_rows(k)[k])
                self._explores = True
                lengths[i] = k
        return lengths

    def _proposals(
        self,
        requests: Sequence[DraftRequest],
        best: Sequence[Candidate | None],
        lengths: Sequence[int],
        prices: Prices,
    ) -> list[Proposal]:
        other = prices.plain_seconds - self.costs.verify.seconds(prices.n_entries)
        seconds = other + self._spent + self._verify_seconds(lengths, prices)
        self._expected = seconds, prices.plain_seconds
        proposals = []
        for candidate, length, _request in zip(best, lengths, requests, strict=True):
            plain = candidate is None or not length
            drafter = None if candidate is None or plain else candidate.drafter
            n_expected = 1.0 + (0.0 if candidate is None else sum(candidate.path[:length]))
            expected = Expectation(drafter, length, n_expected, seconds, prices.plain_seconds, self._explores)
            draft = Draft() if candidate is None or plain else candidate.draft
            proposals.append(Proposal(draft.cut(length) if length < len(draft.tokens) else draft, drafter, expected))
        return proposals

    # Helpers

    @property
    def _restoring(self) -> Restoring:
        """What the target's memory costs when tokens are rejected."""
        kind = self._memory.rollback
        if kind is RollbackKind.TRIM:
            return TRIMS
        bound = self._memory.bound if kind is RollbackKind.BOUNDED else 0
        again = self.costs.verify.seconds(2) - self.costs.verify.seconds(1)
        return Restoring(bound, self.costs.checkpoint, max(0.0, again))

    def _as_paid(self, drafter: Drafter) -> PaidDrafter:
        self.acceptance.priors.setdefault(drafter.name, _HOPE)
        return PaidDrafter(drafter, self.costs, self.acceptance)

    def _wanting(self, request: DraftRequest) -> DraftRequest:
        """Return a request with signals, and with a budget within the longest draft."""
        return wanting(request, min(request.budget, self.n_max))


def _gain_of(candidate: Candidate | None) -> float:
    return 0.0 if candidate is None else candidate.plan.gain
