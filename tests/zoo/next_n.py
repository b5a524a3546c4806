"""Targets with next-n (MTP) layers: qwen35 (gated delta net and attention) with one, step35 with three."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.zoo.arithmetic import Array, gauss, permutation, snap
from tests.zoo.language import (
    CONTEXT,
    IDENTITY,
    KAPPA,
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
    without_constant,
)
from tests.zoo.layers import (
    N_FF,
    ROPE_BASE,
    HeadShape,
    Tensors,
    Term,
    chain_term,
    far_terms,
    feed_forward,
    mixed_attention,
    near_terms,
)
from tests.zoo.writer import GgufModel

_FAR = 0.13
_NEXT_N_NORMS: Tensors = {"nextn.enorm": ONES, "nextn.hnorm": ONES, "nextn.shared_head_norm": ONES}


def _delta_net(name: str, in_rms: float, amplitude: float) -> Tensors:
    """Random gated-delta-net layer; its normalised output becomes context noise of this amplitude."""
    state, n_key, n_value = 32, 2, 4
    conv_width, value_width = state * (2 * n_key + n_value), state * n_value
    gate = gauss(f"{name} gate", value_width, N_EMBD) * 0.05
    gate[:, ONE] = 1.2785 / (KAPPA / in_rms)  # silu(1.2785) = 1
    out = np.zeros((N_EMBD, value_width))
    out[CONTEXT] = gauss(f"{name} out", N_CONTEXT, value_width) * (amplitude / float(np.sqrt(value_width)))
    return {
        "attn_qkv": snap(gauss(f"{name} qkv", conv_width, N_EMBD) * 0.16 * without_constant()),
        "attn_gate": snap(gate),
        "ssm_conv1d": snap(gauss(f"{name} conv", conv_width, 4) * 0.35),
        "ssm_dt.bias": np.zeros(n_value),
        "ssm_a": snap(-np.array([0.05, 0.15, 0.4, 1.0])),
        "ssm_beta": snap(gauss(f"{name} beta", n_value, N_EMBD) * 0.08),
        "ssm_alpha": snap(gauss(f"{name} alpha", n_value, N_EMBD) * 0.05),
        "ssm_norm": np.ones(state),
        "ssm_out": snap(out),
    }


def _projection() -> Array:
    """``eh_proj`` on concat(norm(embedding of x[P]), norm(h of P-1)): the new residual row for P."""
    h_rms, keep = rms(0.95), 0.15
    matrix = np.zeros((N_EMBD, 2 * N_EMBD))
    matrix[IDENTITY, 0:48] = np.eye(N_ID) * RMS_EMBEDDING
    matrix[ONE, ONE] = RMS_EMBEDDING
    matrix[CONTEXT, 64:112] = LAGS[1] * lag_map(1) * h_rms  # lag 1 comes from h only
    matrix[CONTEXT, 112:127] = np.eye(N_CONTEXT) * (keep * h_rms)
    return snap(matrix)


def target_mtp(path: Path, projection: Array | None = None, *, head_only: bool = False) -> None:
    """Write target-mtp, or its next-n layer alone."""
    shape = HeadShape(32, "neox", qk_norm=True, gate=True)
    model = GgufModel(path, "qwen35", 5)
    model.heads(6, 3, 32)
    model.writer.add_rope_dimension_sections([6, 5, 5, 0])
    model.u32("ssm.conv_kernel", 4)
    model.u32("ssm.inner_size", 128)
    model.u32("ssm.state_size", 32)
    model.u32("ssm.time_step_rank", 4)
    model.u32("ssm.group_count", 2)
    model.u32("full_attention_interval", 2)
    model.u32("nextn_predict_layers", 1)
    model.embedding_and_output()
    model.tensor("output_norm.weight", ONES)
    mixers = [
        _delta_net("q0", rms(0.0), 0.22),
        mixed_attention("q1", shape, rms(0.05), near_terms()),
        _delta_net("q2", rms(0.8), 0.22),
        mixed_attention("q3", shape, rms(0.85), far_terms("q3", (5, 7, 10, 17), _FAR)),
    ]
    norms: Tensors = {"attn_norm": ONES, "post_attention_norm": ONES}
    for i, mixer in enumerate([] if head_only else mixers):
        model.block(i, {**norms, **mixer, **feed_forward(f"q{i}", 0.12)})
    head: Tensors = {**norms, "nextn.eh_proj": _projection() if projection is None else projection, **_NEXT_N_NORMS}
    head |= mixed_attention("qm", shape, rms(0.4), near_terms((2, 3, 4)), amp_content=0.1)
    model.block(4, {**head, **feed_forward("qm", 0.10)})
    model.close()


def draft_mtp(path: Path) -> None:
    """Write draft-mtp: the next-n layer of target-mtp in a file of its own."""
    target_mtp(path, head_only=True)


def negative_mtp(path: Path) -> None:
    """Write target-mtp with a next-n layer that reads a scrambled h."""
    projection = _projection()
    projection[:, N_EMBD:] = projection[:, N_EMBD:][:, permutation("neg mtp", N_EMBD)]
    target_mtp(path, projection)


def _relabelled(tensors: Tensors, order: npt.NDArray[np.intp]) -> Tensors:
    """Rewrite a layer for residual dimensions in another order (all norms are ones)."""
    inputs = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
    outputs = ("attn_output", "ffn_down")
    return {
        key: values[:, order] if key in inputs else values[order] if key in outputs else values
        for key, values in tensors.items()
    }


_SLIDING = [False, True, True, False, True, False, True]


def _step35_layer(
    name: str, layer: int, in_rms: float, terms: Sequence[Term], amplitudes: tuple[float, float]
) -> Tensors:
    """A layer of step35, whose full-attention layers rotate only half of the head."""
    shape = HeadShape(32, "neox", n_rot=32 if _SLIDING[layer] else 16)
    return {
        "attn_norm": ONES,
        "ffn_norm": ONES,
        **mixed_attention(name, shape, in_rms, terms, amplitudes[0]),
        **feed_forward(name, amplitudes[1]),
    }


def target_mtp_chain(path: Path, order: Sequence[int] = (0, 1, 2)) -> None:
    """Write target-mtp-chain.

    Each of the three next-n layers writes its hidden state in a dimension order of its own, which only the next one
    can read, so running the wrong one (or giving it the wrong h) spoils the draft.

    Args:
        path: Where to.
        order: Layer number of each head; another order makes the negative variant.
    """
    n_trunk, n_heads = 4, 3
    model = GgufModel(path, "step35", n_trunk + n_heads)
    model.heads(6, 3, 32)
    model.writer.add_sliding_window(24)
    model.writer.add_sliding_window_pattern(_SLIDING)
    model.writer.add_rope_freq_base_swa(ROPE_BASE)
    model.u32("expert_feed_forward_length", N_FF)
    model.u32("nextn_predict_layers", n_heads)
    model.embedding_and_output()
    model.tensor("output_norm.weight", ONES)
    terms: list[list[Term]] = [
        near_terms(),
        far_terms("s1", (5, 6, 8, 12), _FAR),
        [chain_term("s2", 1, _FAR), *far_terms("s2", (7, 15, 20), _FAR)],
        [chain_term("s3", 2, _FAR), *far_terms("s3", (10, 27, 35), _FAR)],
    ]
    for i in range(n_trunk):
        model.block(i, _step35_layer(f"s{i}", i, rms(0.0 if i == 0 else 0.8), terms[i], (0.15, 0.12)))
    before = np.arange(N_EMBD)
    for k in range(n_heads):
        layer = n_trunk + order[k]
        after = permutation(f"mtp head {k}", N_EMBD)
        projection = _projection()
        projection = np.concatenate([projection[:, :N_EMBD], projection[:, N_EMBD:][:, before]], axis=1)[after]
        tensors = _relabelled(_step35_layer(f"sm{k}", layer, rms(0.4), near_terms((2, 3, 4)), (0.1, 0.10)), after)
        head: Tensors = {"nextn.eh_proj": projection, **_NEXT_N_NORMS, "nextn.shared_head_head": OUTPUT[:, after]}
        model.block(layer, {**tensors, **head})
        before = after
    model.close()


def negative_mtp_chain(path: Path) -> None:
    """Write target-mtp-chain with two heads swapped."""
    target_mtp_chain(path, order=(1, 0, 2))
