"""Targets whose memory is a state: mamba, and lfm2 (short convolutions and attention)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.zoo.arithmetic import gauss, snap
from tests.zoo.language import (
    CONTEXT,
    KAPPA,
    LAGS,
    N_CONTEXT,
    N_EMBD,
    ONE,
    ONES,
    context_map,
    from_context,
    from_identity,
    lag_map,
    rms,
    without_constant,
)
from tests.zoo.layers import (
    ROPE_BASE,
    HeadShape,
    Tensors,
    Term,
    far_terms,
    feed_forward,
    jitter,
    mixed_attention,
    near_terms,
)
from tests.zoo.writer import GgufModel

_FAR = 0.15


def _mamba_layer(name: str, in_rms: float, lags: Sequence[Term], amp_random: float) -> Tensors:
    """Selective SSM.

    Pairs of channels (+v, -v) pass v linearly through silu; the convolution taps of these pairs pick one earlier
    token. The remaining channels are random.
    """
    inner, state, rank = 2 * N_EMBD, 16, 4
    x = gauss(f"{name} x", inner, N_EMBD) * 0.16 * without_constant()
    z = gauss(f"{name} z", inner, N_EMBD) * 0.10
    z[:, ONE] = 1.2785 / (KAPPA / in_rms)
    conv = gauss(f"{name} conv", inner, 4) * 0.4
    out = np.zeros((N_EMBD, inner))
    out[CONTEXT] = gauss(f"{name} out", N_CONTEXT, inner) * (amp_random / 4.0)
    for n, (lag, value, amplitude) in enumerate(lags):
        plus, minus = slice(30 * n, 30 * n + 15), slice(30 * n + 15, 30 * n + 30)
        both = slice(30 * n, 30 * n + 30)
        x[plus], x[minus] = value * in_rms, -value * in_rms
        z[both, :ONE] = 0.0
        conv[both] = 0.0
        conv[both, 3 - lag] = 1.0
        out[:, both] = 0.0
        out[CONTEXT, plus], out[CONTEXT, minus] = np.eye(15) * amplitude, -np.eye(15) * amplitude
    return {
        "attn_norm": ONES,
        "ssm_in": snap(np.concatenate([x, z])),
        "ssm_conv1d": snap(conv),
        "ssm_conv1d.bias": np.zeros(inner),
        "ssm_x": snap(gauss(f"{name} xdb", rank + 2 * state, inner) * 0.09),
        "ssm_dt": snap(gauss(f"{name} dt", inner, rank) * 0.3),
        "ssm_dt.bias": np.full(inner, -2.0),
        "ssm_a": snap(-np.tile(np.arange(1, state + 1) * 0.2, (inner, 1))),
        "ssm_d": np.ones(inner),
        "ssm_out": snap(out),
    }


def _mamba_layers() -> list[Tensors]:
    first = [(lag, from_identity(lag_map(lag)), LAGS[lag]) for lag in (1, 2, 3)]
    far = [(1, from_context(context_map("mb1")), 0.2), (3, from_context(context_map("mb1 b")), 0.2)]
    return [
        _mamba_layer("mb0", rms(0.0), first, 0.2),
        _mamba_layer("mb1", rms(0.7), far, 0.25),
        _mamba_layer("mb2", rms(0.75), [(2, from_context(context_map("mb2")), 0.2)], 0.25),
    ]


def _write_mamba(path: Path, layers: Sequence[Tensors]) -> None:
    model = GgufModel(path, "mamba", len(layers), n_ff=0)
    model.writer.add_head_count(0)
    model.u32("ssm.conv_kernel", 4)
    model.u32("ssm.inner_size", 2 * N_EMBD)
    model.u32("ssm.state_size", 16)
    model.u32("ssm.time_step_rank", 4)
    model.embedding_and_output()
    model.tensor("output_norm.weight", ONES)
    for i, tensors in enumerate(layers):
        model.block(i, tensors)
    model.close()


def target_mamba(path: Path) -> None:
    """Write target-mamba: three layers."""
    _write_mamba(path, _mamba_layers())


def draft_mamba(path: Path) -> None:
    """Write draft-mamba: its first layer."""
    layer = _mamba_layers()[0]
    decay = layer.pop("ssm_a")
    _write_mamba(path, [{**jitter(layer, "draft mamba", 0.05), "ssm_a": decay}])


def _short_conv(name: str, in_rms: float, lags: Sequence[Term], amp_random: float) -> Tensors:
    """Gated short convolution: b * x through 3 taps, times c. With b = c = 1 it is linear."""
    one_in = KAPPA / in_rms
    b, c, x = (gauss(f"{name} {part}", N_EMBD, N_EMBD) * 0.16 for part in "bcx")
    conv = gauss(f"{name} conv", N_EMBD, 3) * 0.5
    out = np.zeros((N_EMBD, N_EMBD))
    out[CONTEXT] = gauss(f"{name} out", N_CONTEXT, N_EMBD) * (amp_random / 5.0)
    for n, (lag, value, amplitude) in enumerate(lags):
        channels = slice(15 * n, 15 * n + 15)
        b[channels], c[channels], conv[channels] = 0.0, 0.0, 0.0
        b[channels, ONE] = c[channels, ONE] = 1.0 / one_in
        x[channels] = value * in_rms
        conv[channels, 2 - lag] = 1.0
        out[:, channels] = 0.0
        out[CONTEXT, channels] = np.eye(15) * amplitude
    return {
        "shortconv.conv": snap(conv),
        "shortconv.in_proj": snap(np.concatenate([b, c, x])),
        "shortconv.out_proj": snap(out),
    }


def target_lfm2(path: Path) -> None:
    """Write target-lfm2."""
    shape = HeadShape(16, "neox", qk_norm=True)
    model = GgufModel(path, "lfm2", 4)
    model.writer.add_head_count(4)
    model.writer.add_head_count_kv([0, 4, 0, 4])
    model.writer.add_rope_dimension_count(16)
    model.writer.add_rope_freq_base(ROPE_BASE)
    model.writer.add_shortconv_l_cache(3)
    model.embedding_and_output()
    model.tensor("token_embd_norm.weight", ONES)
    near = [(lag, from_identity(lag_map(lag)), LAGS[lag]) for lag in (1, 2)]
    chained = [(1, from_context(context_map("l2 a")), 0.2), (2, from_context(context_map("l2 b")), 0.2)]
    mixers = [
        _short_conv("l0", rms(0.0), near, 0.2),
        mixed_attention("l1", shape, rms(0.55), near_terms((3, 4)) + far_terms("l1", (6,), _FAR)),
        _short_conv("l2", rms(0.8), chained, 0.2),
        mixed_attention("l3", shape, rms(0.85), far_terms("l3", (8, 13, 21), _FAR)),
    ]
    for i, mixer in enumerate(mixers):
        model.block(i, {"attn_norm": ONES, "ffn_norm": ONES, **mixer, **feed_forward(f"l{i}", 0.12)})
    model.close()
