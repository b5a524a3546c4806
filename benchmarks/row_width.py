"""How much a logits row depends on how many rows are computed with it.

    python benchmarks/row_width.py MODEL [--positions N]

Decodes the same text one token at a time and in batches, and compares the rows. Where they differ, two almost equally
likely tokens can change places, in plain against speculative decoding as well; see docs/explanation/losslessness.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

import pyspec

WIDTHS = (2, 4, 8, 16)
TEXT = Path(__file__).parent.parent / "pyspec" / "engine" / "engine.py"


def rows_of(model: pyspec.Model, tokens: list[int], width: int) -> npt.NDArray[np.float32]:
    """Return the logits of every position, decoded ``width`` tokens at a time, [n_tokens, n_vocab]."""
    config = pyspec.ContextConfig(n_ctx=len(tokens), n_outputs_max=max(WIDTHS))
    rows = []
    with pyspec.Context(model, config) as context:
        for first in range(0, len(tokens), width):
            batch = pyspec.Batch()
            batch.extend(tokens[first : first + width], first, output=True)
            decoded = context.decode(batch)
            rows += [decoded.logits(i).copy() for i in range(len(decoded))]
            del decoded
    return np.array(rows)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="GGUF file or catalogue name, such as smollm2-135m")
    parser.add_argument("--positions", type=int, default=400)
    arguments = parser.parse_args()
    with pyspec.Model(pyspec.hub.resolve(arguments.model)) as model:
        tokens = model.vocab.tokenize(TEXT.read_text(encoding="utf-8"))[: arguments.positions]
        alone = rows_of(model, tokens, 1)
        ordered = np.sort(alone, axis=1)
        gaps = ordered[:, -1] - ordered[:, -2]
        print(f"{len(tokens)} positions, standard deviation of the logits {alone.std():.2f}")
        for width in WIDTHS:
            together = rows_of(model, tokens, width)
            differences = np.abs(together - alone)
            changed = together.argmax(axis=1) != alone.argmax(axis=1)
            differing = np.flatnonzero(differences.max(axis=1) > 0.0)
            first = f"first at position {differing[0]}" if len(differing) else "nowhere"
            print(
                f"width {width:2}: root mean square {np.sqrt(np.square(differences).mean()):.3f}, {first}; best token "
                f"changed {changed.sum()} times, largest gap there {gaps[changed].max(initial=0.0):.3f}"
            )


if __name__ == "__main__":
    main()
