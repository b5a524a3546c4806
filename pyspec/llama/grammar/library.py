"""The door to llguidance, an optional package: nothing else here imports it, and this only when it is needed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyspec.errors import LibraryNotFoundError

N_ITEMS_IN_ROW = 2000
N_ITEMS = 1_000_000
N_LEXER_STATES = 50_000
"""Limits of one grammar: readings of the output that are open at one place, such readings for all tokens of a mask (a
million take some fifty milliseconds), and states of the lexer, of which each takes one or two kilobytes."""


def llguidance() -> ModuleType:
    """Return the package.

    Raises:
        LibraryNotFoundError: It is not installed, or cannot be loaded.
    """
    try:
        import llguidance  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        msg = f"Grammars need the package llguidance ({error}); run: pip install 'pyspec-llama[grammar]'."
        raise LibraryNotFoundError(msg) from None
    return llguidance


def limits() -> dict[str, Any]:
    """Return the options of llguidance's ``LLParserLimits``."""
    return {
        "max_items_in_row": N_ITEMS_IN_ROW,
        "step_max_items": N_ITEMS,
        "max_lexer_states": N_LEXER_STATES,
        "verbose_errors": False,
    }
