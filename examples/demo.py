"""Plain against speculative decoding, side by side, on a prompt that suits speculation and on one that does not.

    python examples/demo.py [MODEL.gguf]

Without an argument it takes SmolLM2-135M from the cache (``pyspec models fetch smollm2-135m``). Drafts come from the
text itself, so no second model is needed, and ``auto`` drafts where that pays. Says honestly when nothing is gained.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import pyspec
from pyspec.trace import Comparison, compare

PROMPTS = Path(__file__).parent / "prompts"
MAX_TOKENS = 128
N_PAIRS = 5
MAX_SECONDS = 60  # per prompt; on a crowded machine fewer pairs must do
NOISE = 0.05
SPECULATION = pyspec.Speculation("auto")


@dataclass(frozen=True)
class Row:
    """What was measured on one prompt."""

    prompt: str
    plain_speed: float
    speculative_speed: float
    speed_up: float
    last: pyspec.Result
    comparison: Comparison


def measure(model: pyspec.Model, name: str, console: Console) -> Row:
    """Alternate plain and speculative runs and take medians, because machines are shared and noisy."""
    prompt = (PROMPTS / f"{name}.txt").read_text(encoding="utf-8")
    context = pyspec.ContextConfig(n_ctx=2048)
    began = time.monotonic()
    pairs: list[tuple[float, float]] = []
    with (
        pyspec.Engine(model, context=context, speculation=pyspec.Speculation("none")) as plain,
        pyspec.Engine(model, context=context, speculation=SPECULATION) as speculative,
        console.status(name),
    ):
        while True:
            plain_result = plain.generate(prompt, max_tokens=MAX_TOKENS, n_top=2)
            result = speculative.generate(prompt, max_tokens=MAX_TOKENS, n_top=2)
            pairs.append((plain_result.stats.tokens_per_second, result.stats.tokens_per_second))
            console.print(f"  {name}, pair {len(pairs)}: {pairs[-1][0]:.1f} and {pairs[-1][1]:.1f} tokens/s")
            if len(pairs) > N_PAIRS or (len(pairs) > 1 and time.monotonic() - began > MAX_SECONDS):
                break
    measured = pairs[1:]  # the first pair warms up
    return Row(
        name,
        statistics.median(pair[0] for pair in measured),
        statistics.median(pair[1] for pair in measured),
        statistics.median(pair[1] / pair[0] for pair in measured),
        result,
        compare(plain_result, result),
    )


def table_of(rows: list[Row]) -> Table:
    """Return the speeds as a table."""
    caption = f"tokens/s: medians of {N_PAIRS} alternating runs; ratio: median of the pairs' ratios"
    table = Table("prompt", "plain", "spec.", "ratio", "accepted", "tokens/round", caption=caption)
    for row in rows:
        stats = row.last.stats
        table.add_row(
            row.prompt,
            f"{row.plain_speed:.1f}",
            f"{row.speculative_speed:.1f}",
            f"{row.speed_up:.2f}",
            f"{stats.n_accepted} of {stats.n_drafted}",
            f"{stats.n_emitted / stats.n_rounds:.2f}",
        )
    return table


def answer(row: Row) -> str:
    """Say whether it pays, and whether the output is the same."""
    if row.speed_up > 1 + NOISE:
        speed = f"{row.speed_up:.1f} times as fast as plain decoding"
    elif row.speed_up < 1 - NOISE:
        speed = f"slower ({row.speed_up:.2f}): decode plainly here (--spec-type none)"
    else:
        speed = "no difference worth mentioning"
    return f"{row.prompt}: {speed}; same output: {row.comparison}"


def main() -> None:
    """Run the demo."""
    console = Console()
    path = pyspec.hub.resolve(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
    with pyspec.Model(path) as model:
        console.print(f"{model.path.name}: {model.info.description}, drafts from the text itself (auto)")
        rows = [measure(model, name, console) for name in ("code-editing", "chat")]
    console.print(table_of(rows))
    for row in rows:
        console.print(answer(row))


if __name__ == "__main__":
    main()
