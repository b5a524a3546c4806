"""On a simulated machine the controller is never slower than plain decoding, and as fast as the best fixed setting."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pyspec.drafters.controller import Controller
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.costs import Costs
from pyspec.speculation.draft import FREELY, Candidates, Draft, Drafter, DraftRequest, Drafting, Needs, Proposal
from tests.simulation import (
    COLUMNS,
    WRONG,
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


@pytest.mark.parametrize("n_slots", [1, 4])
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_never_slower_than_plain_and_as_fast_as_the_best_fixed(scenario: str, column: str, n_slots: int) -> None:
    simulation = Simulation(column, n_slots, n_tokens=2000 if n_slots == 1 else 1000)

    def make(clock: Clock) -> list[Any]:
        return [each(simulation, clock) for each in SCENARIOS[scenario]]

    played, controller = simulation.auto(make)
    best, which = simulation.best_fixed(make, (1, 2, 3, 7))
    assert played.rate >= 0.97 * simulation.plain()
    assert played.rate >= 0.97 * best, which
    assert controller.explored_seconds <= 0.01 * played.seconds
