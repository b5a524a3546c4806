"""Searching for the best number of threads and the best setting."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspec.bench.comparing import Step, speed
from pyspec.bench.figures import Figures, Spread, spread_of
from pyspec.bench.running import Lab
from pyspec.bench.setting import PLAIN, Setting, parse_setting
from pyspec.errors import PyspecError
from pyspec.speculation.config import AUTO

_N_TURNS = 3  # measurements per number of threads, after one that warms up
_LOOKUPS = ("suffix:n_max=8", "suffix", "ngram-simple:size_m=8", "ngram-simple", "ngram-mod")
_LENGTHS = (2, 3, 5, 7)
_GAIN = 1.02  # less is not worth a flag: it may as well be chance


@dataclass(frozen=True, slots=True)
class ThreadSpeed:
    """Plain decoding with a number of threads."""

    n_threads: int
    speed: Spread


def thread_counts(n_cores: int, n_cpus: int) -> list[int]:
    """Return the numbers of threads to try: powers of two, all cores, all hardware threads."""
    powers = (1 << i for i in range(n_cpus.bit_length()))
    return sorted({*(n for n in powers if n <= n_cpus), min(n_cores, n_cpus), n_cpus})


def thread_speeds(
    lab: Lab, prompt: str, counts: Sequence[int], n_tokens: int, step: Step = lambda: None
) -> list[ThreadSpeed]:
    """Measure plain decoding with different numbers of threads, in turns; the fastest comes first."""
    speeds: dict[int, list[float]] = {count: [] for count in counts}
    with contextlib.ExitStack() as stack:
        runners = {count: stack.enter_context(contextlib.closing(lab.open(PLAIN, count))) for count in counts}
        for turn in range(1 + _N_TURNS):
            for count, runner in runners.items():
                measured = speed((runner.run((prompt,), n_tokens),))
                if turn:
                    speeds[count].append(measured)
                step()
    spreads = ((count, spread_of(measured)) for count, measured in speeds.items())
    found = [ThreadSpeed(count, spread) for count, spread in spreads if spread is not None]
    return sorted(found, key=lambda each: -each.speed.median)


def n_thread_runs(counts: Sequence[int]) -> int:
    """Return how many runs ``thread_speeds`` has."""
    return len(counts) * (1 + _N_TURNS)


def grid(model_drafter: str | None) -> list[Setting]:
    """Return the settings to try.

    Args:
        model_drafter: The drafter that the draft model is made for, if there is one.
    """
    with_model = () if model_drafter is None else (f"{model_drafter}:n_max={n}" for n in _LENGTHS)
    return [parse_setting(text) for text in (AUTO, *_LOOKUPS, *with_model)]


def overall(figures: Iterable[Figures]) -> list[tuple[str, float]]:
    """Return per setting the geometric mean of its median ratios over the workloads, the best one first."""
    logs: dict[str, list[float]] = {}
    for each in figures:
        if each.ratio is not None and each.ratio.median > 0:
            logs.setdefault(each.setting, []).append(math.log(each.ratio.median))
    means = {label: math.exp(sum(found) / len(found)) for label, found in logs.items()}
    return sorted(means.items(), key=lambda item: -item[1])


def usable(lab: Lab, settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings that can work with these models.

    Raises:
        PyspecError: None can; this is why the last one cannot.
    """
    found, reason = [], None
    for setting in settings:
        try:
            lab.open(setting).close()
        except PyspecError as error:  # noqa: PERF203 - a few times
            reason = error
        else:
            found.append(setting)
    if not found and reason is not None:
        raise reason
    return found


def accepts(label: str, figures: Iterable[Figures]) -> bool:
    """Return whether any draft of a setting was accepted; without, it is plain decoding, and its ratio noise."""
    return any(each.acceptance for each in figures if each.setting == label)


def best_setting(figures: Sequence[Figures], settings: Sequence[Setting]) -> tuple[Setting, float]:
    """Return the setting to use, and its overall ratio: plain decoding and 1 where none is worth it."""
    ranked = [found for found in overall(figures) if accepts(found[0], figures)]
    if not ranked or ranked[0][1] < _GAIN:
        return PLAIN, 1.0
    label, ratio = ranked[0]
    return next(setting for setting in settings if setting.label == label), ratio
