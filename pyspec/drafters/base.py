"""Defaults for drafters that need nothing but tokens. Convenience only: any object with these methods will do."""

from __future__ import annotations

from pyspec.speculation.draft import EvaluatedBatch, Needs, TokenView


class ModelFreeDrafter:
    """Empty answers to every call but ``draft``."""

    needs = Needs.NOTHING

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """A new request starts."""

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this."""

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """A draft was verified."""

    def save_state(self, seq_id: int) -> bytes | None:  # noqa: ARG002 - the interface
        """Return nothing: what is needed is in the tokens."""
        return None

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Take back what ``save_state`` returned."""

    def close(self) -> None:
        """Free what is held."""
