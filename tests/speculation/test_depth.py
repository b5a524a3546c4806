"""A deeper memory makes every row dearer, and not only the first: what is expected of rounds follows that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.drafters.controller import Controller
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.curves import Attention, DecodeCurve, Level
from pyspec.speculation.draft import Draft, DraftRequest
from pyspec.speculation.round import Outcome
from tests.fakes import cycle_logits
from tests.playing import ScriptedSpec, Table
from tests.reference import Request
from tests.scripted import Move
from tests.simulation import Clock, Memory, Process, SimulatedDrafter

PLAIN = {"draft": 0.0, "verify": 0.0, "total": 0.0}
ROWS = {1: 0.010, 2: 0.011, 4: 0.012, 8: 0.014, 16: 0.018}
ATTENTION = Attention(8e-6, 5e-6)


def test_rows_cost_more_in_a_deep_memory_and_several_more_than_one() -> None:
    curve = DecodeCurve(Level(), ROWS, ATTENTION)
    shallow = [curve.seconds(n) for n in (1, 8)]
    curve.depth = 1000.0
    assert [curve.seconds(n) for n in (1, 8)] == pytest.approx([0.010 + 0.008, 0.014 + 0.040])
    assert [curve.shallow(n) for n in (1, 8)] == shallow == pytest.approx([ROWS[1], ROWS[8]])


def test_what_is_observed_deep_says_what_is_shallow() -> None:
    curve = DecodeCurve(Level(), ROWS, ATTENTION)
    for depth in range(0, 4000, 40):
        curve.depth = float(depth)
        for n in (1, 8):
            curve.observe(n, ROWS[n] + ATTENTION.seconds(n, depth))
    assert curve.points == pytest.approx(ROWS)


def test_a_machine_that_becomes_slower_makes_positions_dearer_too() -> None:
    curve = DecodeCurve(Level(), ROWS, ATTENTION)
    curve.depth = 1000.0
    for _ in range(20):
        curve.observe(1, 2 * 0.018)
        assert 0.9 <= curve.seconds(1) / 0.018 <= 2.1
    assert curve.attention == pytest.approx((16e-6, 10e-6))
    assert curve.seconds(8) == pytest.approx(2 * 0.054)


@pytest.mark.parametrize("wrong", [0.0, 0.4, 2.0])
def test_where_positions_cost_something_else_rounds_correct_it(wrong: float) -> None:
    """As before there was a depth: what is observed counts."""
    curve = DecodeCurve(Level(), ROWS, Attention(*(wrong * seconds for seconds in ATTENTION)))
    curve.depth = 1000.0
    for _ in range(40):
        for n in (1, 8):
            curve.observe(n, ROWS[n] + ATTENTION.seconds(n, 1000.0))
    assert [curve.seconds(n) for n in (1, 8)] == pytest.approx([0.018, 0.054], rel=0.02)


@pytest.mark.parametrize("wrong", [0.0, 0.5, 1.5, 3.0])
def test_what_is_learned_deep_does_not_mislead_later_in_a_shallow_memory(wrong: float) -> None:
    """Sixteen rows never seem to cost less than one."""
    curve = DecodeCurve(Level(), ROWS, Attention(*(wrong * seconds for seconds in ATTENTION)))
    for depth in range(900, 1200):
        curve.depth = float(depth)
        for n in (1, 16, 1, 4):
            curve.observe(n, ROWS[n] + ATTENTION.seconds(n, depth))
    for n in (4, 16):
        assert curve.shallow(n) >= 0.9 * curve.shallow(1)
    curve.depth = 1000.0
    assert curve.seconds(16) == pytest.approx(ROWS[16] + ATTENTION.seconds(16, 1000.0), rel=0.2)


@pytest.mark.parametrize("count", [1, 8])
def test_positions_cannot_cost_more_than_all_that_was_observed(count: int) -> None:
    """Found out at once, also by single rows: nothing would be drafted otherwise."""
    curve = DecodeCurve(Level(), ROWS, Attention(1.0, 1.0))
    curve.depth = 300.0
    curve.observe(count, ROWS[count] + ATTENTION.seconds(count, 300.0))
    assert curve.seconds(count) < 0.1


def test_two_rows_may_take_more_than_two_single_ones() -> None:
    """Single rows have kernels of their own; that is no reason to think that positions cost more."""
    curve = DecodeCurve(Level(), {1: 3.0, 2: 7.0, 8: 9.0}, Attention(2e-3, 2e-3))
    curve.depth = 200.0
    for _ in range(30):
        for n, took in ((1, 3.4), (2, 7.8), (1, 3.4), (8, 12.2)):
            curve.observe(n, took)
    assert curve.attention == pytest.approx((2e-3, 2e-3))


def test_one_hiccup_does_not_make_positions_dear() -> None:
    curve = DecodeCurve(Level(), ROWS, ATTENTION)
    curve.depth = 300.0
    for i in range(40):
        for n in (1, 8):
            took = ROWS[n] + ATTENTION.seconds(n, 300.0)
            curve.observe(n, took * (50.0 if i == 20 else 1.0))
    assert curve.attention == pytest.approx(ATTENTION)


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.0, 1e5), st.floats(1e-6, 10.0)), max_size=40),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_a_decode_never_costs_nothing(seen: list[tuple[int, float, float]], alone: float, each: float) -> None:
    costs = Costs(ROWS, attention=Attention(alone, each))
    for n, depth, seconds in seen:
        costs.take([Decoded(n, reading=False, seconds=seconds, depth=depth)], PLAIN, saved=False)
        for at in (0.0, depth):
            costs.verify.depth = at
            assert all(costs.verify.seconds(k) > 0.0 for k in range(1, 20))


def test_rounds_say_how_deep_their_decodes_were() -> None:
    request = Request(cycle_logits([3, 4, 5], 8), 8, (3,) * 6, max_tokens=6)
    table = Table([request], [ScriptedSpec((Move(2), Move()))])
    depths: list[float] = []

    def played(decodes: Sequence[Decoded], _outcomes: Sequence[Outcome]) -> None:
        depths.extend(decoded.depth for decoded in decodes if not decoded.reading)

    table.chain.played = played  # type: ignore[method-assign,assignment]
    table.begin()
    table.play()
    lengths = [len(outcome.proposal.draft.tokens) for outcome in table.seats[0].outcomes if not outcome.first]
    positions = [outcome.position for outcome in table.seats[0].outcomes if not outcome.first]
    assert depths == [position + length / 2 for position, length in zip(positions, lengths, strict=True)]
    assert len(depths) > 1


def test_drafts_are_shorter_in_a_deep_memory() -> None:
    lengths = []
    for position in (10, 500, 2000):
        drafter = SimulatedDrafter("lookup", Process(lambda _p: 1.0, lambda _p: 8.0), Clock(), n_max=12)
        costs = Costs(ROWS, attention=ATTENTION)
        controller = Controller([drafter], Memory(), costs=costs, clock=Clock())  # type: ignore[arg-type]
        history = list(range(position))
        controller.begin(0, history)
        (proposal,) = controller.propose([DraftRequest(0, history, position, position, 12)])
        lengths.append(len(proposal.draft.tokens))
    assert lengths[0] > lengths[1] > lengths[2]


def test_texts_that_offer_nothing_are_looked_up_seldom_whatever_others_offer() -> None:
    asked: list[int] = []

    class Offers(SimulatedDrafter):
        def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            asked.extend(request.seq_id for request in requests)
            drafts = super().draft(requests)
            return [draft if request.seq_id else Draft() for draft, request in zip(drafts, requests, strict=True)]

    drafter = Offers("lookup", Process(lambda _p: 1.0, lambda _p: 8.0), Clock())
    controller = Controller([drafter], Memory(), costs=Costs(ROWS), clock=Clock())  # type: ignore[arg-type]
    histories = [list(range(8)) for _ in range(2)]
    for seq_id, history in enumerate(histories):
        controller.begin(seq_id, history)
    n_rounds = 100
    for _ in range(n_rounds):
        requests = [DraftRequest(i, each, len(each), len(each), 8, n_entries=2) for i, each in enumerate(histories)]
        for request, proposal in zip(requests, controller.propose(requests), strict=True):
            n_drafted = len(proposal.draft.tokens)
            histories[request.seq_id].extend(range(request.position, request.position + 1 + n_drafted))
            if n_drafted:
                controller.accept(request.seq_id, proposal, n_drafted)
    assert asked.count(1) == n_rounds
    assert asked.count(0) < n_rounds / 2
