"""What operations of Python cost right after a decode, when no cache holds their code any more.

    python benchmarks/cold_operations.py MODEL [--times N]

Decodes a token and clocks a function that does what every round does (an object, a list, a dictionary, a method, a
property, a loop, a clock); the same with one operation more, in random order. Prints the medians of the differences,
in microseconds: what the first operation of its kind adds to a round. A tiny model shows what they cost in a cache.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import textwrap
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyspec
from pyspec import hub
from pyspec._native.batches import BatchBuffer

BASE = """
thing = Slotted(1, 2, 3, 4)
for _ in pairs:
    made = []
    made.append(1)
    known[5] = 1
    seconds["a"] += clock() - 1.5
thing.method()
thing.last
"""

OPERATIONS = (
    "Named(1, 2)",
    "Slotted(1, 2, 3, 4)",
    "[each for each in numbers]",
    "for i, each in enumerate(numbers): pass",
    "for i in range(3): pass",
    "for left, right in zip(numbers, numbers): pass",
    "with thing: pass",
    "of_array[5] = 3",
    "of_array[5]",
    "of_ctypes[5] = 3",
    "of_ctypes[5]",
    "of_memory[5] = 3",
    "threading.get_ident()",
    "known.values()",
    "text[2:4]",
    "[*numbers, 3]",
    "pyspec.Finish.LENGTH",
)


class Named(NamedTuple):
    """A named tuple."""

    a: int
    b: int


@dataclass(slots=True)
class Slotted:
    """An object with slots."""

    a: int
    b: int
    c: int
    d: int

    @property
    def last(self) -> int:
        """The last of them."""
        return self.d

    def method(self) -> None:
        """Do nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def functions() -> dict[str, Callable[[], None]]:
    """Return a function per operation, and one without any."""
    names: dict[str, Any] = {
        **globals(),
        "pairs": [(1, 2)],
        "numbers": [1, 2, 3],
        "known": {0: 1},
        "seconds": {"a": 0.0},
        "clock": time.perf_counter,
        "text": bytearray(b"text"),
        "of_array": array("i", bytes(40)),
        "of_ctypes": BatchBuffer().best,
        "of_memory": memoryview(bytearray(40)).cast("i"),
        "threading": threading,
    }
    made = {}
    for operation in ("", *OPERATIONS):
        exec("def function():\n" + textwrap.indent(BASE + operation, "    "), names)  # noqa: S102 - what stands above
        made[operation] = names["function"]
    return made


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, or a name of pyspec models list")
    parser.add_argument("--times", type=int, default=40, help="how often each operation is clocked")
    given = parser.parse_args()
    measured = functions()
    taken: dict[str, list[float]] = {operation: [] for operation in measured}
    order = [*measured] * given.times
    random.Random(1).shuffle(order)  # noqa: S311 - no secret
    config = pyspec.ContextConfig(n_ctx=512)
    with pyspec.Model(hub.resolve(given.model)) as model, pyspec.Context(model, config) as context:
        batch = pyspec.Batch()
        for i, operation in enumerate(order):
            if i % config.n_ctx == 0:
                context.memory.clear()
            batch.clear()
            batch.add(5, i % config.n_ctx, 0, output=True)
            function = measured[operation]
            context.decode(batch)
            began = time.perf_counter()
            function()
            taken[operation].append(time.perf_counter() - began)
    base = statistics.median(taken[""])
    print(f"{base * 1e6:6.1f}  what every round does")
    for operation in OPERATIONS:
        print(f"{(statistics.median(taken[operation]) - base) * 1e6:+6.1f}  {operation}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
