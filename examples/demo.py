"""Plain against speculative decoding, side by side, on a prompt that suits speculation and on one that does not.

    python examples/demo.py [MODEL.gguf]

Without an argument it takes SmolLM2-135M from the cache (``pyspec models fetch smollm2-135m``). Drafts come from the
text itself (ngram-simple), so no second model is needed. Says honestly when speculation does not pay.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import pyspec
from pyspec.trace import Comparison, compare

PROMPTS = Path(__file__).parent / "prompts"
MAX_TOKENS = 128
N_PAIRS = 5
SPECULATION = pyspec.Speculation("ngram-simple", options={"ngram-simple": {"size_n": 4, "size_m": 8}})


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
    plain_speeds, speculative_speeds = [], []
    plain_result, result = pyspec.Result(), pyspec.Result()
    context = pyspec.ContextConfig(n_ctx=2048)
    with (
        pyspec.Engine(model, context=context) as plain,
        pyspec.Engine(model, context=context, speculation=SPECULATION) as speculative,
    ):
        rounds = range(N_PAIRS + 1)
        for i in track(rounds, name, console=console, disable=not console.is_terminal, transient=True):
            plain_result = plain.generate(prompt, max_tokens=MAX_TOKENS, n_top=2)
            result = speculative.generate(prompt, max_tokens=MAX_TOKENS, n_top=2)
            if i:  # the first pair warms up
                plain_speeds.append(plain_result.stats.tokens_per_second)
                speculative_speeds.append(result.stats.tokens_per_second)
    ratios = [ours / plain for ours, plain in zip(speculative_speeds, plain_speeds, strict=True)]
    return Row(
        name,
        statistics.median(plain_speeds),
        statistics.median(speculative_speeds),
        statistics.median(ratios),
        result,
        compare(plain_result, result),
    )


def table_of(rows: list[Row]) -> Table:
    """Return the speeds as a table."""
    table = Table("prompt", "plain tok/s", "speculative tok/s", "speed-up", "accepted", "tokens per round")
    for row in rows:
        stats = row.last.stats
        table.add_row(
            row.prompt,
            f"{row.plain_speed:.1f}",
            f"{row.speculative_speed:.1f}",
            f"{row.speed_up:.2f}x",
            f"{stats.n_accepted} of {stats.n_drafted} ({stats.acceptance:.0%})",
            f"{stats.n_emitted / stats.n_rounds:.2f}",
        )
    return table


def main() -> None:
    """Run the demo."""
    console = Console()
    path = pyspec.hub.resolve(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
    with pyspec.Model(path) as model:
        console.print(f"{model.path.name}: {model.info.description}, drafts from the text itself (ngram-simple)")
        rows = [measure(model, name, console) for name in ("code-editing", "chat")]
    console.print(table_of(rows))
    for row in rows:
        console.print(f"{row.prompt}: same output: {row.comparison}")
    for row in rows:
        if row.speed_up < 1.0:
            console.print(f"{row.prompt}: speculation does not pay here; decode plainly (--spec-type none).")


if __name__ == "__main__":
    main()
