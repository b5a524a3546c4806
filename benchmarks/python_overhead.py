"""How much of a plain decoding step is Python.

    python benchmarks/python_overhead.py MODEL [--spec-type TYPES] [--tokens N] [--slots N] [--limit US]
        [--slot-limit US]

Plays rounds of an engine's scheduler, with one and with several sequences in turns, and subtracts the time inside the
native decode. What is left is Python and the small native calls around it. Prints medians, because machines are shared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import pyspec
from pyspec import hub
from pyspec._native import lib
from pyspec.engine.admission import Admission, admission_of
from pyspec.engine.plan import Plan, checked_speculation, sized
from pyspec.engine.request import Event
from pyspec.engine.slots import Slot
from pyspec.engine.worker import Workshop


class NativeClock:
    """Notes when the native decode begins and ends; it finds the most likely tokens too.

    The notes are two appends per call, because right after a decode, with cold caches, every line of Python counts.
    """

    def __init__(self) -> None:
        self._stamps: list[float] = []
        note, clock, decode = self._stamps.append, time.perf_counter, lib().pys_context_decode

        def call(context: Any, batch: Any) -> Any:
            note(clock())
            status = decode(context, batch)
            note(clock())
            return status

        lib().pys_context_decode = call

    def take(self) -> float:
        """Return the seconds inside since the last call, and forget them."""
        seconds = sum(self._stamps[1::2]) - sum(self._stamps[::2])
        self._stamps.clear()
        return seconds


class Nobody:
    """Takes events and does nothing with them."""

    def __call__(self, event: Event) -> None:
        """Take an event."""


def _reads(slot: Slot) -> bool:
    return slot.request is not None and slot.request.sequence.reading


def measure(workshop: Workshop, admission: Admission, clock: NativeClock, n_slots: int, n_tokens: int) -> list[float]:
    """Return per round the seconds in Python, with so many sequences."""
    scheduler = workshop.scheduler
    for i in range(n_slots):
        request = admission.admit(f"{i}. Once upon a time", Nobody(), max_tokens=n_tokens).request
        scheduler.submit(request)
    while len(scheduler.running) < n_slots or any(_reads(slot) for slot in scheduler.running):
        scheduler.step()
    clock.take()
    python: list[float] = []
    while len(scheduler.running) == n_slots:
        began = time.perf_counter()
        scheduler.step()
        python.append(time.perf_counter() - began - clock.take())
    scheduler.cancel_all()
    return python


def main() -> int:
    """Measure and print; returns 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, or a name of pyspec models list")
    parser.add_argument("--spec-type", default="none")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, help="most microseconds of one slot")
    parser.add_argument("--slot-limit", type=float, help="most microseconds of each further slot")
    given = parser.parse_args()
    clock = NativeClock()  # first: contexts keep the functions that they find
    with pyspec.Model(hub.resolve(given.model)) as model:
        speculation = pyspec.Speculation(given.spec_type)
        context = sized(model, None, speculation, given.slots)
        workshop = Plan(model, checked_speculation(speculation), context, given.slots, 128, None, 0).build(lambda: None)
        admission = admission_of(workshop, speculation)
        one, many = [], []
        for _ in range(given.turns):
            one += measure(workshop, admission, clock, 1, given.tokens)
            many += measure(workshop, admission, clock, given.slots, given.tokens)
        workshop.close()
    first, all_slots = statistics.median(one) * 1e6, statistics.median(many) * 1e6
    further = (all_slots - first) / (given.slots - 1)
    print(f"{first:.0f} us of Python per round of one slot, {further:.0f} us for each further one")
    over = (given.limit is not None and first > given.limit) or (
        given.slot_limit is not None and further > given.slot_limit
    )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
