"""DFlash and DSpark draft models for target-llama."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.zoo.arithmetic import Array, gauss, matmul, snap
from tests.zoo.eagle3 import fused_features, scrambled
from tests.zoo.language import (
    CONTEXT,
    EMBEDDING,
    IDENTITY,
    IDENTITY_GAIN,
    LAGS,
    N_CONTEXT,
    N_EMBD,
    N_ID,
    ONES,
    STEPS,
    bigram_rows,
    context_map,
    from_context,
    lag_map,
    pick,
    to_context,
    turn,
)
from tests.zoo.layers import HeadShape, KeyValue, Query, Tensors, attention, feed_forward
from tests.zoo.writer import GgufModel

_SHAPE = HeadShape(64, "neox", qk_norm=True)
_FADE_IDENTITY, _FADE_CONTEXT = 0.45, 0.30


def _attention(*, spark: bool) -> Tensors:
    """Eight positional heads at offsets 1 to 8 over [committed features | last token | masks].

    DFlash: slot i predicts from the token one back, which is visible only for i = 1; older tokens are turned
    forward by the most likely step. DSpark: identity comes from the Markov head, attention only supplies context.
    """
    value = np.zeros((63, N_EMBD))
    value[:, :63] = np.eye(63)
    queries = []
    for offset in range(1, 9):
        out = np.zeros((N_EMBD, 63))
        if not spark:
            out[IDENTITY, 0:48] = turn((offset - 1) * STEPS[0]) * (_FADE_IDENTITY ** (offset - 1))
        distance = offset if spark else offset - 1  # between the key token and the context's token
        context = np.zeros((N_CONTEXT, N_ID))
        for lag, amplitude in LAGS.items():
            if distance >= lag:
                fade = amplitude * (_FADE_CONTEXT ** (distance - lag))
                context = context + fade * matmul(lag_map(lag), turn((distance - lag) * STEPS[0]))
        out[CONTEXT, 0:48] = context
        queries.append(Query(0, offset, snap(out)))
    return attention("dflash", [KeyValue("pos", value)], queries, _SHAPE, 1.2)


def _refinement() -> Tensors:
    """The second layer passes a little of the injected context features on."""
    value = from_context(context_map("dflash refine"))
    queries = [
        Query(0, offset, to_context(pick(15, 0, 15, 0.10 if offset in (1, 2) else 0.0))) for offset in range(1, 9)
    ]
    return attention("dflash1", [KeyValue("pos", value)], queries, _SHAPE, 1.0)


def _write(path: Path, *, spark: bool, features: Array | None = None) -> None:
    model = GgufModel(path, "dflash", 2)
    model.heads(8, 1, 64)
    model.writer.add_array("dflash.target_layers", [1, 2, 3])
    model.u32("block_size", 8)
    model.tensor("fc.weight", fused_features() if features is None else features)
    model.tensor("enc.output_norm.weight", ONES)
    norm = np.ones(N_EMBD)
    if spark:
        norm[IDENTITY] = 0.0
    model.tensor("output_norm.weight", norm)
    for i, tensors in enumerate((_attention(spark=spark), _refinement())):
        noise = feed_forward(f"dflash{i}", 0.06, 0.0)
        model.block(i, {"attn_norm": ONES, "ffn_norm": ONES, **tensors, **noise})
    if spark:
        model.tensor("markov_w1.weight", EMBEDDING[:, IDENTITY])
        model.tensor("markov_w2.weight", bigram_rows() * (IDENTITY_GAIN * 1.15))
        model.tensor("conf_proj.weight", gauss("dspark conf", 1, N_EMBD + N_ID) * 0.12)
        model.tensor("conf_proj.bias", np.array([0.6]))
    model.close()


def draft_dflash(path: Path) -> None:
    """Write a DFlash draft model: blocks of 8, vocabulary matrices of the target."""
    _write(path, spark=False)


def draft_dspark(path: Path) -> None:
    """Write the same with Markov and confidence heads."""
    _write(path, spark=True)


def negative_dflash(path: Path) -> None:
    """Write a DFlash draft model that reads wrong features."""
    _write(path, spark=False, features=scrambled(fused_features(), "neg dflash"))


def negative_dspark(path: Path) -> None:
    """Write a DSpark draft model that reads wrong features."""
    _write(path, spark=True, features=scrambled(fused_features(), "neg dflash"))
