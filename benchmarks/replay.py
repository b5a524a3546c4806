"""What ``auto`` makes of real texts on a machine whose decodes take what a table says, so without any noise.

    python benchmarks/replay.py MODEL [--tokens N] [--orders N] [--curve 1:1,2:1.85,...]

The model answers the prompts of ``pyspec bench`` once. Then the controller plays these texts again and again, with the
workloads in another order each time and each alone, and times that scatter by 5 %. Prints how many times as fast as
plain decoding that is, and how well signals tell which tokens will stand (mean log loss of a token; 0 knows all). It
does so for two signals of ``suffix``: its own, and the length of the match alone.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyspec
from pyspec import hub
from pyspec.bench import load_workload, workload_names
from pyspec.drafters import DraftRequest
from pyspec.drafters.automatic import OPTIONS
from pyspec.drafters.controller import Controller
from pyspec.drafters.matching import signals_of
from pyspec.drafters.suffix import Suffix
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import Draft
from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.curves import CostCurve, Level
from pyspec.speculation.round import Outcome

Q4_1_ON_TWO_CORES = "1:1,2:1.85,3:2.55,4:2.95,5:3.6,6:3.9,7:4.6,8:4.75,9:5.25,10:5.8,12:6.45,16:8.3"
PLAIN, TURN = 0.008, 0.0005  # seconds of a decode, and that it takes longer after one of another number of rows
LOOK, OTHER = 0.00023, 0.00015  # seconds of a look-up, and of the rest of a round
LONGEST = 16


class Text(NamedTuple):
    """A prompt, and what the model said."""

    workload: str
    prompt: list[int]
    answer: list[int]


class Memory:
    """One that drops what was rejected."""

    rollback = RollbackKind.TRIM
    bound = 0
    one_ubatch = False


class ByLength(Suffix):
    """Says of its tokens how long the match is that they continue."""

    reads_only = True

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Look up, and replace the signals."""
        found = []
        for draft, request in zip(super().draft(requests), requests, strict=True):
            length = self._seats[request.seq_id].automaton.match.length
            found.append(Draft(draft.tokens, signals=signals_of(max(1, length), len(draft.tokens))))
        return found


class Machine:
    """Plays texts with a controller; time is a number that decodes and look-ups add to."""

    def __init__(self, kind: type[Suffix], curve: Mapping[int, float], seed: int) -> None:
        self.now = 0.0
        self._random = random.Random(seed)  # noqa: S311 - times
        self._curve = CostCurve(Level(), {n: PLAIN * times for n, times in curve.items()})
        costs = Costs({n: self._curve.seconds(n) for n in curve}, turn=TURN)
        suffix = kind(**OPTIONS["suffix"])
        self._controller = Controller([suffix], Memory(), costs=costs, clock=lambda: self.now)  # type: ignore[arg-type]
        self._n_entries = 1

    def play(self, text: Text) -> float:
        """Return the seconds that a text took."""
        whole, history = text.prompt + text.answer, list(text.prompt)
        self._controller.begin(0, history)
        began = self.now
        while len(history) < len(whole) - 1:
            self._round(whole, history)
        return self.now - began

    def _round(self, whole: Sequence[int], history: list[int]) -> None:
        """Let a draft stand as far as the text goes on like it."""
        controller, began, n = self._controller, self.now, len(history)
        proposals = controller.rest([0], 1)
        if proposals is None:
            budget = max(1, min(LONGEST, len(whole) - n - 2))
            proposals = controller.propose([DraftRequest(0, history, whole[n], n, budget)])
            self.now += LOOK
        (proposal,) = proposals
        drafted, n_accepted = proposal.draft.tokens, 0
        while n_accepted < min(len(drafted), len(whole) - n - 2) and drafted[n_accepted] == whole[n + 1 + n_accepted]:
            n_accepted += 1
        looked, n_entries = self.now, 1 + len(drafted)
        turn, self._n_entries = TURN * (n_entries != self._n_entries), n_entries
        seconds = (self._curve.seconds(n_entries) + turn) * max(0.7, self._random.gauss(1.0, 0.05))
        self.now += seconds + OTHER
        emitted = tuple(whole[n + 1 : n + 2 + n_accepted])
        history += whole[n : n + 1 + n_accepted]
        if drafted:
            controller.accept(0, proposal, n_accepted)
        stages = {"draft": looked - began, "verify": seconds, "total": self.now - began}
        outcome = Outcome(0, n, whole[n], proposal, n_accepted, emitted, None, "greedy", "trim", (), stages)
        controller.played([Decoded(n_entries, reading=False, seconds=seconds)], [outcome])


