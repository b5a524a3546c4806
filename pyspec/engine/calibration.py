"""What decodes and drafts cost on this machine: measured when an engine is made, and remembered for the next one.

Measuring takes less than a second. What is remembered lies in the folder that ``costs_dir`` names, in one small file
for each model, draft model, machine, library and sizes; a file that is damaged counts for nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyspec.drafters.controller import Controller
from pyspec.drafters.registry import options_of
from pyspec.engine.timing import DecodeTimes, measured_rows
from pyspec.files import replace_file
from pyspec.folders import costs_dir
from pyspec.llama.context import Context
from pyspec.llama.devices import devices, library_info
from pyspec.llama.model import Model
from pyspec.speculation.acceptance import Acceptance
from pyspec.speculation.config import Speculation
from pyspec.speculation.costs import Costs
from pyspec.speculation.curves import Attention
from pyspec.speculation.draft import Drafter, DraftRequest, Needs

_logger = logging.getLogger(__name__)
Measured = TypeVar("Measured")

_DRAFT_SECONDS = 0.2
_STEPS = (1, 4)
_VERSION = 4
_SHORTEST, _LONGEST = 1e-7, 1e3  # seconds of anything that is believed to have been measured
_MOST_POINTS, _MOST_COUNTED = 1 << 12, 1 << 20
_TOKEN = 0  # any will do
_N_READ = 4  # tokens that a drafter reads before


def controller_of(drafters: Sequence[Drafter], context: Context, speculation: Speculation, n_slots: int) -> Controller:
    """Return the controller over the drafters of "auto", which knows what the machine needs."""
    config = context.config
    sizes = {
        "threads": [config.n_threads, config.n_threads_batch],
        "sizes": [config.n_batch, config.n_ubatch, config.n_seq_max, n_slots],
        "drafters": {drafter.name: repr(options_of(drafter)) for drafter in drafters},
    }
    file = remembered(context.fingerprint, speculation.draft_model, sizes)
    known, is_complete = file.read(), True
    if known is None:
        known, is_complete = _measured(drafters, context, n_slots)
    points = {name: curve for name, curve in known["drafts"].items() if curve}
    controller = Controller(
        drafters,
        context.memory,
        costs=Costs(known["verify"], points, known["turn"], known["attention"]),
        n_max=speculation.n_max,
        farewell=file.write if is_complete else None,  # the next engine may have more luck
    )
    controller.acceptance.load(known["acceptance"])
    return controller


def _measured(drafters: Sequence[Drafter], context: Context, n_slots: int) -> tuple[dict[str, Any], bool]:
    """Return what can be measured, and whether to keep it; what fails must not stop an engine from being made."""
    measured = _tried(functools.partial(measured_rows, context, n_slots), context.model.path.name)
    times = measured or DecodeTimes({}, 0.0, Attention())
    if times.disturbed:  # a single row is timed most often; how others compare with it is typical
        times = DecodeTimes({n: took for n, took in times.rows.items() if n == 1}, 0.0, Attention(), steady=False)
        _logger.info("Something else ran while decodes were measured: the next engine measures them again.")
    drafts = {each.name: _tried(functools.partial(measured_drafts, each), each.name) for each in drafters}
    found = {name: points or {} for name, points in drafts.items()}
    known = {
        "verify": times.rows,
        "turn": times.turn,
        "attention": times.attention,
        "drafts": found,
        "acceptance": [],
    }
    return known, measured is not None and not times.disturbed and None not in drafts.values()


def _tried(measure: Callable[[], Measured], what: str) -> Measured | None:
    """Return a measurement, or None when it fails."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - drafters of other packages may raise anything
        _logger.warning("The costs of %s cannot be measured; auto starts from typical ones: %s", what, error)
        return None


