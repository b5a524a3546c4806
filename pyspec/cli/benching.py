"""What ``pyspec bench`` measures with: models, sizes, this machine."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyspec
from pyspec.bench import PLAIN, Setting, Workload, parse_setting
from pyspec.bench.engines import EngineLab
from pyspec.bench.reporting import Report
from pyspec.bench.session import Session
from pyspec.bench.suggesting import grid, thread_counts
from pyspec.cli.probing import time_decodes
from pyspec.config import ContextConfig, default_threads
from pyspec.errors import ConfigError
from pyspec.llama import Model
from pyspec.llama.devices import devices, library_info
from pyspec.speculation.config import AUTO
from pyspec.speculation.detection import drafter_for

_MIB = 1 << 20
_N_TIMED = 17  # rows: the longest draft of auto, and the token before it


def lab_of(
    model: Model,
    draft_model: Model | None,
    sizes: ContextConfig,
    workloads: Sequence[Workload],
    *,
    n_slots: int,
    n_tokens: int,
) -> EngineLab:
    """Return a lab with room for the longest prompt and its answer in each slot.

    Raises:
        ConfigError: The model was not trained on that many tokens, and no context size was asked for.
    """
    prompts = [(prompt, workload.name) for workload in workloads for prompt in workload.prompts]
    longest, name = max(
        (len(model.vocab.tokenize(prompt, add_special=True, parse_special=True)), name) for prompt, name in prompts
    )
    trained = model.info.n_ctx_train
    if not sizes.n_ctx and 0 < trained < longest + n_tokens:
        msg = (
            f"The longest prompt of {name} has {longest} tokens, and {n_tokens} are to follow; {model.path.name} was "
            f"trained on {trained}. Use shorter ones, or give --ctx-size if it can do more."
        )
        raise ConfigError(msg)
    return EngineLab(model, draft_model, sizes, n_slots=n_slots, longest=longest, n_tokens=n_tokens, n_outputs=_N_TIMED)


def usual_settings(draft_model: Model | None, *, searches: bool) -> list[Setting]:
    """Return the settings to compare unless some are asked for."""
    drafter = None if draft_model is None else drafter_for(draft_model)
    if searches:
        return grid(drafter)
    return [parse_setting(text) for text in (AUTO, "suffix", *(() if drafter is None else (drafter,)))]


def curve_of(lab: EngineLab, progress: Callable[[float], None] | None) -> list[float]:
    """Return t(1), t(2), ..., relative to t(1), from an empty memory."""
    runner = lab.open(PLAIN)
    try:
        timed = runner.engine.call(lambda shop: time_decodes(shop.context, longest=_N_TIMED, progress=progress))
    finally:
        runner.close()
    return list(timed.relative)


def thread_counts_here() -> list[int]:
    """Return the numbers of threads to try on this machine."""
    try:
        n_cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        n_cpus = os.cpu_count() or 1
    return thread_counts(default_threads(), n_cpus)


def about(model: Model, draft_model: Model | None, sizes: ContextConfig) -> dict[str, Any]:
    """Return what a report must say about how it came to be."""
    library = library_info()
    names = [device.description for device in devices()]
    facts = {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv[1:]),
        "pyspec": pyspec.__version__,
        "llama.cpp": library["llama_cpp"],
        "system": library["system"],
        "platform": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "devices": ", ".join(names),
        "cpus": os.cpu_count(),
        "threads": sizes.n_threads or default_threads(),
        "model": f"{model.path.name}, {model.info.description}, {model.identity}",
    }
    if draft_model is not None:
        facts["draft model"] = f"{draft_model.path.name}, {draft_model.info.description}, {draft_model.identity}"
    return facts


def report_of(session: Session, settings: Sequence[Setting], curve: Sequence[float], facts: dict[str, Any]) -> Report:
    """Return the report of a session that ended."""
    return Report(
        about={**facts, "most memory": _most_memory()},
        comparisons=session.comparisons,
        settings=settings,
        n_slots=session.plan.n_slots,
        curve=curve,
        threads=session.threads,
        tried=session.tried,
        suggests=session.suggests,
        interrupted=session.interrupted,
        workloads=[workload.name for workload in session.workloads],
        piece=session.lab.piece,
    )


def _most_memory() -> str:
    """Return the most memory that this process had at once, as far as the system tells."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return "unknown"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{most // _MIB if sys.platform == 'darwin' else most // 1024} MiB"  # bytes there, KiB elsewhere
