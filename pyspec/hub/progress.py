"""How the stages of a fetch report how far they are."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "ignore_progress"]

Progress = Callable[[int, int, str], None]
"""Called as ``progress(done_bytes, total_bytes, stage)``; ``total_bytes`` is 0 while it is unknown.

``stage`` is a word to show: ``"waiting"`` (another process fetches the same model), ``"downloading"``,
``"verifying"`` or ``"extracting"``. What the callback raises stops the fetch, which then cleans up.
"""


def ignore_progress(done_bytes: int, total_bytes: int, stage: str) -> None:
    """Report to nobody."""
