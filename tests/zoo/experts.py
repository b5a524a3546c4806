"""qwen3moe: a target whose feed-forward layers are four experts, of which a router asks two per token."""

from __future__ import annotations

from pathlib import Path

from tests.zoo.arithmetic import gauss, snap
from tests.zoo.language import N_EMBD, ONES, rms
from tests.zoo.layers import (
    N_FF,
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
_N_EXPERTS, _N_USED = 4, 2
_EXPERT_FF = N_FF // _N_EXPERTS


def _experts(name: str, amp_context: float) -> Tensors:
    """Cut a feed-forward layer into experts, [expert, out, in], and add the router, [expert, in].

    An expert counts with its share of the router, so two of four give a third of the whole layer's noise.
    """
    dense = feed_forward(name, amp_context * 3.0)
    shape = (_N_EXPERTS, _EXPERT_FF, N_EMBD)
    return {
        "ffn_gate_inp": snap(gauss(f"{name} router", _N_EXPERTS, N_EMBD) * 0.25),
        "ffn_gate_exps": dense["ffn_gate"].reshape(shape),
        "ffn_up_exps": dense["ffn_up"].reshape(shape),
        "ffn_down_exps": dense["ffn_down"].T.reshape(shape).transpose(0, 2, 1),
    }


def target(path: Path) -> None:
    """Write target-moe."""
    shape = HeadShape(32, "neox", qk_norm=True)
    model = GgufModel(path, "qwen3moe", 4)
    model.heads(6, 3, 32)
    model.u32("expert_count", _N_EXPERTS)
    model.u32("expert_used_count", _N_USED)
    model.u32("expert_feed_forward_length", _EXPERT_FF)
    model.embedding_and_output()
    model.tensor("output_norm.weight", ONES)
    terms: list[list[Term]] = [
        near_terms(),
        far_terms("tm1", (5, 6, 8, 10), _FAR),
        [chain_term("tm2", 1, _FAR), *far_terms("tm2", (7, 12, 14), _FAR)],
        [chain_term("tm3", 2, _FAR), *far_terms("tm3", (15, 22, 29), _FAR)],
    ]
    for i, layer_terms in enumerate(terms):
        mixer = mixed_attention(f"tm{i}", shape, rms(0.0 if i == 0 else 0.8), layer_terms)
        model.block(i, {"attn_norm": ONES, "ffn_norm": ONES, **mixer, **_experts(f"tm{i}", 0.12)})
    model.close()
