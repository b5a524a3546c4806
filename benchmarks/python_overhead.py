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
    """Seconds spent inside some functions of the native library."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.seconds = 0.0
        for name in names:
            setattr(lib(), name, self._timed(getattr(lib(), name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return call


def measure(engine: pyspec.Engine, clock: NativeClock, n_tokens: int) -> tuple[list[float], list[float]]:
    """Return per step the seconds in Python and the seconds in native work."""
    python: list[float] = []
    native: list[float] = []
    stream = engine.stream("Once upon a time", max_tokens=n_tokens)
    next(stream)  # reads the prompt
    while True:
        clock.seconds = 0.0
        began = time.perf_counter()
        if next(stream, None) is None:
            return python, native
        python.append(time.perf_counter() - began - clock.seconds)
        native.append(clock.seconds)


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
