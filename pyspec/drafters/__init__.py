"""Who proposes tokens: one file per idea, a registry, and the chain."""

from __future__ import annotations

from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.chain import Chain
from pyspec.drafters.registry import Resources, create, names, sorted_by_priority
from pyspec.speculation.draft import Draft, Drafter, DraftRequest, EvaluatedBatch, Needs

__all__ = [
    "Chain",
    "Draft",
    "DraftRequest",
    "Drafter",
    "EvaluatedBatch",
    "ModelFreeDrafter",
    "Needs",
    "Resources",
    "create",
    "names",
    "sorted_by_priority",
]
