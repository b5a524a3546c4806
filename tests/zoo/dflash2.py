"""DFlash2 draft models for target-llama: DFlash with convolutions over the block and a selector.

The selector turns each slot's best tokens into a lattice: a table of scores of each candidate given each candidate of
the slot before. It sits in the slot's next-n row: TOP_K token ids, TOP_K x TOP_K scores (row: predecessor, column:
candidate), zeros. Slot 0, the last token, has none, and slot 1 repeats one row, because its predecessor is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.zoo.arithmetic import Array, gauss, matmul, snap
from tests.zoo.dflash import ORDERED_LAYERS, SWAPPED_LAYERS, block_attention, block_layers, start
from tests.zoo.eagle3 import ordered_features, scrambled
from tests.zoo.language import (
    EMBEDDING,
    IDENTITY,
    IDENTITY_GAIN,
    KAPPA,
    N_EMBD,
    N_ID,
    ONE,
    STEPS,
    bigram_rows,
    rms,
    turn,
)
from tests.zoo.layers import Tensors

TOP_K = 7  # 7 ids and 49 scores: the most that a row of 64 holds
_KERNEL, _GROUP = 3, 16
_SHARES = (0.4, 0.3, 0.3)  # of the three likely steps
_FADE = 0.75
_CANDIDATE_GAIN = 0.3  # the identity only nominates; with a full share it would outweigh the lattice
_PAIR_GAIN = 1.5


def _spread() -> list[Array]:
    """Head by head, where the walk may be after 0 to 7 steps: each step spreads an identity over its successors."""
    step = sum((share * turn(steps) for share, steps in zip(_SHARES, STEPS, strict=True)), np.zeros((N_ID, N_ID)))
    identities = [np.eye(N_ID)]
    while len(identities) < 8:
        identities.append(matmul(identities[-1], snap(step * _FADE)))
    return identities


def _convolution(name: str) -> Tensors:
    """Both convolutions of a layer part, before and after it: the slot itself, and a little of the two before it.

    The base is [side, tap, n_embd]; a projection of the slot's row adds one number per side, tap and group of 16. The
    constant passes unmixed, or the positional heads would lose their place.
    """
    base = np.zeros((2, _KERNEL, N_EMBD))
    base[:, 0] = 1.0
    base[:, 1:, :ONE] = gauss(f"{name} base", 2, _KERNEL - 1, ONE) * 0.02
    projection = gauss(f"{name} proj", 2 * _KERNEL * (N_EMBD // _GROUP), N_EMBD) * 0.003
    return {"conv_base": snap(base), "conv_proj": snap(projection)}


def _convolutions(layer: int) -> Tensors:
    return {
        f"{part}_{key}": values
        for part in ("attn", "ffn")
        for key, values in _convolution(f"dflash2 {layer} {part}").items()
    }


def _write(path: Path, *, features: Array | None = None, layers: Sequence[int] = ORDERED_LAYERS) -> None:
    model = start(path, layers, ordered_features() if features is None else features)
    model.u32("conv_kernel_size", _KERNEL)
    model.u32("conv_group_size", _GROUP)
    model.u32("selector_rank", N_ID)
    model.u32("selector_top_k", TOP_K)
    norm = np.ones(N_EMBD)
    norm[IDENTITY] = _CANDIDATE_GAIN
    model.tensor("output_norm.weight", norm)
    for i, tensors in enumerate(block_layers(block_attention(_spread()))):
        model.block(i, {**tensors, **_convolutions(i)})
    # score(candidate | predecessor) = logit + sum over the rank of predecessor * gate(hidden row) * successor
    gate = gauss("dflash2 gate", N_ID, N_EMBD) * 0.01
    gate[:, ONE] = rms(0.9) / KAPPA  # about 1 after the norm
    model.tensor("selector_hidden.weight", gate)
    model.tensor("selector_predecessor.weight", EMBEDDING[:, IDENTITY])
    model.tensor("selector_successor.weight", bigram_rows() * (IDENTITY_GAIN * _PAIR_GAIN))
    model.close()


def draft(path: Path) -> None:
    """Write a DFlash2 draft model: blocks of 8, vocabulary matrices of the target."""
    _write(path)


def negative_scrambled(path: Path) -> None:
    """Write one that reads wrong features."""
    _write(path, features=scrambled(ordered_features(), "neg dflash2"))


def negative_swapped(path: Path) -> None:
    """Write one whose first and last layer are swapped."""
    _write(path, layers=SWAPPED_LAYERS)
