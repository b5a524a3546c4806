"""Rows of a wide decode are those of narrow ones. On a CPU with matrix tiles this runs through them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pyspec
from tests.helpers import decode, make_context
from tests.llama.conftest import NewContext

TOKENS = [1, 60, 75, 112, 264, 300, 91, 130, 99, 100, 101, 270, 280, 290, 301, 302]
MODELS = ["target-llama", "target-swa", "target-mamba", "target-lfm2", "target-mtp", "target-mtp-chain"]


@pytest.mark.parametrize(("name", "n_threads"), [*((name, 1) for name in MODELS), ("target-llama", 2)])
def test_every_width_gives_the_same_rows(new_context: NewContext, name: str, n_threads: int) -> None:
    context = new_context(name, n_threads=n_threads)
    narrow = new_context(name)
    single = [decode(narrow, [token]).logits(0).copy() for token in TOKENS]
    for width in range(2, 9) if n_threads == 1 else (8,):
        context.memory.clear()
        rows = []
        for first in range(0, len(TOKENS), width):
            part = decode(context, TOKENS[first : first + width])
            rows += [part.logits(i).copy() for i in range(len(part))]
        np.testing.assert_allclose(rows, single, atol=2e-3, err_msg=f"width {width}")
        assert [int(row.argmax()) for row in rows] == [int(row.argmax()) for row in single]


@pytest.mark.parametrize("name", MODELS)
def test_the_same_width_gives_the_same_bits(new_context: NewContext, name: str) -> None:
    first, second = new_context(name), new_context(name)
    for part in (TOKENS[:3], TOKENS[3:8], TOKENS[8:]):
        ours, theirs = decode(first, part), decode(second, part)
        for i in range(len(part)):
            np.testing.assert_array_equal(ours.logits(i), theirs.logits(i))


def test_sequences_in_one_batch_do_not_mix(new_context: NewContext) -> None:
    context, alone = new_context(n_seq_max=3), new_context()
    batch = pyspec.Batch()
    parts = [TOKENS[:6], TOKENS[4:11], TOKENS[9:]]
    for seq_id, part in enumerate(parts):
        batch.extend(part, 0, seq_id, output=True)
    rows = context.decode(batch)
    at = 0
    for part in parts:
        alone.memory.clear()
        expected = decode(alone, part)
        for i in range(len(part)):
            np.testing.assert_allclose(rows.logits(at + i), expected.logits(i), atol=2e-3)
        at += len(part)


@pytest.mark.parametrize("repack", [True, False])
def test_a_real_quantised_model_agrees_with_itself(smollm2: Path, repack: bool) -> None:  # noqa: FBT001
    config = pyspec.ModelConfig(repack=repack)
    with pyspec.Model(smollm2, config) as model, make_context(model) as context:
        tokens = model.vocab.tokenize("The quick brown fox jumps over the lazy dog.")[:8]
        single = [decode(context, [token]).logits(0).copy() for token in tokens]
        for width in (2, 5, 8):
            context.memory.clear()
            rows = decode(context, tokens[:width])
            for i in range(width):
                assert np.corrcoef(rows.logits(i), single[i])[0, 1] > 0.999
                assert np.abs(rows.logits(i) - single[i]).max() < 1.0
