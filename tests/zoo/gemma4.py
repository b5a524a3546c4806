"""gemma4, window 16 in layer 1 of three, and gemma4-assistant, an MTP draft model that reads the target's memory.

The assistant has queries only: its first layer reads the keys and values of the target's sliding layer 1, its second
one those of the target's full layer 2. All tokens of a draft are asked at the pending token's position P: step s
gives it the token at P + s and h of P + s - 1, and expects the token at P + s + 1.

So that drafts are right at every step, the target computes in these layers what a draft model can know, and the
constant of h tells the step: KAPPA in the target's rows, KAPPA * (1 - s) in the rows that step s is given. Each head
of the assistant looks s positions less far back than the target's head for the same term; what comes from one
position back is known from h alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.zoo.arithmetic import Array, permutation, snap
from tests.zoo.language import (
    CONTEXT,
    EMBEDDING,
    IDENTITY,
    KAPPA,
    LAGS,
    N_CONTEXT,
    N_EMBD,
    N_ID,
    ONE,
    ONES,
    OUTPUT,
    context_map,
    lag_map,
    rms,
)
from tests.zoo.layers import (
    ROPE_BASE,
    HeadShape,
    Tensors,
    chain_term,
    far_terms,
    feed_forward,
    mixed_attention,
    near_terms,
)
from tests.zoo.writer import GgufModel

_FAR, _CHAIN = 0.13, 0.4
_SHAPE = HeadShape(32, "neox", qk_norm=True)
_WIDTH = 96  # of the assistant; llama.cpp wants another one than the target's
_STEP = 64  # dimension of the assistant's residual row that holds the step,
_STEP_SIZE = 0.5  # times this, so that it hardly changes the norm
_RMS_H = rms(1.05)  # of what enters the target's output norm
_SHARED_TERMS = [near_terms(), [chain_term("k2", 1, _CHAIN), *far_terms("k2", (7, 17, 31), _FAR)]]


def _settings(model: GgufModel, sliding: Sequence[bool]) -> None:
    model.heads(6, 3, _SHAPE.size)
    model.writer.add_key_length_swa(_SHAPE.size)
    model.writer.add_value_length_swa(_SHAPE.size)
    model.writer.add_rope_freq_base_swa(ROPE_BASE)
    model.writer.add_sliding_window(16)
    model.writer.add_sliding_window_pattern(sliding)
    model.writer.add_embedding_length_per_layer_input(0)
    model.tensor("rope_freqs.weight", np.ones(_SHAPE.size // 2))


def _norms(width: int, attention: float) -> Tensors:
    """Return the norms before and after the parts of a layer; those after it fix how much context it adds."""
    only_context = np.zeros(width)
    only_context[CONTEXT] = 1.0
    return {
        "attn_norm": np.ones(width),
        "ffn_norm": np.ones(width),
        "post_attention_norm": only_context * attention,
        "post_ffw_norm": only_context * 0.05,
        "layer_output_scale": np.ones(1),
    }


def _undivided(mixer: Tensors) -> Tensors:
    """Adapt to scores that are not divided by the square root of the head size."""
    share = 1.0 / np.sqrt(np.sqrt(float(_SHAPE.size)))
    return {key: snap(values * share) if key.endswith("_norm") else values for key, values in mixer.items()}


def target(path: Path) -> None:
    """Write target-gemma4."""
    model = GgufModel(path, "gemma4", 3)
    _settings(model, [False, True, False])
    model.embedding_and_output(EMBEDDING / 8.0)  # the graph multiplies by sqrt(64)
    model.tensor("output_norm.weight", ONES)
    terms = [far_terms("k0", (5, 8, 13, 23), _FAR), *_SHARED_TERMS]
    for i, (layer_terms, amplitude) in enumerate(zip(terms, (0.10, 0.42, 0.24), strict=True)):
        mixer = mixed_attention(f"k{i}", _SHAPE, rms(0.0 if i == 0 else 0.8), layer_terms)
        model.block(i, {**_norms(N_EMBD, amplitude), **_undivided(mixer), **feed_forward(f"k{i}", 0.12)})
    model.close()


def _widened(matrix: Array, axis: int) -> Array:
    """Append zeros for the dimensions that only the assistant has."""
    return np.pad(matrix, [(0, _WIDTH - N_EMBD if i == axis else 0) for i in range(2)])


def _queries(layer: int) -> Tensors:
    """Return queries for the terms of the target's layer, and what they contribute."""
    # What comes from one position back is in the pre-projection.
    terms = [(offset, matrix, amplitude if offset > 1 else 0.0) for offset, matrix, amplitude in _SHARED_TERMS[layer]]
    nearer = [(offset - 1, matrix, amplitude) for offset, matrix, amplitude in terms]
    now, later = (mixed_attention(f"ka{layer}", _SHAPE, rms(0.8), part, 0.0) for part in (terms, nearer))
    queries = _widened(now["attn_q"], 1)
    queries[:, _STEP] = (later["attn_q"] - now["attn_q"])[:, ONE] * (KAPPA / _STEP_SIZE)
    mixer = {"attn_q": snap(queries), "attn_q_norm": now["attn_q_norm"]}
    return {**_undivided(mixer), "attn_output": _widened(now["attn_output"], 0)}


