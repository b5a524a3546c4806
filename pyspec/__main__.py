"""``python -m pyspec`` is ``pyspec``."""

from __future__ import annotations

from pyspec.cli import main

if __name__ == "__main__":
    main()
