"""Attention and feed-forward layers that compute a wanted context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.zoo.arithmetic import Array, cosine, gauss, rope_angle, sine, snap
from tests.zoo.language import (
    CONTEXT,
    IDENTITY,
    KAPPA,
    LAGS,
    N_CONTEXT,
    N_EMBD,
    N_ID,
    ONE,
    context_map,
    from_context,
    from_identity,
    lag_map,
    pick,
    to_context,
    without_constant,
)

N_FF = 64
ROPE_BASE = 10000.0
_PEAK = 40.0  # attention score at the preferred offset of a positional head
_TEMPERATURE = 2.0

Tensors = dict[str, Array]
Term = tuple[int, Array, float]  # offset back, map [15, 64], amplitude


@dataclass(frozen=True)
class HeadShape:
    """What the heads of a layer have in common.

    Attributes:
        size: Head dimension.
        layout: RoPE pairs neighbours ("norm") or halves ("neox").
        qk_norm: Queries and keys are normalised.
        n_rot: Rotated dimensions, 0 for all.
        gate: Each query head is followed by a gate (qwen35).
        n_in: Width of the input.
        one_rms: RMS of the part of the input that holds the constant, when it differs from the rest.
    """

    size: int
    layout: Literal["norm", "neox"]
    qk_norm: bool = False
    n_rot: int = 0
    gate: bool = False
    n_in: int = N_EMBD
    one_rms: float | None = None

    @property
    def n_rotated(self) -> int:
        return self.n_rot or self.size

    @property
    def dull(self) -> tuple[int, int]:
        """The two dimensions that rotate the least."""
        if self.layout == "norm":
            return self.size - 1, self.size - 2
        return self.n_rotated // 2 - 1, self.n_rotated - 1

    @property
    def norm_weight(self) -> float:
        return float(np.sqrt(_PEAK / np.sqrt(float(self.size))))


@dataclass(frozen=True)
class KeyValue:
    """A key-value head: positional or by content, and the map of its value, [m, n_in] with m <= head size."""

    kind: Literal["pos", "content"]
    value: Array


@dataclass(frozen=True)
class Query:
    """A query head: its key-value head, the offset it looks back (positional ones), and where its value goes."""

    kv: int
    offset: int
    out: Array  # [n_embd, m]


def _position_pair(offset: int, shape: HeadShape) -> tuple[Array, Array]:
    """Return unit vectors (key, query) such that RoPE makes their product peak ``offset`` positions back."""
    half = shape.n_rotated // 2
    steps = [float(rope_angle(ROPE_BASE, i, shape.n_rotated)) for i in range(half)]
    amplitudes = np.array([step if step > 0.09 else 0.0 for step in steps])
    amplitudes = np.sqrt(np.sqrt(amplitudes))
    amplitudes = amplitudes / np.sqrt(np.sum(amplitudes * amplitudes))
    key, query = np.zeros(shape.size), np.zeros(shape.size)
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if shape.layout == "norm" else (i, i + half)
        key[a] = amplitudes[i]
        angle = rope_angle(ROPE_BASE, i, shape.n_rotated, offset)
        query[a] = amplitudes[i] * cosine(angle)
        query[b] = -amplitudes[i] * sine(angle)
    return snap(key), snap(query)


def attention(name: str, kvs: Sequence[KeyValue], queries: Sequence[Query], shape: HeadShape, in_rms: float) -> Tensors:
    """Return the weights of an attention layer.

    Args:
        name: Seeds the random parts.
        kvs: Key-value heads; their values are maps of the input before the norm.
        queries: Query heads, an equal number per key-value head.
        shape: What all heads have in common.
        in_rms: RMS of the input, to undo the norm.
    """
    one_in = KAPPA / (shape.one_rms or in_rms)  # the constant dimension after the norm
    weights: Tensors = {
        "attn_q": snap(
            np.concatenate([_query_rows(f"{name} q{h}", kvs, query, shape, one_in) for h, query in enumerate(queries)])
        ),
        "attn_k": snap(np.concatenate([_key_rows(f"{name} k{j}", kv, shape, one_in) for j, kv in enumerate(kvs)])),
        "attn_v": snap(np.concatenate([_value_rows(kv, shape, in_rms) for kv in kvs])),
        "attn_output": snap(_output_columns(queries, shape)),
    }
    if shape.qk_norm:
        weights["attn_q_norm"] = snap(np.full(shape.size, shape.norm_weight))
        weights["attn_k_norm"] = snap(np.full(shape.size, shape.norm_weight))
    return weights


def _sharpness(shape: HeadShape, one_in: float) -> float:
    return 2.0 if shape.qk_norm else float(np.sqrt(_PEAK * np.sqrt(float(shape.size)))) / one_in


def _key_rows(name: str, kv: KeyValue, shape: HeadShape, one_in: float) -> Array:
    if kv.kind == "pos":
        key = np.zeros((shape.size, shape.n_in))
        key[:, ONE] = _position_pair(0, shape)[0] * _sharpness(shape, one_in)
        return key
    key = gauss(name, shape.size, shape.n_in) * 0.16
    key[:, ONE] = 0.0
    if shape.qk_norm:
        key[list(shape.dull)] = 0.0
    return key


def _value_rows(kv: KeyValue, shape: HeadShape, in_rms: float) -> Array:
    rows = np.zeros((shape.size, shape.n_in))
    rows[: kv.value.shape[0]] = kv.value * in_rms
    return rows


def _query_rows(name: str, kvs: Sequence[KeyValue], query: Query, shape: HeadShape, one_in: float) -> Array:
    if kvs[query.kv].kind == "pos":
        rows = np.zeros((shape.size, shape.n_in))
        rows[:, ONE] = _position_pair(query.offset, shape)[1] * _sharpness(shape, one_in)
    else:
        rows = gauss(name, shape.size, shape.n_in) * 0.16
        rows[:, ONE] = 0.0
        if shape.qk_norm:  # dilute the query to lower the temperature
            share = min(1.0, _TEMPERATURE / (shape.norm_weight * shape.norm_weight))
            rows[list(shape.dull)] = 0.0
            rows = rows * share
            rows[shape.dull[0], ONE] = np.sqrt(shape.size * (1.0 - share * share)) / one_in
        else:
            rows = rows * _TEMPERATURE
    return np.concatenate([rows, np.zeros((shape.size, shape.n_in))]) if shape.gate else rows


def _output_columns(queries: Sequence[Query], shape: HeadShape) -> Array:
    columns = np.zeros((N_EMBD, shape.size * len(queries)))
    for h, query in enumerate(queries):
        start = h * shape.size
        columns[:, start : start + query.out.shape[1]] = query.out * (2.0 if shape.gate else 1.0)
    return columns


def mixed_attention(
    name: str, shape: HeadShape, in_rms: float, terms: Sequence[Term], amp_content: float = 0.15
) -> Tensors:
    """Return positional heads for the terms, and content heads.

    Every key-value head carries ``size // 15`` maps and serves as many query heads (grouped-query attention); the
    last one is a content head.
    """
    capacity = shape.size // N_CONTEXT
    filler: Term = (1, np.zeros((N_CONTEXT, N_EMBD)), 0.0)
    padded = [*terms, *[filler] * (-len(terms) % capacity)]
    kvs: list[KeyValue] = []
    queries: list[Query] = []
    for first in range(0, len(padded), capacity):
        part = padded[first : first + capacity]
        kvs.append(KeyValue("pos", np.concatenate([term[1] for term in part])))
        for n, (offset, _, amplitude) in enumerate(part):
            out = to_context(pick(N_CONTEXT * len(part), N_CONTEXT * n, N_CONTEXT, amplitude))
            queries.append(Query(len(kvs) - 1, offset, out))
    # The content head's value: half identity, half context, at random.
    kvs.append(KeyValue("content", snap(gauss(f"{name} v", shape.size, N_EMBD) * 0.16) * without_constant()))
    for n in range(capacity):
        noise = gauss(f"{name} c{n} o", N_CONTEXT, shape.size)
        out = to_context(snap(noise * (amp_content / float(np.sqrt(shape.size)))))
        queries.append(Query(len(kvs) - 1, 0, out))
    return attention(name, kvs, queries, shape, in_rms)


def near_terms(lags: Sequence[int] = (1, 2, 3, 4)) -> list[Term]:
    """Return the shared part of the context."""
    return [(lag, from_identity(lag_map(lag)), LAGS[lag]) for lag in lags]


def far_terms(name: str, offsets: Sequence[int], amplitude: float) -> list[Term]:
    """Return parts of the context that only deep models have."""
    return [(offset, from_identity(lag_map(offset, name)), amplitude) for offset in offsets]


def chain_term(name: str, offset: int, amplitude: float) -> Term:
    """Return a term that passes an earlier position's context on."""
    return (offset, from_context(context_map(name)), amplitude)


def feed_forward(name: str, amp_context: float, amp_identity: float = 0.03) -> Tensors:
    """Return a random feed-forward layer that adds noise to context and identity."""
    down = np.zeros((N_EMBD, N_FF))
    scale = 1.0 / (0.6 * float(np.sqrt(N_FF)))
    down[CONTEXT] = gauss(f"{name} down ctx", N_CONTEXT, N_FF) * (amp_context * scale)
    down[IDENTITY] = gauss(f"{name} down id", N_ID, N_FF) * (amp_identity * scale)
    return {
        "ffn_gate": snap(gauss(f"{name} gate", N_FF, N_EMBD) * 0.125),
        "ffn_up": snap(gauss(f"{name} up", N_FF, N_EMBD) * 0.125),
        "ffn_down": snap(down),
    }


def jitter(tensors: Tensors, name: str, relative: float) -> Tensors:
    """Disturb every matrix a little, for draft models that are not exact copies."""
    return {
        key: snap(value * (1.0 + relative * gauss(f"{name} {key}", *value.shape))) if value.ndim == 2 else value
        for key, value in tensors.items()
    }
