"""What "auto" stands for: which drafters it has, and what they are set to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pyspec.drafters.registry import is_available, option_names
from pyspec.errors import ConfigError
from pyspec.speculation.config import AUTO, Speculation
from pyspec.speculation.detection import drafter_for

LOOKUPS = ("suffix",)
"""With the options below its drafts are right for longer than those of every other lookup, and asking several takes
more time than it gains; ``docs/decisions`` has the figures."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "suffix": {"n_match": 1, "factor": 8.0, "p_min": 0.1, "n_max": 16},
    "ngram-simple": {"size_n": 3, "size_m": 16},
    "ngram-map-k": {"size_n": 6, "size_m": 16},
    "ngram-mod": {"n_match": 16, "n_max": 16, "n_min": 1, "forgets": False},
}
"""Short matches and short drafts: whether a match is worth verifying is learned, and only a few rows ever are."""
_LONGEST = {"n_max": 8, "size_m": 16}  # the options that limit a draft's length


def resolved(speculation: Speculation) -> Speculation:
    """Return the same with the names of the drafters that "auto" has, and their options.

    Args:
        speculation: Returned as it is unless its types have "auto".

    Raises:
        ConfigError: Options are given for a drafter that is not among them.
    """
    if not speculation.auto:
        return speculation
    draft_model = speculation.draft_model
    lookups = [name for name in LOOKUPS if is_available(name)]
    models = [] if draft_model is None else [drafter_for(draft_model)]
    names = tuple(dict.fromkeys([*lookups, *models, *speculation.names]))
    unused = [name for name in speculation.options if name not in names]
    if unused:
        msg = f"options are given for {', '.join(unused)}, but the drafters of auto are {', '.join(names) or 'none'}."
        raise ConfigError(msg)
    options = {name: {**_defaults(name, speculation.n_max), **speculation.options.get(name, {})} for name in names}
    return dataclasses.replace(speculation, types=(AUTO, *names), options=options)


def _defaults(name: str, n_max: int | None) -> Mapping[str, Any]:
    """Return the options of a drafter that are not its own defaults."""
    options = dict(OPTIONS.get(name, {}))
    for limit, longest in _LONGEST.items():
        if limit in option_names(name) and (n_max is not None or limit not in options):
            options[limit] = max(1, n_max if n_max is not None else longest)
    return options
