"""Which drafter a draft model is made for."""

from __future__ import annotations

from pyspec.llama.limits import ASSISTANT
from pyspec.llama.model import Model


def drafter_for(model: Model) -> str:
    """Return the name of the drafter that a draft model's file is made for, found from its architecture and tensors."""
    architecture = model.info.architecture
    if architecture == "eagle3":
        return "draft-eagle3"
    if architecture == "dflash":
        return "draft-dspark" if model.has_tensor("markov_w1.weight") else "draft-dflash"
    if architecture == ASSISTANT or _ends_with_next_n(model):
        return "draft-mtp"
    return "draft-simple"


def _ends_with_next_n(model: Model) -> bool:
    n_blocks = model.metadata.get(f"{model.info.architecture}.block_count", "0")
    return n_blocks.isdecimal() and model.has_tensor(f"blk.{int(n_blocks) - 1}.nextn.eh_proj.weight")
