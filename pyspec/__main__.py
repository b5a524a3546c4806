"""``python -m pyspec`` is ``pyspec``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C is quiet from its imports to its end."""
    try:
        from pyspec.cli import main as run  # noqa: PLC0415 - it takes its time

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
