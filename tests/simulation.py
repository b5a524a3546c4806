"""A machine without a model: decodes take what a table says, drafters are right as often as a process says.

The token at position p of any sequence is p, so every draft can be judged without a target. Time is a number that
decodes and drafters add to. Policies are compared on the same text: whether a drafter is right at a position does not
depend on when it is asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.chain import Chain
from pyspec.drafters.controller import Controller
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.curves import CostCurve, Level
from pyspec.speculation.draft import Draft, DraftRequest, Needs, Proposal, Proposer, TokenView
from pyspec.speculation.round import Outcome

WRONG = 1 << 30
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 64)
COLUMNS = {  # seconds of a decode of one row, and how many times as long more rows take: performance of a small CPU
    "Q4_1": (0.0106, (1, 1.52, 2.18, 2.28, 3.53, 4.73, 5.43, 7.84, 28.4)),
    "F16": (0.0154, (1, 1.32, 1.41, 1.73, 2.03, 2.60, 2.77, 4.62, 10.3)),
    "1.5B": (0.057, (1, 1.63, 2.29, 2.49, 3.71, 5.96, 6.83, 8.91, 27.9)),
}


def curve_of(column: str) -> dict[int, float]:
    """Return rows to seconds."""
    first, times = COLUMNS[column]
    return {n: first * t for n, t in zip(ROWS, times, strict=True)}


class Clock:
    """Time as a number."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Process:
    """How good a drafter is.

    Attributes:
        chance: Position to the chance that it is right there.
        signal: Position to what it says of that; None says nothing.
        offers: Position to whether it has anything to propose there.
        seed: Which of all texts with these chances.
    """

    chance: Callable[[int], float]
    signal: Callable[[int], float] | None = None
    offers: Callable[[int], bool] = lambda _position: True
    seed: int = 0


@dataclass
class SimulatedDrafter(ModelFreeDrafter):
    """Drafts by a process, and takes its time.

    Attributes:
        name: Its name.
        process: How good it is.
        clock: What it adds to.
        fixed: Seconds of a call.
        step: Seconds per step.
        growth: Sequences to how many times as long a step takes.
        n_max: Longest draft.
    """

    name: str
    process: Process
    clock: Clock
    fixed: float = 10e-6
    step: float = 0.0
    growth: Callable[[int], float] = lambda _n: 1.0
    n_max: int = 8
    needs: Needs = Needs.NOTHING
    read: dict[int, int] = field(default_factory=dict)
    right: dict[int, Any] = field(default_factory=dict)
    n_calls: int = 0

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        self.read[seq_id] = len(tokens)
        chances = np.array([self.process.chance(position) for position in range(6000)])
        numbers = np.random.default_rng((self.process.seed, seq_id)).random(6000)
        self.right[seq_id] = numbers < chances

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.n_calls += 1
        drafts = [self._answer(request) for request in requests]
        n_steps = max(1, *(len(draft.tokens) for draft in drafts))
        growth = self.growth(len(requests))
        missing = max(request.position - self.read[request.seq_id] for request in requests)
        self.clock.now += self.fixed + growth * self.step * (n_steps + 0.4 * max(0, missing - 2))
        for request in requests:
            self.read[request.seq_id] = request.position
        return drafts

    def _answer(self, request: DraftRequest) -> Draft:
        tokens: list[int] = []
        signals: list[float] = []
        if self.process.offers(request.position):
            right = True
            while len(tokens) < min(request.budget, self.n_max):
                position = request.position + 1 + len(tokens)
                right = right and bool(self.right[request.seq_id][position])
                tokens.append(position if right else WRONG)
                if self.process.signal is not None:
                    signals.append(self.process.signal(position))
                    if request.judge is not None and not request.judge(signals[-1]):
                        break
        return Draft(tuple(tokens), signals=tuple(signals) if signals and request.wants_signals else None)


@dataclass
class SimulatedModel(SimulatedDrafter):
    """One with a model, whose time is worth a thought."""

    n_model_tokens: int = 0
    heeds_judge: bool = True
    reads_late: bool = False


class Memory:
    """As much of a memory as the controller asks for."""

    def __init__(self, kind: RollbackKind = RollbackKind.TRIM, bound: int = 0) -> None:
        self.rollback = kind
        self.bound = bound
        self.one_ubatch = kind is RollbackKind.BOUNDED


class Fixed(Chain):
    """One drafter, always asked for drafts of one length."""

    def __init__(self, drafter: Any, length: int) -> None:
        super().__init__([drafter])
        self.length = length

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return super().propose([_with_budget(request, min(request.budget, self.length)) for request in requests])


def _with_budget(request: DraftRequest, budget: int) -> DraftRequest:
    return DraftRequest(request.seq_id, request.tokens, request.pending, request.position, budget)


@dataclass
class Played:
    """What came out of a run."""

    seconds: float
    n_tokens: int
    n_rounds: int

    @property
    def rate(self) -> float:
        return self.n_tokens / self.seconds


