"""On a simulated machine the controller is never slower than plain decoding, and as fast as the best fixed setting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.controller import Controller
from pyspec.drafters.paid import PaidDrafter
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.draft import FREELY, Candidates, Draft, Drafting, DraftRequest, Proposal
from pyspec.speculation.planning import TRIMS, Prices
from pyspec.speculation.round import Outcome
from tests.simulation import (
    COLUMNS,
    Clock,
    Memory,
    Process,
    SimulatedDrafter,
    SimulatedModel,
    Simulation,
    curve_of,
)

FLAT = {1: 0.010, 2: 0.0101, 3: 0.0102, 4: 0.0103, 8: 0.0105, 16: 0.011}
_SHARES = (0.98, 0.95, 0.9, 0.6, 0.4)


@functools.cache
def _confidence(seed: int) -> list[float]:
    """Return a share per position, as a draft model's."""
    return list(np.random.default_rng(seed).choice(_SHARES, 6000))


def _repeats(position: int) -> bool:
    """Every third stretch of 150 tokens repeats earlier text."""
    return (position // 150) % 3 == 2


def model(name: str, step: float, process: Process, *, heeds_judge: bool = True) -> Callable[..., SimulatedModel]:
    """Return a maker of a drafter with a model; ``step`` is its share of a plain decode."""

    def make(simulation: Simulation, clock: Clock) -> SimulatedModel:
        curve = simulation.curve()
        seconds = step * COLUMNS[simulation.column][0]

        def growth(n: int) -> float:
            return curve.seconds(n) / curve.seconds(1)

        return SimulatedModel(name, process, clock, 50e-6, seconds, growth, heeds_judge=heeds_judge)

    return make


def lookup(name: str, process: Process) -> Callable[..., SimulatedDrafter]:
    """Return a maker of a drafter that takes microseconds."""
    return lambda _simulation, clock: SimulatedDrafter(name, process, clock, 15e-6)


def _confident(position: int) -> float:
    return _confidence(1)[position]


CONFIDENT = Process(_confident, _confident)
GOOD = model("draft-simple", 0.15, CONFIDENT)
COPIES = lookup(
    "copies",
    Process(lambda p: 0.92 if _repeats(p) else 0.1, offers=lambda p: _repeats(p) or p % 4 == 0, seed=3),
)
USELESS = lookup("useless", Process(lambda _p: 0.05, seed=5))
SCENARIOS: dict[str, Sequence[Callable[..., Any]]] = {
    "cheap model": [model("draft-simple", 0.08, CONFIDENT)],
    "dear model": [model("draft-simple", 0.6, CONFIDENT)],
    "model without signals": [model("draft-simple", 0.15, Process(lambda _p: 0.85, seed=1), heeds_judge=False)],
    "useless model": [model("draft-simple", 0.2, Process(lambda _p: 0.1, lambda _p: 0.3, seed=6))],
    "copies": [COPIES],
    "strong lookup": [lookup("strong", Process(lambda _p: 0.9, seed=4))],
    "useless lookup": [USELESS],
    "becomes useless": [lookup("changes", Process(lambda p: 0.9 if p < 700 else 0.05, seed=7))],
    "becomes good": [lookup("changes", Process(lambda p: 0.05 if p < 700 else 0.9, seed=8))],
    "several": [COPIES, USELESS, GOOD],
}


@pytest.mark.parametrize(("column", "n_slots"), [("Q4_1", 1), ("F16", 1), ("1.5B", 1), ("F16", 4)], ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_never_slower_than_plain_and_as_fast_as_the_best_fixed(scenario: str, column: str, n_slots: int) -> None:
    simulation = Simulation(column, n_slots, n_tokens=2000 if n_slots == 1 else 1600)

    def make(clock: Clock) -> list[Any]:
        return [each(simulation, clock) for each in SCENARIOS[scenario]]

    played, controller = simulation.auto(make)
    best, which = simulation.best_fixed(make, (1, 2, 3, 7))
    assert played.rate >= 0.97 * simulation.plain()
    assert played.rate >= 0.97 * best, which
    assert controller.explored_seconds <= 0.01 * played.seconds


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("scenario", ["copies", "strong lookup", "useless lookup", "becomes useless", "several"])
def test_turning_from_one_number_of_rows_to_another_may_be_dear(scenario: str, known: bool) -> None:  # noqa: FBT001 - a case
    """As where llama.cpp's graph for another number of rows takes a fifth of a plain decode to build."""
    simulation = Simulation("Q4_1", turn=0.2 * COLUMNS["Q4_1"][0])

    def make(clock: Clock) -> list[Any]:
        return [each(simulation, clock) for each in SCENARIOS[scenario]]

    played, controller = simulation.auto(make, turn=simulation.turn if known else 0.0)
    assert played.rate >= 0.97 * simulation.plain()
    assert played.rate >= 0.95 * simulation.best_fixed(make, (1, 2, 3, 7))[0]  # a fixed length hardly turns
    if scenario == "copies":  # others hardly turn, or turn so often that nothing is usual
        assert controller.costs.turn == pytest.approx(simulation.turn, rel=0.5)


def test_when_the_machine_slows_down_the_choice_stays_right() -> None:
    """Other work doubles all times from the middle on; what was measured before must not look cheap then."""
    simulation = Simulation("Q4_1", load=lambda position: 2.0 if position > 700 else 1.0)

    def make(clock: Clock) -> list[Any]:
        return [each(simulation, clock) for each in SCENARIOS["several"]]

    played, _ = simulation.auto(make)
    assert played.rate >= 0.97 * simulation.plain()
    assert played.rate >= 0.97 * simulation.best_fixed(make, (1, 3))[0]


@pytest.mark.parametrize("column", ["Q4_1", "F16"])
@pytest.mark.parametrize("times", [{1: 1.0, 2: 1.0, 4: 2.5}, {1: 1.0, 2: 2.0, 4: 2.0, 8: 2.0}], ids=["4", "all but 1"])
def test_a_machine_that_was_busy_when_it_was_measured_is_found_out(column: str, times: dict[int, float]) -> None:
    """Rows that seem too dear are tried, so that no first start under load decides for ever."""
    simulation = Simulation(column)

    def make(clock: Clock) -> list[Any]:
        return [each(simulation, clock) for each in SCENARIOS["strong lookup"]]

    played, controller = simulation.auto(make, times=times)
    assert played.rate >= 0.92 * simulation.best_fixed(make, (1, 3, 7))[0]
    assert controller.explored_seconds <= 0.01 * played.seconds


def test_it_tries_nothing_for_more_than_a_hundredth_of_the_time() -> None:
    """A drafter that would be worth it, if it were twice as good, is tried again and again."""
    simulation = Simulation("1.5B", noise=0.0)
    make = SCENARIOS["useless model"]
    played, controller = simulation.auto(lambda clock: [each(simulation, clock) for each in make])
    assert 0.0 < controller.explored_seconds <= 0.01 * played.seconds


@pytest.mark.parametrize(
    ("n_right", "seconds", "left"),
    [(0, 0.020, 0.020), (0, 0.050, 0.050), (1, 0.020, 0.010), (1, 0.015, 0.005), (1, 0.005, 0.0)],
)
def test_what_trying_lost_is_what_the_round_took(n_right: int, seconds: float, left: float) -> None:
    """What seems worth a try is rather what too much is expected of; and a try that gained pays for others."""
    says = Says("says", Draft((5,), signals=(5.0,)))
    costs = Costs({1: 0.010, 2: 0.020, 3: 0.030})
    controller = Controller([says], Memory(), costs=costs, clock=Clock())  # type: ignore[arg-type]
    controller.begin(0, [1, 2, 3])
    controller.played_seconds, controller.explored_seconds = 10.0, 0.010  # before
    (proposal,) = controller.propose([DraftRequest(0, [1, 2, 3], 4, 3, 16)])
    assert proposal.expected is not None
    assert proposal.expected.explores
    stages = {"draft": 0.0, "verify": seconds, "total": seconds}
    emitted = tuple(range(5, 6 + n_right))
    outcome = Outcome(0, 3, 4, proposal, n_right, emitted, None, "greedy", "trim", (), stages)
    controller.played([Decoded(2, reading=False, seconds=seconds)], [outcome])
    assert controller.explored_seconds == pytest.approx(left)
    controller.played([Decoded(1, reading=False, seconds=0.030)], [outcome])  # a round without a try
    assert controller.explored_seconds == pytest.approx(left)


def test_a_drafter_that_gave_up_is_tried_with_the_next_request() -> None:
    """Catching up would cost too much in the middle of a request; at the beginning of one it costs nothing."""
    simulation = Simulation("F16", n_tokens=600, noise=0.0)
    process = Process(lambda _p: 0.1, seed=1)
    clock = Clock()
    drafter = SimulatedModel("draft-simple", process, clock, 50e-6, 0.15 * 0.0154, heeds_judge=False)
    controller = Controller([drafter], Memory(), costs=Costs(curve_of("F16")), clock=clock)  # type: ignore[arg-type]
    simulation.play(controller, clock)
    n_calls = drafter.n_calls
    drafter.process = Process(lambda _p: 0.95, seed=2)
    rates = [simulation.play(controller, clock).rate for _ in range(3)]
    assert drafter.n_calls > n_calls + 100
    assert rates[-1] > 1.2 * simulation.plain()


class Says(ModelFreeDrafter):
    """A drafter with one answer that keeps what it is asked."""

    def __init__(self, name: str, draft: Draft, *, n_max: int = 8) -> None:
        self.name, self.n_max = name, n_max
        self.asked: list[DraftRequest] = []
        self.discarded = 0
        self._draft = draft

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += requests
        return [self._draft.cut(request.budget) for request in requests]

    def discard(self, _seq_id: int) -> None:
        self.discarded += 1


def proposed(drafters: Sequence[Any], costs: dict[int, float], **options: Any) -> tuple[Proposal, Controller]:
    """Return what is proposed in a first round."""
    drafting = options.pop("drafting", FREELY)
    budget = options.pop("budget", 16)
    clock = Clock()
    controller = Controller(drafters, Memory(), costs=Costs(costs), clock=clock, **options)  # type: ignore[arg-type]
    controller.begin(0, [1, 2, 3])
    (proposal,) = controller.propose([DraftRequest(0, [1, 2, 3], 4, 3, budget, drafting=drafting)])
    return proposal, controller


def test_the_longest_draft_is_a_cap() -> None:
    says = Says("says", Draft((5, 6, 7, 8, 9), signals=(20.0,) * 5))
    assert len(proposed([says], FLAT)[0].draft.tokens) == 5
    assert len(proposed([says], FLAT, n_max=2)[0].draft.tokens) == 2
    assert len(proposed([says], FLAT, budget=3)[0].draft.tokens) == 3
    assert proposed([says], FLAT, n_max=0)[1].n_max == 0


@pytest.mark.parametrize("n_slots", [1, 2, 3])
def test_long_drafts_of_all_sequences_are_verified_where_that_costs_nothing(n_slots: int) -> None:
    says = Says("says", Draft((5,) * 16, signals=(60.0,) * 16), n_max=16)
    costs = Costs({1: 1.0, 64: 1.01})
    controller = Controller([says], Memory(), costs=costs, clock=Clock())  # type: ignore[arg-type]
    requests = [DraftRequest(i, [1, 2, 3], 4, 3, 16, n_entries=n_slots) for i in range(n_slots)]
    for request in requests:
        controller.begin(request.seq_id, request.tokens)
    assert [len(proposal.draft.tokens) for proposal in controller.propose(requests)] == [16] * n_slots


def test_a_drafter_may_be_sure_of_everything() -> None:
    says = Says("says", Draft((5, 6), signals=(float("inf"), 1e300)))
    assert proposed([says], FLAT)[0].draft.tokens == (5, 6)


def test_a_request_may_leave_drafters_out() -> None:
    says, other = Says("says", Draft((5,), signals=(20.0,))), Says("other", Draft((6,), signals=(20.0,)))
    proposal, _ = proposed([says, other], FLAT, drafting=Drafting("other"))
    assert (proposal.drafter, proposal.draft.tokens, says.asked) == ("other", (6,), [])


def test_the_surer_draft_wins() -> None:
    short, long = Says("short", Draft((5, 6), signals=(2.0, 2.0))), Says("long", Draft((7, 8), signals=(30.0, 30.0)))
    proposal, _ = proposed([short, long], FLAT)
    assert proposal.drafter == "long"
    assert proposal.expected is not None
    assert proposal.expected.length == 2
    assert 2.0 < proposal.expected.tokens < 3.0
    assert proposal.expected.seconds >= proposal.expected.plain_seconds > 0.0


def test_a_draft_is_cut_where_rows_become_dear() -> None:
    says = Says("says", Draft((5, 6, 7, 8), signals=(20.0,) * 4))
    proposal, _ = proposed([says], {1: 1.0, 2: 1.05, 3: 1.1, 4: 9.0, 5: 9.1})
    assert proposal.draft.tokens == (5, 6)
    assert list(proposal.draft.signals or ()) == [20.0, 20.0]


def test_what_is_not_verified_is_discarded() -> None:
    says = Says("says", Draft((5, 6), signals=(2.0, 2.0)))
    proposal, _ = proposed([says], {1: 1.0, 2: 3.0, 4: 9.0})
    assert (proposal.draft.tokens, proposal.drafter, says.discarded) == ((), None, 1)


@pytest.mark.parametrize("n_slots", [1, 2])
def test_a_drawn_draft_is_verified_as_it_is(n_slots: int) -> None:
    """Cutting it by what was drawn would change the distribution that it is judged by."""
    candidates = Candidates(np.array([5, 6], np.int32), np.array([0.5, 0.5]))
    says = Says("says", Draft((5, 6, 5), (candidates,) * 3, (0.3, 0.3, 0.3)))
    costs = Costs({1: 1.0, 2: 3.0, 4: 9.0})
    controller = Controller([says], Memory(), costs=costs, clock=Clock())  # type: ignore[arg-type]
    requests = [DraftRequest(i, [1, 2, 3], 4, 3, 16, n_entries=n_slots) for i in range(n_slots)]
    for request in requests:
        controller.begin(request.seq_id, request.tokens)
    assert [proposal.draft.tokens for proposal in controller.propose(requests)] == [(5, 6, 5)] * n_slots


def test_short_drafts_of_a_model_are_left_out_when_the_request_says_so() -> None:
    says = Says("says", Draft((5, 6, 7), signals=(0.99, 0.99, 0.1)))
    says.n_model_tokens = 0  # type: ignore[attr-defined]
    steep = {1: 1.0, 2: 1.1, 3: 1.2, 4: 9.0, 9: 20.0}
    assert len(proposed([says], steep)[0].draft.tokens) == 2
    assert proposed([says], steep, drafting=Drafting(n_min=3))[0].draft.tokens == ()


@pytest.mark.parametrize(("seconds", "n_tokens", "n_calls"), [(5e-3, 500, 30), (0.05, 900, 8)])
def test_a_lookup_that_takes_long_has_to_be_worth_it(seconds: float, n_tokens: int, n_calls: int) -> None:
    """One of another package, for example: it is found out, the sooner the worse, and no longer asked every round."""
    simulation = Simulation("F16", n_tokens=n_tokens, noise=0.0)
    clock = Clock()
    slow = SimulatedDrafter("slow", Process(lambda _p: 0.05, seed=1), clock, fixed=seconds)
    controller = Controller([slow], Memory(), costs=Costs(curve_of("F16")), clock=clock)  # type: ignore[arg-type]
    played = simulation.play(controller, clock)
    assert slow.n_calls < n_calls
    assert played.rate >= 0.97 * simulation.plain()


def test_a_memory_that_restores_makes_drafts_dearer() -> None:
    says = Says("says", Draft((5, 6), signals=(6.0, 6.0)))
    costs = Costs({1: 1.0, 2: 1.5, 3: 1.6})
    costs.take([], {"total": 3.0, "draft": 0.0, "verify": 0.0}, saved=True)
    for kind, n_drafted in ((RollbackKind.TRIM, 2), (RollbackKind.WHOLE, 0)):
        controller = Controller([says], Memory(kind), costs=costs, clock=Clock())  # type: ignore[arg-type]
        controller.begin(0, [1, 2, 3])
        (proposal,) = controller.propose([DraftRequest(0, [1, 2, 3], 4, 3, 16)])
        assert len(proposal.draft.tokens) == n_drafted


def test_rows_are_shared_by_who_has_the_better_drafts() -> None:
    """Four more rows are cheap and the fifth is dear: they go where tokens are likely to stand."""
    costs = Costs({2: 1.0, 3: 1.01, 4: 1.02, 5: 1.03, 6: 1.04, 7: 9.0, 16: 20.0})

    class Two(Says):
        def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            sure, unsure = Draft((5,) * 6, signals=(40.0,) * 6), Draft((6,) * 6, signals=(1.0,) * 6)
            return [sure if request.seq_id == 0 else unsure for request in requests]

    controller = Controller([Two("two", Draft())], Memory(), costs=costs, clock=Clock())  # type: ignore[arg-type]
    requests = [DraftRequest(i, [1, 2, 3], 4, 3, 16, n_entries=2) for i in (0, 1)]
    for request in requests:
        controller.begin(request.seq_id, request.tokens)
    first, second = controller.propose(requests)
    assert (len(first.draft.tokens), len(second.draft.tokens)) == (3, 1) or len(first.draft.tokens) == 4


@pytest.mark.parametrize("reads_late", [True, False])
def test_a_prompt_that_was_not_read_costs_time(reads_late: bool) -> None:  # noqa: FBT001 - a case
    simulation, clock = Simulation("F16"), Clock()
    drafter = GOOD(simulation, clock)
    drafter.reads_late = reads_late
    paid = PaidDrafter(drafter, Costs(curve_of("F16")), Acceptance())
    request = DraftRequest(0, list(range(500)), 500, 500, 8)
    offer = paid.offer(8, 1, Prices(Costs(curve_of("F16")), 1, 1), TRIMS)
    paid.begin(0, 500)
    assert (paid.waiting(request, offer) > 0.0) is reads_late
    paid.heard[0] = 500  # it was asked
    assert paid.waiting(request, offer) == 0.0
    paid.begin(0, 900, n_same=400)  # another request that begins alike
    assert (paid.heard[0] == 400) is reads_late
