"""Who proposes tokens: one file per idea, a registry, and the chain."""

from __future__ import annotations

from pyspec.drafters.chain import Chain
from pyspec.drafters.registry import Resources, create, names, sorted_by_priority

__all__ = ["Chain", "Resources", "create", "names", "sorted_by_priority"]
