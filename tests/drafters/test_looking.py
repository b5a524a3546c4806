"""Texts that offer nothing are looked up seldom, and drafts that cannot be worth their rows are not weighed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.controller import Controller
from pyspec.drafters.looking import Looking
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.draft import Draft, DraftRequest, Proposal
from pyspec.speculation.round import Outcome
from tests.simulation import Clock, Memory

STEEP = {1: 0.010, 2: 0.020, 4: 0.040, 8: 0.080}


class Lookup(ModelFreeDrafter):
    """Always says the same and takes its time."""

    name = "lookup"
    n_max = 7

    def __init__(self, clock: Clock, signal: float, seconds: float = 0.0) -> None:
        self.n_asked = self.n_discarded = 0
        self._clock = clock
        self._signal = signal
        self._seconds = seconds

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.n_asked += 1
        self._clock.now += self._seconds
        return [Draft((5, 6), signals=(self._signal,) * 2)] * len(requests)

    def discard(self, _seq_id: int) -> None:
        self.n_discarded += 1


def request(position: int, *, seq_id: int = 0, n_entries: int = 1) -> DraftRequest:
    return DraftRequest(seq_id, [1] * position, 4, position, 7, n_entries=n_entries)


def proposed(controller: Controller, position: int) -> Proposal:
    """Return what a round of one sequence begins with."""
    resting = controller.rest([0], 1)
    (proposal,) = controller.propose([request(position)]) if resting is None else resting
    return proposal


def played(controller: Controller, proposal: Proposal, position: int, n_right: int, seconds: float = 0.010) -> None:
    """Tell the controller of a round of one sequence."""
    n_entries = 1 + len(proposal.draft.tokens)
    stages = {"draft": 0.0, "verify": seconds, "total": seconds}
    outcome = Outcome(0, position, 4, proposal, n_right, (9,) * (n_right + 1), None, "greedy", "trim", (), stages)
    controller.played([Decoded(n_entries, reading=False, seconds=seconds, depth=position)], [outcome])


def looked_up(lookup: Lookup, clock: Clock, n_rounds: int, costs: Costs | None = None) -> Controller:
    """Play rounds in which nothing that is offered is right."""
    controller = Controller([lookup], Memory(), costs=costs or Costs(STEEP), clock=clock)  # type: ignore[arg-type]
    controller.begin(0, [1])
    for position in range(1, n_rounds + 1):
        proposal = proposed(controller, position)
        played(controller, proposal, position, 0, STEEP[1] * (1 + len(proposal.draft.tokens)))
    return controller


@pytest.mark.parametrize(("seconds", "period"), [(0.0, 4), (0.00019, 4), (0.00039, 8), (0.00049, 10)])
def test_a_text_that_offers_nothing_is_looked_up_the_more_seldom_the_longer_that_takes(
    seconds: float, period: int
) -> None:
    """So it takes half a percent of the time, with rounds of 10 ms."""
    clock = Clock()
    lookup = Lookup(clock, signal=1.0, seconds=seconds)
    looked_up(lookup, clock, 40 * period)
    assert lookup.n_asked == pytest.approx(40, abs=8)


def test_however_long_looking_takes_a_text_is_not_forgotten() -> None:
    looking = Looking(Costs(STEEP), 7)
    looking.took(10.0, 1, [request(1)])
    for _ in range(20):
        looking.count(0, 0)
    assert sum(bool(looking.awake([request(1)])) for _ in range(64)) == 4


def test_a_text_is_awake_from_its_beginning_and_after_a_draft() -> None:
    looking = Looking(Costs(STEEP), 7)
    looking.begin(0)
    for verified in (0, 2):
        if verified:
            looking.count(0, verified)
        rounds = []
        for position in range(1, 13):
            rounds.append(bool(looking.awake([request(position)])))
            looking.count(0, 0)
        assert rounds == [True] * 4 + [False, False, False, True] * 2


def test_only_some_of_several_texts_sleep() -> None:
    looking = Looking(Costs(STEEP), 7)
    requests = [request(9, seq_id=seq_id, n_entries=2) for seq_id in (0, 1)]
    for _ in range(20):
        looking.count(0, 0)
        looking.count(1, 3)
    assert [looking.awake(requests) for _ in range(8)] == [[1], [1], [1], [0, 1]] * 2


@pytest.mark.parametrize("n_idle", [(0, 0), (9, 0), (9, 9), (3, 9)])
def test_a_round_in_which_all_sleep_is_the_one_in_which_nobody_is_awake(n_idle: tuple[int, int]) -> None:
    asked, rested = Looking(Costs(STEEP), 7), Looking(Costs(STEEP), 7)
    requests = [request(9, seq_id=seq_id, n_entries=2) for seq_id in (0, 1)]
    for looking in (asked, rested):
        for seq_id, n_rounds in enumerate(n_idle):
            for _ in range(n_rounds):
                looking.count(seq_id, 0)
    for _ in range(40):
        expected = asked.awake(requests)
        assert ([] if rested.sleep([0, 1]) else rested.awake(requests)) == expected


def test_a_text_of_another_round_is_no_reason_to_rest() -> None:
    """What was expected before is of as many entries and sequences."""
    clock = Clock()
    controller = looked_up(Lookup(clock, signal=1.0), clock, 6)
    assert controller.rest([0], 2) is None
    assert controller.rest([0, 1], 1) is None
    controller.begin(0, [1])
    assert controller.rest([0], 1) is None


def test_a_draft_that_cannot_be_worth_its_rows_is_discarded_without_being_weighed() -> None:
    """On a machine where a row costs as much as a decode, with a first token that stands in four of ten cases."""
    clock = Clock()
    lookup = Lookup(clock, signal=1.0)
    costs = Costs(STEEP)
    for n_entries, seconds in STEEP.items():
        costs.verify.observe(n_entries, seconds)
    looked_up(lookup, clock, 3, costs)
    assert lookup.n_asked == lookup.n_discarded == 3


def test_rounds_of_texts_that_sleep_cost_nothing_to_learn_from() -> None:
    clock = Clock()
    controller = looked_up(Lookup(clock, signal=1.0), clock, 5)
    seen, seconds = controller.costs.level.n_seen, controller.played_seconds
    for position in range(6, 26):
        proposal = proposed(controller, position)
        assert proposal.expected is not None
        assert proposal.expected.seconds >= proposal.expected.plain_seconds > 0.0
        played(controller, proposal, position, 0)
    assert controller.costs.level.n_seen - seen == 5  # one of four
    assert controller.played_seconds - seconds == pytest.approx(20 * 0.010)


def test_a_machine_that_slows_down_is_noticed_while_texts_sleep() -> None:
    clock = Clock()
    controller = looked_up(Lookup(clock, signal=1.0), clock, 5)
    for position in range(6, 106):
        proposal = proposed(controller, position)
        played(controller, proposal, position, 0, seconds=0.020)
    assert controller.costs.verify.seconds(1) == pytest.approx(0.020, rel=0.05)


def test_prices_are_kept_while_only_plain_decoding_is_seen_and_not_for_another_text() -> None:
    costs = Costs(STEEP)
    looking = Looking(costs, 7)
    first = looking.prices([request(9)])
    assert looking.prices([request(10)]) is first
    looking.begin(0)
    second = looking.prices([request(9)])
    assert second is not first
    looking.count(0, 2)
    assert looking.prices([request(12)]) is not second
