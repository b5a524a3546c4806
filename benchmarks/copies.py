"""Copies of a small model in other types, to compare engines with.

    python benchmarks/copies.py [MODEL] [--types F16 Q4_0] [--threads N]

Prints a path per type. MODEL is a file or a name of ``pyspec models list``. Q4_0 is made from F16, which is made from
MODEL, so that Q4_0 is what a user would draft with for that F16. They are kept in the user's cache folder
(``PYSPEC_CACHE``), and made again when MODEL has changed. An F16 copy of a quantized model is no better than that
model; for speed only its size counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyspec


def copy_of(source: Path, type_name: str, n_threads: int) -> Path:
    """Return the path of a copy, which is made unless it is there and newer than its source."""
    folder = pyspec.hub.cache_dir() / "copies"
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{source.name.split('.')[0]}.{type_name}.gguf"
    if not copy.exists() or copy.stat().st_mtime < source.stat().st_mtime:
        pyspec.quantize(source, copy, type_name, n_threads=n_threads)
    return copy


def main() -> None:
    """Make the copies and print where they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--types", nargs="+", default=["F16", "Q4_0"], metavar="TYPE")
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    full = copy_of(pyspec.hub.resolve(given.model), "F16", given.threads)
    for name in given.types:
        print(full if name == "F16" else copy_of(full, name, given.threads))


if __name__ == "__main__":
    main()
