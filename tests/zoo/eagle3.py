"""EAGLE-3 draft models for target-llama."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.zoo.arithmetic import Array, gauss, permutation
from tests.zoo.language import (
    CONTEXT,
    EMBEDDING,
    IDENTITY,
    LAGS,
    N_CONTEXT,
    N_EMBD,
    N_ID,
    ONE,
    ONES,
    OUTPUT,
    RMS_EMBEDDING,
    lag_map,
    rms,
    to_context,
)
from tests.zoo.layers import HeadShape, KeyValue, Query, Tensors, attention, feed_forward, jitter
from tests.zoo.vocabulary import N_RING, N_VOCAB, RING_POSITION
from tests.zoo.writer import GgufModel


def fused_features() -> Array:
    """Return ``fc`` for three target layers: identity from one, constant from another, context from the third."""
    matrix = np.zeros((N_EMBD, 3 * N_EMBD))
    for k in range(N_ID):
        matrix[k, k] = 1.0
    for k in range(N_ID, ONE):
        matrix[k, 2 * N_EMBD + k] = 1.0
    matrix[ONE, N_EMBD + ONE] = 1.0
    return matrix


def ordered_features() -> Array:
    """Return ``fc`` for layer 0 and two later ones that any other order spoils.

    What enters layer 0 has no context yet (but for control tokens and raw bytes), so reading the first layer's context
    into the identity is harmless there, and ruins the identity when another layer comes first.
    """
    return _reading_context(fused_features(), 0)


def next_n_features() -> Array:
    """Return ``fc`` for the next-n rows, some layer and layer 0, that any other order spoils.

    The identity comes from the next-n rows, which have passed the output norm.
    """
    matrix = fused_features()
    matrix[IDENTITY, IDENTITY] *= rms(0.9)
    return _reading_context(matrix, 2)


def _reading_context(features: Array, place: int) -> Array:
    """Let the identity read the context of the layer at this place, where layer 0 belongs."""
    first = place * N_EMBD
    features[IDENTITY, first + CONTEXT.start : first + CONTEXT.stop] = gauss("order of layers", N_ID, N_CONTEXT) * 0.7
    return features


def scrambled(features: Array, name: str) -> Array:
    """Return wrong features: the columns in another order."""
    return features[:, permutation(name, features.shape[1])]


def _context_of_lags_from(first: int) -> Array:
    """Return the shared context map of the lags from ``first`` on, [15, 48]; zeros when there are none."""
    total = np.zeros((N_CONTEXT, N_ID))
    for lag, amplitude in LAGS.items():
        if lag >= first:
            total = total + amplitude * lag_map(lag)
    return total


def _attention() -> Tensors:
    """Input concat(norm(token embedding of P+1), norm(g of P)), residual g.

    The self heads replace g's identity by the token's and g's context by the estimate for the new position; heads
    1 to 3 pairs back supply the farther lags. The value of a pair is d(P) = u(t[P+1]) - u(t[P]), so
    u(t[P-k]) = u(t[P]) - d(P-1) - ... - d(P-k).
    """
    rms_token, rms_g = RMS_EMBEDDING, rms(0.85)
    keep = 0.15  # share of g's old context that survives
    identity = np.zeros((N_ID, 2 * N_EMBD))
    identity[:, 0:48] = np.eye(N_ID) * rms_token
    identity[:, 64:112] = -np.eye(N_ID) * rms_g
    context = np.zeros((N_CONTEXT, 2 * N_EMBD))
    context[:, 64:112] = _context_of_lags_from(1) * rms_g
    context[:, 112:127] = -np.eye(N_CONTEXT) * ((1.0 - keep) * rms_g)
    kvs = [KeyValue("pos", identity[:32]), KeyValue("pos", np.concatenate([identity[32:], context]))]
    out_first = np.zeros((N_EMBD, 32))
    out_first[0:32, 0:32] = np.eye(32)
    out_second = np.zeros((N_EMBD, 31))
    out_second[32:48, 0:16] = np.eye(16)
    out_second[CONTEXT, 16:31] = np.eye(15)
    first, second = [Query(0, 0, out_first)], [Query(1, 0, out_second)]
    for k in (1, 2, 3):
        back = -_context_of_lags_from(k + 1)
        first.append(Query(0, k, to_context(back[:, :32])))
        second.append(Query(1, k, to_context(back[:, 32:])))
    shape = HeadShape(32, "norm", n_in=2 * N_EMBD, one_rms=rms_token)
    return attention("eagle", kvs, first + second, shape, 1.0)


def _write(
    path: Path,
    *,
    own: bool = True,
    reduced: Sequence[int] | None = None,
    features: Array | None = None,
    layers: Sequence[int] = (1, 2, 3),
) -> None:
    model = GgufModel(path, "eagle3", 1)
    model.heads(8, 2, 32)
    model.writer.add_array("eagle3.target_layers", list(layers))
    model.u32("target_hidden_size", N_EMBD)
    if reduced is not None:
        model.tensor("token_embd.weight", EMBEDDING)
        model.tensor("output.weight", OUTPUT[list(reduced)])
        model.ids("d2t", np.array(reduced))
    elif own:
        model.embedding_and_output()
    model.tensor("fc.weight", fused_features() if features is None else features)
    model.tensor("output_norm.weight", ONES)
    norms = {"attn_norm": ONES, "attn_norm_2": ONES, "ffn_norm": ONES}
    model.block(0, {**norms, **jitter(_attention(), "eagle", 0.02), **feed_forward("eagle", 0.10)})
    model.close()


def draft(path: Path) -> None:
    """Write a draft model with vocabulary matrices of its own."""
    _write(path)


def draft_shared(path: Path) -> None:
    """Write one that takes them from the target."""
    _write(path, own=False)


def draft_reduced(path: Path) -> None:
    """Write one with 192 draft tokens: 24 ring tokens and everything outside the ring cannot be drafted."""
    dropped = {int(k) for k in permutation("d2t drop", N_RING)[:24]}
    kept = [token for token in range(N_VOCAB) if token in RING_POSITION and RING_POSITION[token] not in dropped]
    _write(path, reduced=kept)


def draft_next_n(path: Path) -> None:
    """Write one for target-mtp that reads its next-n rows: layer id 4 of a target with four layers."""
    _write(path, features=next_n_features(), layers=(4, 2, 0))


def negative_next_n(path: Path) -> None:
    """Write the same with the next-n rows and layer 0 in each other's place."""
    _write(path, features=next_n_features(), layers=(0, 2, 4))


def negative_swapped(path: Path) -> None:
    """Write one whose first and last layer are swapped."""
    _write(path, features=ordered_features(), layers=(3, 2, 0))


def negative_scrambled(path: Path) -> None:
    """Write one that reads wrong features."""
    _write(path, features=scrambled(fused_features(), "neg eagle"))


def negative_zero(path: Path) -> None:
    """Write one that reads nothing."""
    _write(path, features=fused_features() * 0.0)
