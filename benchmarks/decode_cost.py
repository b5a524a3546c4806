"""What a decode takes by its rows and by the depth of the memory.

    python benchmarks/decode_cost.py MODEL [--threads N] [--depths N ...] [--rows N ...]

Each row attends to all positions before it, so a deep memory makes every row dearer, while the weights are read once
for all of them. Prints the shortest of some decodes in milliseconds, and what a position adds to each row.
"""

from __future__ import annotations

import argparse
import time

import pyspec
from pyspec import hub
from pyspec.errors import ConfigError

_N_TIMES = 9


def batch_of(first: int, n: int, n_vocab: int, *, output: bool) -> pyspec.Batch:
    """Return any tokens from a position on."""
    batch = pyspec.Batch()
    batch.extend([(7 * i + 1) % n_vocab for i in range(first, first + n)], first, 0, output=output)
    return batch


def seconds_of(context: pyspec.Context, depth: int, n: int) -> float:
    """Return the shortest time of a decode of n rows at a depth; the memory is as before then."""
    times = []
    for _ in range(_N_TIMES):
        batch = batch_of(depth, n, context.n_vocab, output=True)
        began = time.perf_counter()
        context.decode(batch)
        times.append(time.perf_counter() - began)
        context.memory.trim(0, depth)
    return min(times)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, or a name of pyspec models list")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 256, 1024, 2048])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    given = parser.parse_args()
    try:
        measure(given)
    except pyspec.PyspecError as error:
        parser.error(str(error))


def measure(given: argparse.Namespace) -> None:
    """Measure and print.

    Raises:
        PyspecError: The model cannot be had, or an argument is not possible with it.
    """
    most = max(given.rows)
    if min(*given.depths, *given.rows) < 1:
        msg = "depths and rows must be at least 1."
        raise ConfigError(msg)
    with pyspec.Model(hub.resolve(given.model)) as model:
        if max(given.depths) + most > model.info.n_ctx_train:
            msg = f"depths and rows reach {max(given.depths) + most}; the model's context is {model.info.n_ctx_train}."
            raise ConfigError(msg)
        config = pyspec.ContextConfig(n_ctx=max(given.depths) + most, n_threads=given.threads, n_outputs_max=most)
        with pyspec.Context(model, config) as context:
            show(context, given)


def show(context: pyspec.Context, given: argparse.Namespace) -> None:
    """Measure, and print the table."""
    print("depth  " + "".join(f"{n:>10} rows" for n in given.rows))
    first: dict[int, float] = {}
    read = 0
    for depth in sorted(given.depths):
        while read < depth:
            piece = min(context.n_ubatch, depth - read)
            context.decode(batch_of(read, piece, context.n_vocab, output=False))
            read += piece
        times = {n: seconds_of(context, depth, n) for n in given.rows}
        first = first or times
        deeper = depth - min(given.depths)
        added = {n: (times[n] - first[n]) / n / deeper * 1e6 if deeper else 0.0 for n in given.rows}
        print(f"{depth:5}  " + "".join(f"{times[n] * 1e3:8.2f} {added[n]:6.2f}" for n in given.rows))
    print("each: milliseconds, and microseconds per row and position beyond the first depth")


if __name__ == "__main__":
    main()