def answered(model: str, n_tokens: int) -> list[Text]:
    """Let a model answer the prompts of all workloads."""
    texts = []
    with pyspec.Engine(pyspec.Model(hub.resolve(model)), speculation=pyspec.Speculation("suffix")) as engine:
        for name in workload_names():
            for prompt in load_workload(name).prompts:
                tokens = engine.model.vocab.tokenize(prompt)
                texts.append(Text(name, tokens, list(engine.generate(tokens, max_tokens=n_tokens).tokens)))
    return texts


def ratio(texts: Sequence[Text], seconds: Mapping[int, float]) -> float:
    """Return how many times as fast as plain decoding texts were."""
    return sum(len(text.answer) for text in texts) * (PLAIN + OTHER) / sum(seconds[id(text)] for text in texts)


def log_loss(kind: type[Suffix], texts: Sequence[Text]) -> float:
    """Return the mean log loss of what is expected of each drafted token before it is known."""
    acceptance, losses = Acceptance(), []
    for text in texts:
        drafter, whole = kind(**OPTIONS["suffix"]), text.prompt + text.answer
        acceptance.begin(0)
        for n in range(len(text.prompt), len(whole) - 1):
            request = DraftRequest(0, whole[:n], whole[n], n, LONGEST, wants_signals=True)
            (draft,) = drafter.draft([request])
            for i, (token, signal) in enumerate(zip(draft.tokens, draft.signals or (), strict=False)):
                if n + 1 + i >= len(whole):
                    break
                chance, right = acceptance.chance(0, "suffix", signal, i), token == whole[n + 1 + i]
                losses.append(-math.log(chance if right else 1.0 - chance))
                acceptance.learn(0, "suffix", i, signal, right=right)
                if not right:
                    break
    return statistics.fmean(losses)


def curve_of(text: str) -> dict[int, float]:
    """Return rows to how many times as long as a single one they take, written like ``Q4_1_ON_TWO_CORES``."""
    return {int(n): float(times) for n, times in (pair.split(":") for pair in text.split(","))}


def main() -> None:
    """Answer, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--orders", type=int, default=16, help="in which the workloads are played")
    parser.add_argument("--curve", type=curve_of, default=Q4_1_ON_TWO_CORES, help="rows to times as long as one takes")
    args = parser.parse_args()
    texts = answered(args.model, args.tokens)
    names = list(dict.fromkeys(text.workload for text in texts))
    print(f"{'signal':<8}{'':<7}" + "".join(f"{name:>17}" for name in names) + f"{'log loss':>10}")
    for kind in (Suffix, ByLength):
        together: dict[str, list[float]] = {name: [] for name in names}
        alone: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(args.orders):
            order = random.Random(seed).sample(names, len(names))  # noqa: S311 - an order
            machine = Machine(kind, args.curve, seed)
            seconds = {id(text): machine.play(text) for name in order for text in texts if text.workload == name}
            for name in names:
                own = [text for text in texts if text.workload == name]
                together[name].append(ratio(own, seconds))
                machine = Machine(kind, args.curve, seed)
                alone[name].append(ratio(own, {id(text): machine.play(text) for text in own}))
        loss = log_loss(kind, texts)
        for label, found in (("all", together), ("alone", alone)):
            means = "".join(f"{statistics.fmean(found[name]):>17.3f}" for name in names)
            print(f"{'own' if kind is Suffix else 'length':<8}{label:<7}{means}{loss:>10.3f}")


if __name__ == "__main__":
    main()