@dataclass
class Simulation:
    """Runs policies on a machine.

    Attributes:
        column: Which machine.
        n_slots: Sequences.
        n_tokens: Tokens per sequence, on average.
        noise: Spread of the times, as a share.
        load: Position to a factor on all times.
        other: Seconds of a round beside decodes and drafts.
        turn: Seconds that a decode takes longer after one of another number of entries.
    """

    column: str
    n_slots: int = 1
    n_tokens: int = 2000
    noise: float = 0.05
    load: Callable[[int], float] = lambda _position: 1.0
    other: float = 150e-6
    turn: float = 0.0

    def curve(self) -> CostCurve:
        return CostCurve(Level(), curve_of(self.column))

    def play(self, proposer: Proposer, clock: Clock) -> Played:
        """Emit the tokens, and return what that took."""
        curve, random_ = self.curve(), random.Random(5)  # noqa: S311 - times
        histories = [list(range(8)) for _ in range(self.n_slots)]
        for seq_id, history in enumerate(histories):
            proposer.begin(seq_id, history)  # type: ignore[attr-defined]
        clock.now, n_rounds, n_emitted = 0.0, 0, 0
        running, n_before = range(self.n_slots), 0
        while n_emitted < self.n_slots * self.n_tokens:
            began, n_rounds = clock.now, n_rounds + 1
            requests = [
                DraftRequest(i, histories[i], len(histories[i]), len(histories[i]), 16, n_entries=len(running))
                for i in running
            ]
            proposals = list(proposer.propose(requests)) if proposer.n_max else [Proposal(Draft(), None)] * len(running)
            drafted = clock.now
            slow = self.load(len(histories[running[0]])) * max(0.5, random_.gauss(1.0, self.noise))
            if random_.random() < 0.02 and self.noise:
                slow *= 2
            clock.now = began + (drafted - began) * self.load(len(histories[running[0]]))
            drafted = clock.now
            n_entries = len(running) + sum(len(proposal.draft.tokens) for proposal in proposals)
            clock.now += (curve.seconds(n_entries) + (self.turn if n_entries != n_before else 0.0)) * slow
            n_before = n_entries
            decoded = Decoded(n_entries, reading=False, seconds=clock.now - drafted)
            clock.now += self.other
            seconds = {"draft": drafted - began, "verify": decoded.seconds, "total": clock.now - began}
            outcomes = []
            for i, proposal in zip(running, proposals, strict=True):
                tokens, position = proposal.draft.tokens, len(histories[i])
                n_right = next((k for k, token in enumerate(tokens) if token == WRONG), len(tokens))
                histories[i].extend(range(position, position + 1 + n_right))
                n_emitted += n_right + 1
                if tokens:
                    proposer.accept(i, proposal, n_right)
                emitted = tuple(range(position + 1, position + 2 + n_right))
                outcomes.append(
                    Outcome(i, position, position, proposal, n_right, emitted, None, "match", "trim", (), seconds)
                )
            proposer.played([decoded], outcomes)
        return Played(clock.now, n_emitted, n_rounds)

    def auto(
        self,
        make: Callable[[Clock], list[Any]],
        *,
        times: Mapping[int, float] | None = None,
        turn: float = 0.0,
        **options: Any,
    ) -> tuple[Played, Controller]:
        """Play with the controller, which knows the machine's curve from a calibration.

        Args:
            make: Returns the drafters.
            times: How many times as long as it should a decode of so many rows took then; others were not measured.
            turn: What turns seemed to cost then.
            options: Of the controller.
        """
        clock, rows = Clock(), (1, 2, 3, 4, 5, 8, 9, 16, *((32,) if self.n_slots > 1 else ()))
        known = {n: self.curve().seconds(n) * factor for n, factor in (times or dict.fromkeys(rows, 1.0)).items()}
        drafters = make(clock)
        steps = {drafter.name: {k: drafter.fixed + k * drafter.step for k in (1, 4)} for drafter in drafters}
        costs = Costs(known, {name: points for name, points in steps.items() if points[4] > points[1]}, turn)
        controller = Controller(drafters, Memory(), costs=costs, clock=clock, **options)  # type: ignore[arg-type]
        return self.play(controller, clock), controller

    def best_fixed(
        self, make: Callable[[Clock], list[Any]], lengths: Sequence[int] = (1, 2, 3, 4, 5, 7, 8)
    ) -> tuple[float, str]:
        """Return the highest rate of a fixed drafter and length, plain decoding among them, and its name."""
        clock = Clock()
        rates = {"plain": self.play(Chain([]), clock).rate}
        for number, drafter in enumerate(make(Clock())):
            for length in lengths:
                clock = Clock()
                one = make(clock)[number]
                rates[f"{drafter.name} {length}"] = self.play(Fixed(one, length), clock).rate
        name = max(rates, key=rates.__getitem__)
        return rates[name], name

    def plain(self) -> float:
        """Return the rate of plain decoding."""
        return self.play(Chain([]), Clock()).rate
