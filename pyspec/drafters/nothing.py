"""none: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.drafters.base import ModelFreeDrafter
from pyspec.speculation.draft import Draft, DraftRequest


class NoDrafter(ModelFreeDrafter):
    """Never proposes anything."""

    name = "none"
    reads_only = True
    n_max = 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return empty drafts."""
        return [Draft()] * len(requests)
