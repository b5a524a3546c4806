"""gemma3: layers 0 and 2 see 16 tokens, layers 1 and 3 everything; norms on both sides of each part."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.zoo.language import CONTEXT, EMBEDDING, N_EMBD, ONES, rms
from tests.zoo.layers import (
    ROPE_BASE,
    HeadShape,
    Term,
    chain_term,
    far_terms,
    feed_forward,
    mixed_attention,
    near_terms,
)
from tests.zoo.writer import GgufModel

_FAR = 0.13


def target(path: Path) -> None:
    """Write target-swa."""
    shape = HeadShape(32, "neox", qk_norm=True)
    model = GgufModel(path, "gemma3", 4)
    model.heads(6, 3, 32)
    model.writer.add_sliding_window(16)
    model.writer.add_sliding_window_pattern([True, False, True, False])
    model.writer.add_rope_freq_base_swa(ROPE_BASE)
    model.embedding_and_output(EMBEDDING / 8.0)  # the graph multiplies by sqrt(64)
    model.tensor("output_norm.weight", ONES)
    terms: list[list[Term]] = [
        near_terms(),
        far_terms("g1", (5, 9, 19, 23), _FAR),
        [chain_term("g2", 1, _FAR), *far_terms("g2", (7, 11, 13), _FAR)],
        [chain_term("g3", 2, _FAR), *far_terms("g3", (6, 17, 31), _FAR)],
    ]
    only_context = np.zeros(N_EMBD)
    only_context[CONTEXT] = 1.0
    for i, layer_terms in enumerate(terms):
        norms = {
            "attn_norm": ONES,
            "ffn_norm": ONES,
            "post_attention_norm": only_context * (0.42 if i == 0 else 0.16),
            "post_ffw_norm": only_context * 0.08,
        }
        mixer = mixed_attention(f"g{i}", shape, rms(0.0 if i == 0 else 0.8), layer_terms)
        model.block(i, {**norms, **mixer, **feed_forward(f"g{i}", 0.12)})
    model.close()
