"""``python -m tests.zoo FOLDER [NAME ...]`` writes the zoo and prints what it wrote."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from tests.zoo import MODELS, NEGATIVES, make_zoo


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description="Write tiny GGUF models for tests.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to write; all when none is named")
    arguments = parser.parse_args()
    names = arguments.names or [*MODELS, *NEGATIVES]
    unknown = [name for name in names if name not in MODELS | NEGATIVES]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(MODELS | NEGATIVES)}")
    make_zoo(arguments.folder, names)
    for name in names:
        data = (arguments.folder / f"{name}.gguf").read_bytes()
        print(f"{name:28} {len(data):9}  {hashlib.sha256(data).hexdigest()}")  # noqa: T201 - a command


if __name__ == "__main__":
    main()