def measured_drafts(
    drafter: Drafter, *, limit: float = _DRAFT_SECONDS, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Return the seconds of drafts by their steps; nothing for a drafter without a model, or fed by the target's.

    Args:
        drafter: It knows nothing of sequence 0 before and after.
        limit: Seconds, after a first draft; none begins that would take longer.
        clock: Tells the time.
    """
    if not hasattr(drafter, "n_model_tokens") or drafter.needs is not Needs.NOTHING or drafter.n_max < 1:
        return {}
    found: dict[int, float] = {}
    try:
        tokens = [_TOKEN] * _N_READ
        drafter.begin(0, tokens)
        _draft(drafter, tokens, _STEPS[0], clock)  # the first one is slower
        began, step = clock(), 0.0
        for n_steps in _STEPS:
            if clock() - began + n_steps * step > limit:
                break
            n_tokens, seconds = _draft(drafter, tokens, n_steps, clock)
            if n_tokens:
                found[n_tokens], step = seconds, seconds / n_tokens
    finally:
        drafter.begin(0, [])
    return found


def _draft(drafter: Drafter, tokens: Sequence[int], n_steps: int, clock: Callable[[], float]) -> tuple[int, float]:
    """Return the length of a draft, and what it took."""
    request = DraftRequest(0, tokens, _TOKEN, len(tokens), min(n_steps, drafter.n_max), wants_signals=True)
    began = clock()
    (draft,) = drafter.draft([request])
    seconds = clock() - began
    if hasattr(drafter, "discard"):
        drafter.discard(0)
    return len(draft.tokens), seconds


@dataclass(frozen=True, slots=True)
class Remembered:
    """A file of costs.

    Attributes:
        key: What they were measured for; all of it has to be the same.
        path: The file; None when there is no folder for it.
    """

    key: Mapping[str, Any]
    path: Path | None

    def read(self) -> dict[str, Any] | None:
        """Return what is remembered, or None."""
        if self.path is None:
            return None
        try:
            if not self.path.is_file():  # nor wait for somebody to write into a pipe
                return None
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["version"] != _VERSION or found["key"] != dict(self.key):
                _logger.info("The costs in %s are of another version, and are measured again.", self.path)
                return None
            return {
                "verify": _curve(found["verify"]),
                "turn": _duration(found["turn"]),
                "attention": _attention(found["attention"]),
                "drafts": {str(name): _curve(points) for name, points in found["drafts"].items()},
                "acceptance": _checked(found["acceptance"]),
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            _logger.info("The costs in %s are not readable and are measured again: %s", self.path, error)
            return None

    def write(self, costs: Costs, acceptance: Acceptance) -> None:
        """Remember; what cannot be written is forgotten."""
        if self.path is None:
            return
        content = {"version": _VERSION, "key": dict(self.key), **costs.to_dict(), "acceptance": acceptance.known()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, [json.dumps(content, allow_nan=False).encode()])
        except (OSError, ValueError) as error:
            level = logging.WARNING if os.environ.get("PYSPEC_COSTS") else logging.INFO  # somebody wants them there
            _logger.log(level, "The costs cannot be remembered in %s: %s", self.path, error)


def remembered(fingerprint: str, draft_model: Model | None, sizes: Mapping[str, Any]) -> Remembered:
    """Return the file for a model on this machine.

    Args:
        fingerprint: Of the target and its memory.
        draft_model: The draft model, if any.
        sizes: Threads and batch sizes of the context.
    """
    library = library_info()
    key = {
        "model": fingerprint,
        "draft_model": None if draft_model is None else f"{draft_model.info.description} ({draft_model.identity})",
        "machine": [f"{device.description} ({device.backend})" for device in devices()],
        "n_cpus": os.cpu_count(),
        "library": [library["llama_cpp"], library["system"]],
        **sizes,
    }
    folder = costs_dir()
    if folder is None:
        return Remembered(key, None)
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return Remembered(key, folder / f"{name}.json")


def _checked(known: list[list[Any]]) -> list[list[Any]]:
    """Return estimates that can be loaded.

    Raises:
        ValueError: They cannot be.
        TypeError: Likewise.
    """
    Acceptance().load(known)
    return known


def _duration(value: Any) -> float:
    """Return seconds, 0 included.

    Raises:
        ValueError: They are not.
    """
    if not isinstance(value, (int, float)) or not 0.0 <= value <= _LONGEST:
        msg = f"{value!r} is no time that anything takes"
        raise ValueError(msg)
    return float(value)


def _attention(value: Any) -> Attention:
    """Return what a position costs.

    Raises:
        ValueError: It is something else.
        TypeError: There are too many or too few.
    """
    if isinstance(value, list):
        return Attention(*map(_duration, value))
    msg = f"{value!r} is not what a position costs"
    raise ValueError(msg)


def _curve(points: Mapping[str, Any]) -> dict[int, float]:
    """Return counts to seconds.

    Raises:
        ValueError: They are not.
    """
    curve = {int(count): _duration(seconds) for count, seconds in points.items()}
    if len(curve) > _MOST_POINTS or not all(0 < n <= _MOST_COUNTED and took >= _SHORTEST for n, took in curve.items()):
        msg = "there are too many times, or counts and times that nothing has"
        raise ValueError(msg)
    return curve
