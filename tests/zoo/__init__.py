"""A deterministic zoo of tiny GGUF models, made in about a second; open ``language.py`` first.

``python -m tests.zoo FOLDER [NAME ...]`` writes them anywhere. The files are bit-identical on every machine with the
same version of the gguf package.

================== ===================================================================================
target-llama       llama, 4 layers, 6 heads and 3 key-value heads
draft-llama...     1 layer: the same vocabulary, another one, a padded one
draft-eagle3...    own vocabulary matrices, the target's, 192 draft tokens mapped through d2t
draft-eagle3-nextn for target-mtp: reads its next-n rows in place of a layer
draft-dflash       blocks of 8; draft-dflash2: the same with convolutions and a selector
draft-dspark...    DFlash with Markov and confidence heads; predicting from the masks only; without confidence head
target-llama-eog   target-llama that emits </s> after 8 to 100 tokens; draft-llama-eog predicts it too
target-mtp         qwen35 (gated delta net and attention) with one next-n layer; draft-mtp: that layer alone
target-mtp-chain   step35 with three next-n layers, each readable only by the next
target-swa         gemma3, window 16 in layers 0 and 2
target-gemma4      gemma4, window 16 in layer 1 of three; draft-gemma4: gemma4-assistant, which reads its memory
target-mamba       mamba, 3 layers; draft-mamba: its first layer
target-lfm2        lfm2, short convolutions and attention
target-moe         qwen3moe, four experts of which two are asked
neg-...            the same draft models with scrambled features (-permfc, -permh, -zerofc), or with the
                   layers they read in the wrong order (-swapped)
================== ===================================================================================

All share one vocabulary, so draft-llama also serves the other targets, and the EAGLE-3, DFlash and DSpark draft
models also run on target-mtp, target-lfm2 and target-moe. draft-eagle3, draft-dflash and draft-dspark read layers
1, 2 and 3, whose order hardly matters to them; what came later reads layer 0 too, and any other order spoils it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.zoo import dflash, dflash2, eagle3, experts, gemma4, llama, next_n, recurrent, sliding

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
    "target-moe": experts.target,
    "target-gemma4": gemma4.target,
    "draft-gemma4": gemma4.assistant,
    "draft-mtp": next_n.draft_mtp,
    "draft-eagle3-nextn": eagle3.draft_next_n,
    "draft-dflash2": dflash2.draft,
    "draft-dspark-noanchor": dflash.draft_dspark_noanchor,
    "draft-dspark-noconf": dflash.draft_dspark_noconf,
}
NEGATIVES: dict[str, Callable[[Path], None]] = {
    "neg-eagle3-permfc": eagle3.negative_scrambled,
    "neg-eagle3-zerofc": eagle3.negative_zero,
    "neg-dflash-permfc": dflash.negative_dflash,
    "neg-mtp-chain-swapped": next_n.negative_mtp_chain,
    "neg-mtp-permh": next_n.negative_mtp,
    "neg-gemma4-permh": gemma4.negative,
    "neg-dspark-permfc": dflash.negative_dspark,
    "neg-eagle3-swapped": eagle3.negative_swapped,
    "neg-eagle3-nextn-swapped": eagle3.negative_next_n,
    "neg-dflash-swapped": dflash.negative_dflash_swapped,
    "neg-dflash2-permfc": dflash2.negative_scrambled,
    "neg-dflash2-swapped": dflash2.negative_swapped,
    "neg-dspark-swapped": dflash.negative_dspark_swapped,
    "neg-dspark-noanchor-swapped": dflash.negative_dspark_noanchor,
    "neg-dspark-noconf-swapped": dflash.negative_dspark_noconf,
}


def make_zoo(folder: Path, names: Iterable[str] = MODELS) -> None:
    """Write the named models as ``folder/NAME.gguf``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (MODELS | NEGATIVES)[name](folder / f"{name}.gguf")
