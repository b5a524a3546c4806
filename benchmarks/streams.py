"""Tokens per second with 1, 2, 4 and 8 requests at once.

    python benchmarks/streams.py MODEL [--md DRAFT] [--spec-type TYPES] [--threads N] [--tokens N] [--turns N]

Each number of slots has an engine of its own, and all play the same prompts in turns, with and without speculation, in
one process; printed are medians of total tokens per second, and their ratio to one slot without speculation. MODEL
is a file or a name of ``pyspec models list``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import pyspec

SLOTS = (1, 2, 4, 8)
PROMPTS = Path(__file__).parents[1] / "examples/prompts"


def total_speed(engine: pyspec.Engine, prompts: list[str], n_tokens: int) -> float:
    """Return tokens per second of all prompts together."""
    began = time.perf_counter()
    results = engine.generate_many(prompts, max_tokens=n_tokens, progress=False)
    return sum(len(result.tokens) for result in results) / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--md", help="a draft model")
    parser.add_argument("--spec-type", default="ngram-simple")
    parser.add_argument("--threads", type=int, help="of the target; all cores otherwise")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    texts = [path.read_text(encoding="utf-8") for path in sorted(PROMPTS.glob("*.txt"))]
    prompts = [f"{i}. {text}" for i, text in enumerate((texts * SLOTS[-1])[: SLOTS[-1]])]
    with pyspec.Model(pyspec.hub.resolve(given.model)) as model:
        draft_model = pyspec.Model(pyspec.hub.resolve(given.md)) if given.md else None
        speculation = pyspec.Speculation(given.spec_type, draft_model)
        context = pyspec.ContextConfig(n_threads=given.threads) if given.threads else None
        kinds = {"plain": None, given.spec_type: speculation}
        engines = {
            (name, n_slots): pyspec.Engine(model, speculation=kind, context=context, n_slots=n_slots)
            for name, kind in kinds.items()
            for n_slots in SLOTS
        }
        speeds: dict[tuple[str, int], list[float]] = {key: [] for key in engines}
        for _ in range(given.turns):
            for key, engine in engines.items():
                speeds[key].append(total_speed(engine, prompts, given.tokens))
        one = statistics.median(speeds["plain", 1])
        print(f"{'slots':>5}  {'drafters':<24} {'tokens/s':>9}  {'ratio':>5}")
        for (name, n_slots), measured in speeds.items():
            median = statistics.median(measured)
            print(f"{n_slots:>5}  {name:<24} {median:>9.1f}  {median / one:>5.2f}")
        for engine in engines.values():
            engine.close()


if __name__ == "__main__":
    main()
