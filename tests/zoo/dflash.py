"""DFlash and DSpark draft models for target-llama."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.zoo.arithmetic import Array, gauss, matmul, snap
from tests.zoo.eagle3 import fused_features, ordered_features, scrambled
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
_OFFSETS = range(1, 9)
_LAYERS = (1, 2, 3)
ORDERED_LAYERS, SWAPPED_LAYERS = (0, 2, 3), (3, 2, 0)  # for ordered_features()


@dataclass(frozen=True)
class _Spark:
    """What a DSpark draft model has.

    Attributes:
        from_anchor: The first slot, with the last token in it, already predicts; else only the masks do.
        confidence: It has a confidence head.
    """

    from_anchor: bool = True
    confidence: bool = True


def block_attention(identities: Sequence[Array], ahead: int = 0) -> Tensors:
    """Eight positional heads at offsets 1 to 8 over [committed features | last token | masks].

    Masks have neither identity nor context, so slot i sees something only from offset i on.

    Args:
        identities: What each head adds to the identity, [48, 48]; none for no identity at all.
        ahead: Slot i predicts the token at its own position (0) or the one behind it (1).
    """
    value = np.zeros((63, N_EMBD))
    value[:, :63] = np.eye(63)
    queries = []
    for offset in _OFFSETS:
        out = np.zeros((N_EMBD, 63))
        if identities:
            out[IDENTITY, 0:48] = identities[offset - 1]
        distance = offset - 1 + ahead  # between the key token and the context's token
        context = np.zeros((N_CONTEXT, N_ID))
        for lag, amplitude in LAGS.items():
            if distance >= lag:
                fade = amplitude * (_FADE_CONTEXT ** (distance - lag))
                context = context + fade * matmul(lag_map(lag), turn((distance - lag) * STEPS[0]))
        out[CONTEXT, 0:48] = context
        queries.append(Query(0, offset, snap(out)))
    return attention("dflash", [KeyValue("pos", value)], queries, _SHAPE, 1.2)


def _likeliest() -> list[Array]:
    """The token one back is visible only in slot 1; older ones are turned forward by the most likely step."""
    return [turn((offset - 1) * STEPS[0]) * (_FADE_IDENTITY ** (offset - 1)) for offset in _OFFSETS]


def _refinement() -> Tensors:
    """The second layer passes a little of the injected context features on."""
    value = from_context(context_map("dflash refine"))
    queries = [Query(0, offset, to_context(pick(15, 0, 15, 0.10 if offset in (1, 2) else 0.0))) for offset in _OFFSETS]
    return attention("dflash1", [KeyValue("pos", value)], queries, _SHAPE, 1.0)


def start(path: Path, layers: Sequence[int], features: Array) -> GgufModel:
    """Begin a draft model with blocks of 8 and two layers; what reads the target is in it."""
    model = GgufModel(path, "dflash", 2)
    model.heads(8, 1, 64)
    model.writer.add_array("dflash.target_layers", list(layers))
    model.u32("block_size", 8)
    model.tensor("fc.weight", features)
    model.tensor("enc.output_norm.weight", ONES)
    return model


def block_layers(first: Tensors) -> list[Tensors]:
    """Return both layers with their norms, given the attention of the first one."""
    return [
        {"attn_norm": ONES, "ffn_norm": ONES, **tensors, **feed_forward(f"dflash{i}", 0.06, 0.0)}
        for i, tensors in enumerate((first, _refinement()))
    ]


def _write(
    path: Path, spark: _Spark | None = None, *, features: Array | None = None, layers: Sequence[int] = _LAYERS
) -> None:
    """Write DFlash, or DSpark: its identity comes from the Markov head, attention only supplies context."""
    model = start(path, layers, fused_features() if features is None else features)
    norm = np.ones(N_EMBD)
    if spark:
        norm[IDENTITY] = 0.0
    model.tensor("output_norm.weight", norm)
    first = block_attention([], ahead=int(spark.from_anchor)) if spark else block_attention(_likeliest())
    for i, tensors in enumerate(block_layers(first)):
        model.block(i, tensors)
    if spark:
        _spark_heads(model, spark)
    model.close()


def _spark_heads(model: GgufModel, spark: _Spark) -> None:
    model.tensor("markov_w1.weight", EMBEDDING[:, IDENTITY])
    model.tensor("markov_w2.weight", bigram_rows() * (IDENTITY_GAIN * 1.15))
    if spark.confidence:
        model.tensor("conf_proj.weight", gauss("dspark conf", 1, N_EMBD + N_ID) * 0.12)
        model.tensor("conf_proj.bias", np.array([0.6]))
    else:
        model.flag("has_confidence_head", value=False)
    if not spark.from_anchor:
        model.flag("sample_from_anchor", value=False)


def draft_dflash(path: Path) -> None:
    """Write a DFlash draft model: blocks of 8, vocabulary matrices of the target."""
    _write(path)


def draft_dspark(path: Path) -> None:
    """Write the same with Markov and confidence heads."""
    _write(path, _Spark())


def draft_dspark_noanchor(path: Path) -> None:
    """Write a DSpark draft model that predicts from the masks only, at most 7 tokens."""
    _write(path, _Spark(from_anchor=False), features=ordered_features(), layers=ORDERED_LAYERS)


def draft_dspark_noconf(path: Path) -> None:
    """Write a DSpark draft model without confidence head."""
    _write(path, _Spark(confidence=False), features=ordered_features(), layers=ORDERED_LAYERS)


def negative_dflash(path: Path) -> None:
    """Write a DFlash draft model that reads wrong features."""
    _write(path, features=scrambled(fused_features(), "neg dflash"))


def negative_dspark(path: Path) -> None:
    """Write a DSpark draft model that reads wrong features."""
    _write(path, _Spark(), features=scrambled(fused_features(), "neg dflash"))


def negative_dflash_swapped(path: Path) -> None:
    """Write a DFlash draft model whose first and last layer are swapped."""
    _write(path, features=ordered_features(), layers=SWAPPED_LAYERS)


def negative_dspark_swapped(path: Path) -> None:
    """Write a DSpark draft model whose first and last layer are swapped."""
    _write(path, _Spark(), features=ordered_features(), layers=SWAPPED_LAYERS)


def negative_dspark_noanchor(path: Path) -> None:
    """Write draft-dspark-noanchor with its first and last layer swapped."""
    _write(path, _Spark(from_anchor=False), features=ordered_features(), layers=SWAPPED_LAYERS)


def negative_dspark_noconf(path: Path) -> None:
    """Write draft-dspark-noconf with its first and last layer swapped."""
    _write(path, _Spark(confidence=False), features=ordered_features(), layers=SWAPPED_LAYERS)
