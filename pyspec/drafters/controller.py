"""``auto``: a chain that decides each round who drafts, how much, and how much of it is verified.

One round::

    follow   what was emitted since is compared with the drafts that were made, verified or not
    look up  drafters that cost next to nothing are asked while they are of use (``looking``); the best draft is kept
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

from pyspec.drafters.chain import Chain, Rows
from pyspec.drafters.looking import Looking
from pyspec.drafters.market import Market, Trial
from pyspec.drafters.paid import Offer, PaidDrafter, wanting
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.draft import Draft, Drafter, DraftRequest, Expectation, Proposal, TokenView
from pyspec.speculation.planning import TRIMS, Restoring
from pyspec.speculation.rollback import run_all
from pyspec.speculation.round import Outcome
from pyspec.speculation.scoring import Scores
from pyspec.speculation.target import TargetMemory

_EXPLORE = 0.01  # of the time
_HOPE = 0.8  # chance of a token of a drafter that costs time, so that it can start at all
_ADVANCE = 30  # plain rounds, whose share may be spent before they were played: trying early costs least
_SAFE = 1.5  # what is tried may cost more than expected
_CHEAP = 0.05  # of a plain decode: a drafter that takes longer has to be worth it
_OFTEN = 3  # times that a lookup was slow; one that takes longer than a plain decode counts twice
_TIMED = 8  # each so many times, and after a look that took long, the lookups are timed one by one

Offered = tuple[int, Drafter, Draft]
"""A draft that is not empty: number of its request, who made it, and it."""


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
        self._paid = {each.name: self._as_paid(each) for each in self._members if hasattr(each, "n_model_tokens")}
        self._looking = Looking(self.costs, self.n_max)
        self._n_looks = 0
        self._took_long = False  # longer than a plain decode, the last look
        self._n_slow: dict[str, int] = {}
        self._spent = 0.0  # on the drafts of the round under way
        self._explores = False
        self._trial: Trial | None = None
        self._sleeps = False  # all texts of the round under way
        self._plain: list[Proposal] = []
        self._plain_for = (0, 0)  # entries and sequences

    # What requests a sequence has

    def begin(self, seq_id: int, tokens: TokenView, rows: Rows | None = None) -> None:
        """A new request starts; see ``Chain.begin``."""
        self._forget(seq_id, tokens)
        super().begin(seq_id, tokens, rows)

    def rebegin(self, seq_id: int, tokens: TokenView) -> None:
        """The history of a request has become another one."""
        self._scores.forget(seq_id)
        for paid in self._paid.values():
            paid.begin(seq_id, len(tokens))
        super().rebegin(seq_id, tokens)

    def rewind(self, seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:
        """A new request starts, whose beginning the sequence holds already."""
        self._forget(seq_id, tokens, n_same)
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

    def _forget(self, seq_id: int, tokens: TokenView, n_same: int = 0) -> None:
        self._scores.forget(seq_id)
        self.acceptance.begin(seq_id)
        self._looking.begin(seq_id)
        for paid in self._paid.values():
            paid.begin(seq_id, len(tokens), n_same)

    # A round

    def rest(self, seq_ids: Sequence[int], n_entries: int) -> list[Proposal] | None:
        """Return what was expected before, while all texts sleep: their rounds must not take longer than plain ones."""
        if self._plain_for != (n_entries, len(seq_ids)) or not self._looking.sleep(seq_ids):
            return None
        self._spent, self._explores, self._trial, self._sleeps = 0.0, False, None, True
        return self._plain

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return per request the part of a draft that is worth verifying, which may be none."""
        self._spent, self._explores, self._trial = 0.0, False, None
        awake = self._looking.awake(requests)
        self._sleeps = not awake
        if not awake:
            return self._nothing(requests)
        began = self._clock()
        self.costs.verify.depth = sum(request.position for request in requests) / len(requests)
        for i in awake:
            self._scores.follow(requests[i].seq_id, requests[i].tokens, requests[i].pending)
        offers = self._look_up(requests, awake)
        if self._paid or self._are_worth_weighing(requests, offers):
            proposals = self._chosen(requests, offers)
        else:
            proposals = self._declined(requests, offers)
        if not (self._paid or any(proposal.draft.tokens for proposal in proposals)):
            self._looking.took(self._clock() - began, len(awake), requests)
        return proposals

    def _chosen(self, requests: Sequence[DraftRequest], offers: Sequence[Offered]) -> list[Proposal]:
        """Weigh what is offered, ask the drafters that cost time, and choose."""
        market = self._opened(requests)
        for i, drafter, draft in offers:
            market.add(i, drafter, draft, self.acceptance)
        for paid in self._paid.values():
            if not paid.rests():
                self._ask_paid(paid, market)
        beside = self._spent + self.costs.overhead
        lengths = market.lengths(beside)
        self._try_rows(market, lengths)
        for request, length in zip(requests, lengths, strict=True):
            self._looking.count(request.seq_id, length)
        seconds = market.verify_seconds(lengths) + beside
        proposals = market.proposals(lengths, seconds, explores=self._explores)
        for request, proposal, drafters in zip(requests, proposals, market.offered, strict=True):
            if drafters and not proposal.draft.tokens:  # they will not hear of a decision
                run_all(functools.partial(self._discard, drafter, request.seq_id) for drafter in drafters)
        return proposals

    def _declined(self, requests: Sequence[DraftRequest], offers: Sequence[Offered]) -> list[Proposal]:
        """Return no drafts, without weighing those that are offered."""
        for request in requests:
            self._looking.count(request.seq_id, 0)
        run_all(functools.partial(self._discard, drafter, requests[i].seq_id) for i, drafter, _draft in offers)
        return self._nothing(requests)

    def _nothing(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return no drafts; while all texts sleep, with what was expected before."""
        costs, n_entries = self.costs, requests[0].n_entries
        if not (self._sleeps and self._plain_for == (n_entries, len(requests))):
            plain = costs.verify.seconds(n_entries) + costs.overhead
            seconds = plain + self._spent + (0.0 if n_entries == costs.n_entries else costs.turn)
            self._plain = [Proposal(Draft(), None, Expectation(None, 0, 1.0, seconds, plain))] * len(requests)
            self._plain_for = n_entries, len(requests)
        return self._plain

    def played(self, decodes: Sequence[Decoded], outcomes: Sequence[Outcome]) -> None:
        """Learn from a round what it cost. Those of texts that sleep are alike, and the ones between are enough."""
        if not outcomes:
            return
        seconds, costs = outcomes[0].seconds, self.costs
        sleeps, self._sleeps = self._sleeps, False
        alike = sleeps and len(decodes) == 1 and decodes[0].n_entries == costs.n_entries and not decodes[0].reading
        if not alike:
            saved = any(each.n_checkpoint_bytes or each.rollback == "replay" for each in outcomes)
            if not costs.take(decodes, seconds, saved=saved):
                return
        self.played_seconds += seconds["total"]
        trial, self._trial = self._trial, None
        if trial is not None:
            self.explored_seconds = max(0.0, self.explored_seconds + trial.loss(outcomes))

    def _budget(self) -> float:
        """Return the seconds that are left for trying something."""
        advance = _ADVANCE * self.costs.verify.shallow(1)
        return _EXPLORE * (self.played_seconds + advance) - self.explored_seconds

    def _opened(self, requests: Sequence[DraftRequest]) -> Market:
        prices, together = self._looking.prices(requests), not self._memory.one_ubatch
        return Market(requests, prices, self._restoring, self.costs.verify, together=together)

    # Who drafts

    def _are_worth_weighing(self, requests: Sequence[DraftRequest], offers: Sequence[Offered]) -> bool:
        """Return whether any draft can be worth its rows; a drawn one is verified anyway."""
        if not offers:
            return False
        least = self._looking.least_chance(requests, doubting=self._budget() > 0.0)
        for i, drafter, draft in offers:
            signal = None if draft.signals is None else draft.signals[0]
            if draft.probs is not None or self.acceptance.chance(requests[i].seq_id, drafter.name, signal, 0) >= least:
                return True
        return False

    def _look_up(self, requests: Sequence[DraftRequest], awake: Sequence[int]) -> list[Offered]:
        """Ask the drafters that cost next to nothing; return what they offer, and to which request."""
        offers: list[Offered] = []
        self._n_looks += 1
        timed, plain = self._took_long or self._n_looks % _TIMED == 0, self.costs.verify.seconds(requests[0].n_entries)
        wanted = {i: wanting(requests[i], min(requests[i].budget, self.n_max)) for i in awake}
        began = before = self._clock()
        for drafter in self._members:
            name = drafter.name
            asked = [i for i in awake if requests[i].drafting.allows(name)]
            if name in self._paid or not asked:
                continue
            drafts = self._ask(drafter, [wanted[i] for i in asked])
            for i, draft in zip(asked, drafts, strict=True):
                if draft.tokens:
                    self._scores.watch(requests[i].seq_id, name, requests[i].position, draft)
                    offers.append((i, drafter, draft))
            if timed:
                before, taken = (now := self._clock()), now - before
                self._count_slow(drafter, taken / (plain * len(asked)))
        spent = self._clock() - began
        self._spent += spent
        self._took_long = spent > plain
        return offers

    def _count_slow(self, drafter: Drafter, n_decodes: float) -> None:
        """Count how often a lookup was slow; one that mostly is has to be worth its time from then on."""
        worse = 2 if n_decodes > 1.0 else 1 if n_decodes > _CHEAP else -1
        n_slow = self._n_slow[drafter.name] = max(0, self._n_slow.get(drafter.name, 0) + worse)
        if n_slow >= _OFTEN:
            self._paid[drafter.name] = self._as_paid(drafter)

    def _ask_paid(self, paid: PaidDrafter, market: Market) -> None:
        """Ask a drafter that costs time, where that is expected to be worth it."""
        drafter, requests = paid.drafter, market.requests
        allowed = [
            i for i, request in enumerate(requests) if request.drafting.allows(drafter.name) and not market.is_taken(i)
        ]
        if not allowed:
            return
        limit = min(self.n_max, drafter.n_max, max(requests[i].budget for i in allowed))
        offer, asked, loss = self._best_company(paid, limit, allowed, market)
        explores = loss >= 0.0
        if explores and not self._is_worth_trying(paid, asked, offer, loss, market):
            paid.rest()
            return
        wanted = [paid.wanting(requests[i], offer) for i in asked]
        began = self._clock()
        drafts = self._ask(drafter, wanted)
        seconds = self._clock() - began
        self._spent += seconds
        paid.took(wanted, drafts, seconds, offer)
        gained = 0.0
        for i, draft in zip(asked, drafts, strict=True):
            former, plan = market.gain(i), None
            if draft.tokens:
                self._scores.watch(requests[i].seq_id, drafter.name, requests[i].position, draft)
                least, spent = max(1, requests[i].drafting.n_min or 0), seconds / len(asked)
                plan = market.add(
                    i, drafter, draft, self.acceptance, offer.extra, base=offer.base, least=least, spent=spent
                )
            paid.gained(requests[i], draft, plan, offer)
            gained += max(0.0, (0.0 if plan is None else plan.gain) - former)
        if explores:
            self._explores = True
            self.explored_seconds += max(0.0, seconds - gained / market.prices.base.rate)

    def _best_company(
        self, paid: PaidDrafter, limit: int, allowed: Sequence[int], market: Market
    ) -> tuple[Offer, Sequence[int], float]:
        """Return what drafting together costs, who should, and what is lost by that (less than nothing is gained).

        The more draft together, the less it costs each of them, so half of them, a quarter, ... are weighed, those
        that gain most. When nothing is gained, it is those who lose the least each.
        """
        found: list[tuple[float, Offer, Sequence[int]]] = []
        n, left = len(allowed), allowed
        while True:
            offer = paid.offer(limit, n, market.prices, market.restoring)
            losses = sorted((market.gain(i) - paid.gain(market.requests[i], offer, market.worth(i)), i) for i in left)[
                :n
            ]
            left = [i for _loss, i in losses]
            found.append((sum(loss for loss, _i in losses), offer, left))
            if n == 1:
                break
            n = (n + 1) // 2
        if (least := min(found, key=lambda each: each[0]))[0] >= 0.0:
            least = min(found, key=lambda each: each[0] / len(each[2]))
        return least[1], least[2], least[0]

    def _is_worth_trying(
        self, paid: PaidDrafter, asked: Sequence[int], offer: Offer, loss: float, market: Market
    ) -> bool:
        """Return whether a drafter may be better than it seems, and trying it can be afforded."""
        requests = market.requests
        waiting = sum(paid.waiting(requests[i], offer) for i in asked)
        hope = sum(paid.hope(requests[i], offer, market.worth(i)) - market.gain(i) for i in asked)
        return hope > 0.0 and _SAFE * (loss / offer.base.rate + waiting) <= self._budget()

    def _try_rows(self, market: Market, lengths: list[int]) -> None:
        """Let other rows be verified to see what they cost now, if that can be afforded."""
        budget = self._budget()
        self._trial = market.rows_to_try(lengths, budget / _SAFE) if budget > 0.0 else None
        if self._trial is not None:
            lengths[self._trial.i] = self._trial.length
            self._explores = True

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
