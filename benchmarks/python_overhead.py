"""How much of a plain decoding step is Python.

    python benchmarks/python_overhead.py MODEL [--tokens N] [--limit MICROSECONDS]

Plays rounds through the engine and subtracts the time inside the native decode and the native choice of a
token. What is left is Python and the small native calls around it. Prints medians, because machines are shared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pyspec
from pyspec import hub
from pyspec._native import lib

NATIVE_WORK = ("pys_context_decode", "pys_sampler_sample")


class NativeClock:
    """Notes when some functions of the native library begin and end.

    The notes are two appends per call, because right after a decode, with cold caches, every line of Python counts.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._stamps: list[float] = []
        for name in names:
            setattr(lib(), name, self._noted(getattr(lib(), name)))

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        note, clock = self._stamps.append, time.perf_counter

        def call(*arguments: Any) -> Any:
            note(clock())
            result = function(*arguments)
            note(clock())
            return result

        return call

    def take(self) -> float:
        """Return the seconds inside since the last call, and forget them."""
        seconds = sum(self._stamps[1::2]) - sum(self._stamps[::2])
        self._stamps.clear()
        return seconds


def measure(engine: pyspec.Engine, clock: NativeClock, n_tokens: int) -> tuple[list[float], list[float]]:
    """Return per step the seconds in Python and the seconds in native work."""
    python: list[float] = []
    native: list[float] = []
    stream = engine.stream("Once upon a time", max_tokens=n_tokens)
    next(stream)  # reads the prompt
    clock.take()
    while True:
        began = time.perf_counter()
        if next(stream, None) is None:
            return python, native
        ended = time.perf_counter()
        native.append(clock.take())
        python.append(ended - began - native[-1])


def main() -> int:
    """Run the benchmark; exit with 1 when Python's share is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="GGUF file or catalogue name, such as smollm2-135m")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--limit", type=float, default=150.0, help="microseconds per step")
    arguments = parser.parse_args()
    clock = NativeClock(NATIVE_WORK)
    with pyspec.Model(hub.resolve(arguments.model)) as model, pyspec.Engine(model) as engine:
        measure(engine, clock, 8)  # warm up
        python, native = measure(engine, clock, arguments.tokens)
    share = statistics.median(python) * 1e6
    print(f"steps                 {len(python)}")
    print(f"Python per step       {share:.0f} us  (10 % to 90 %: {_spread(python)})")
    print(f"native work per step  {statistics.median(native) * 1e6:.0f} us  ({_spread(native)})")
    print(f"limit                 {arguments.limit:.0f} us: {'kept' if share <= arguments.limit else 'EXCEEDED'}")
    return 0 if share <= arguments.limit else 1


def _spread(seconds: list[float]) -> str:
    deciles = statistics.quantiles(seconds, n=10)
    return f"{deciles[0] * 1e6:.0f} to {deciles[-1] * 1e6:.0f} us"


if __name__ == "__main__":
    sys.exit(main())
