"""A deterministic zoo of tiny GGUF models, made in about a second; open ``language.py`` first.

``python -m tests.zoo FOLDER [NAME ...]`` writes them anywhere. The files are bit-identical on every machine with the
same version of the gguf package.

================== ===================================================================================
target-llama       llama, 4 layers, 6 heads and 3 key-value heads
draft-llama...     1 layer: the same vocabulary, another one, a padded one
draft-eagle3...    own vocabulary matrices, the target's, 192 draft tokens mapped through d2t
draft-dflash       blocks of 8; draft-dspark: the same with Markov and confidence heads
target-llama-eog   target-llama that emits </s> after 8 to 100 tokens; draft-llama-eog predicts it too
target-mtp         qwen35 (gated delta net and attention) with one next-n layer
target-mtp-chain   step35 with three next-n layers, each readable only by the next
target-swa         gemma3, window 16 in layers 0 and 2
target-mamba       mamba, 3 layers; draft-mamba: its first layer
target-lfm2        lfm2, short convolutions and attention
neg-...            the same draft models with scrambled features
================== ===================================================================================

All share one vocabulary, so draft-llama also serves the other targets, and the EAGLE-3, DFlash and DSpark draft
models also run on target-mtp and target-lfm2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.zoo import dflash, eagle3, llama, next_n, recurrent, sliding

MODELS: dict[str, Callable[[Path], None]] = {
    "target-llama": llama.target,
    "draft-llama": llama.draft,
    "draft-llama-othervocab": llama.draft_other_vocab,
    "draft-llama-paddedvocab": llama.draft_padded_vocab,
    "draft-eagle3": eagle3.draft,
    "draft-eagle3-shared": eagle3.draft_shared,
    "draft-eagle3-d2t": eagle3.draft_reduced,
    "draft-dflash": dflash.draft_dflash,
    "draft-dspark": dflash.draft_dspark,
    "target-llama-eog": llama.target_eog,
    "draft-llama-eog": llama.draft_eog,
    "target-mtp": next_n.target_mtp,
    "target-mtp-chain": next_n.target_mtp_chain,
    "target-swa": sliding.target,
    "target-mamba": recurrent.target_mamba,
    "draft-mamba": recurrent.draft_mamba,
    "target-lfm2": recurrent.target_lfm2,
}
NEGATIVES: dict[str, Callable[[Path], None]] = {
    "neg-eagle3-permfc": eagle3.negative_scrambled,
    "neg-eagle3-zerofc": eagle3.negative_zero,
    "neg-dflash-permfc": dflash.negative_dflash,
    "neg-mtp-chain-swapped": next_n.negative_mtp_chain,
    "neg-mtp-permh": next_n.negative_mtp,
    "neg-dspark-permfc": dflash.negative_dspark,
}


def make_zoo(folder: Path, names: Iterable[str] = MODELS) -> None:
    """Write the named models as ``folder/NAME.gguf``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (MODELS | NEGATIVES)[name](folder / f"{name}.gguf")