def _pre_projection() -> Array:
    """From concat(embedding of the token, h) to the residual row: token, context that h gives, step."""
    matrix = np.zeros((_WIDTH, 2 * N_EMBD))
    matrix[IDENTITY, IDENTITY] = np.eye(N_ID)
    matrix[ONE, ONE] = 1.0
    matrix[CONTEXT, N_EMBD : N_EMBD + N_ID] = LAGS[1] * lag_map(1) * _RMS_H
    share = 0.9  # the context that enters layer 2 is a little smaller than the one that leaves it
    matrix[CONTEXT, N_EMBD + N_ID : N_EMBD + N_ID + N_CONTEXT] = share * _CHAIN * context_map("k2") * _RMS_H
    matrix[_STEP, [ONE, N_EMBD + ONE]] = np.array([1.0, -_RMS_H]) * (_STEP_SIZE / KAPPA)
    return snap(matrix)


def _post_projection() -> Array:
    """From the normalised residual row of step s to h for step s + 1."""
    matrix = _widened(np.eye(N_EMBD), 1)
    matrix[ONE, [ONE, _STEP]] = 0.0, -KAPPA / _STEP_SIZE
    return matrix


def assistant(path: Path, pre_projection: Array | None = None) -> None:
    """Write draft-gemma4."""
    model = GgufModel(path, "gemma4-assistant", 2)
    del model.writer.kv_data[0]["gemma4-assistant.embedding_length"]  # the target's
    model.writer.add_embedding_length(_WIDTH)
    model.writer.add_embedding_length_out(N_EMBD)
    model.writer.add_nextn_predict_layers(2)
    _settings(model, [True, False])
    model.tensor("token_embd.weight", _widened(OUTPUT, 1))  # the output matrix; tokens are embedded by the target
    model.tensor("output_norm.weight", np.full(_WIDTH, np.sqrt(N_EMBD / _WIDTH)))
    model.tensor("nextn.pre_projection.weight", _pre_projection() if pre_projection is None else pre_projection)
    model.tensor("nextn.post_projection.weight", _post_projection())
    for i, amplitude in enumerate((0.24, 0.09)):
        ffn = feed_forward(f"ka{i}", 0.12)
        ffn = {key: _widened(values, 0 if key == "ffn_down" else 1) for key, values in ffn.items()}
        model.block(i, {**_norms(_WIDTH, amplitude), **_queries(i), **ffn})
    model.close()


def negative(path: Path) -> None:
    """Write draft-gemma4 that reads a scrambled h."""
    projection = _pre_projection()
    projection[:, N_EMBD:] = projection[:, N_EMBD:][:, permutation("neg gemma4", N_EMBD)]
    assistant(path, projection)
