"""llama: the plain target with four layers, and draft models with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.zoo.language import EMBEDDING, EOG_AFTER, FORBID, N_EMBD, ONE, ONES, output_matrix, rms
from tests.zoo.layers import (
    HeadShape,
    Tensors,
    Term,
    chain_term,
    far_terms,
    feed_forward,
    jitter,
    mixed_attention,
    near_terms,
)
from tests.zoo.vocabulary import TOKENS
from tests.zoo.writer import GgufModel

_FAR = 0.13


def _layers() -> list[Tensors]:
    """The four layers of the target; draft models reuse the first one."""
    terms: list[list[Term]] = [
        near_terms(),
        far_terms("tl1", (5, 6, 7, 9), _FAR),
        [chain_term("tl2", 1, _FAR), *far_terms("tl2", (8, 11, 13), _FAR)],
        [chain_term("tl3", 2, _FAR), *far_terms("tl3", (16, 21, 28), _FAR)],
    ]
    shape = HeadShape(32, "norm")
    return [
        {
            "attn_norm": ONES,
            "ffn_norm": ONES,
            **mixed_attention(f"tl{i}", shape, rms(0.0 if i == 0 else 0.8), layer_terms),
            **feed_forward(f"tl{i}", 0.12),
        }
        for i, layer_terms in enumerate(terms)
    ]


def target(path: Path, eog_after: tuple[int, ...] = ()) -> None:
    """Write target-llama."""
    model = GgufModel(path, "llama", 4)
    model.heads(6, 3, 32)
    model.embedding_and_output(output=output_matrix(eog_after))
    model.tensor("output_norm.weight", ONES)
    for i, tensors in enumerate(_layers()):
        model.block(i, tensors)
    model.close()


def target_eog(path: Path) -> None:
    """Write target-llama that emits </s> after 8 to 100 tokens."""
    target(path, EOG_AFTER)


def draft(path: Path, *, tokens: Sequence[str] | None = None, n_pad: int = 0, eog_after: tuple[int, ...] = ()) -> None:
    """Write draft-llama."""
    model = GgufModel(path, "llama", 1, tokens=tokens, n_pad=n_pad)
    model.heads(6, 3, 32)
    padding = np.zeros((n_pad, N_EMBD))
    padding_output = padding.copy()
    padding_output[:, ONE] = -FORBID
    model.embedding_and_output(
        np.concatenate([EMBEDDING, padding]), np.concatenate([output_matrix(eog_after), padding_output])
    )
    model.tensor("output_norm.weight", ONES)
    model.block(0, jitter(_layers()[0], "draft", 0.05))
    model.close()


def draft_eog(path: Path) -> None:
    """Write a draft model that predicts </s> too, so that drafts go on after it."""
    draft(path, eog_after=EOG_AFTER)


def draft_other_vocab(path: Path) -> None:
    """Write a draft model with one ordinary token that reads differently; it must be refused."""
    tokens = list(TOKENS)
    tokens[8 + ord("Q")] = "Q\u0120Q"
    draft(path, tokens=tokens)


def draft_padded_vocab(path: Path) -> None:
    """Write a draft model with 16 more, unused tokens; it must be accepted."""
    draft(path, n_pad=16)
