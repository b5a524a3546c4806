"""The command line's fixture serves here, too."""

from __future__ import annotations

from tests.cli.conftest import run

__all__ = ["run"]
