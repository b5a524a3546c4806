"""What several tests of native objects share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import pyspec

PROMPT = [1, 60, 75, 112, 264, 300, 91, 130]  # tokens of the zoo's vocabulary


def make_context(model: pyspec.Model, **settings: Any) -> pyspec.Context:
    """Make a small context with one thread, so that results are exact."""
    chosen = {"n_ctx": 128, "n_batch": 64, "n_threads": 1, **settings}
    chosen.setdefault("n_ubatch", chosen["n_batch"])
    return pyspec.Context(model, pyspec.ContextConfig(**chosen))


def decode(context: pyspec.Context, tokens: Sequence[int], seq_id: int = 0) -> pyspec.Rows:
    """Continue a sequence with tokens in one decode; one row each."""
    batch = pyspec.Batch()
    batch.extend(tokens, context.memory.length(seq_id), seq_id, output=True)
    return context.decode(batch)


def next_row(context: pyspec.Context, token: int, seq_id: int = 0) -> npt.NDArray[np.float32]:
    """Continue a sequence with one token and return a copy of its row."""
    row: npt.NDArray[np.float32] = decode(context, [token], seq_id).logits(0).copy()
    return row


def greedy(context: pyspec.Context, tokens: Sequence[int], n: int) -> list[int]:
    """Generate in the plainest way: one token at a time, no engine."""
    context.memory.clear(0)
    rows = decode(context, tokens)
    found = [rows.argmax(len(rows) - 1)]
    while len(found) < n:
        found.append(decode(context, [found[-1]]).argmax(0))
    return found
