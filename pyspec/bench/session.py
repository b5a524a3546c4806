"""A whole measurement: the settings asked for, or a search for the best ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspec.bench.comparing import Bench, Comparison, Plan
from pyspec.bench.figures import figures_of
from pyspec.bench.running import Lab
from pyspec.bench.setting import Setting
from pyspec.bench.suggesting import ThreadSpeed, accepts, n_thread_runs, overall, thread_speeds, usable
from pyspec.bench.workloads import Workload
from pyspec.errors import PyspecError

_N_FINALISTS = 3
Progress = Callable[[int, int], object]
"""Gets the number of runs that are done, and of all."""


@dataclass(slots=True)
class Session:
    """What is measured, and what was. Ctrl-C or a failure ends it, and what was measured until then stays.

    Attributes:
        lab: Makes the runners.
        workloads: The workloads.
        plan: How much to measure.
        progress: Called after each run.
        comparisons: What was measured; of a search, the last round's.
        tried: Of a search, all settings with their overall ratio of the first round, the best one first; those of which
            no draft was accepted come last.
        threads: Of a search, plain decoding by number of threads, the fastest first.
        interrupted: Whether it was broken off.
        failure: Why, unless it was by Ctrl-C.
        suggests: Whether it was a search.
    """

    lab: Lab
    workloads: Sequence[Workload]
    plan: Plan
    progress: Progress | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    tried: list[tuple[str, float]] = field(default_factory=list)
    threads: list[ThreadSpeed] = field(default_factory=list)
    interrupted: bool = False
    failure: PyspecError | None = None
    suggests: bool = False
    _n_done: int = 0
    _n_runs: int = 0

    def run(self, settings: Sequence[Setting]) -> None:
        """Compare settings with plain decoding.

        Raises:
            PyspecError: A setting cannot work, and nothing was measured before that showed.
        """
        self._n_runs = self.plan.n_runs(self.workloads, len(settings))
        with self._keeping():
            self._compare(settings, self.plan)

    def search(self, settings: Sequence[Setting], thread_counts: Sequence[int]) -> None:
        """Find the best number of threads for plain decoding, and with it the best settings.

        All are measured with one pair, and the best three again with as many as the plan says. Settings of which no
        draft was accepted come last: they are plain decoding, and faster or slower by noise.

        Raises:
            PyspecError: No setting can work, or one failed before anything was measured.
        """
        self.suggests = True
        quick = replace(self.plan, n_pairs=1)
        with self._keeping():
            possible = usable(self.lab, settings)
            n_finalists = min(_N_FINALISTS, len(possible))
            self._n_runs = quick.n_runs(self.workloads, len(possible)) + self.plan.n_runs(self.workloads, n_finalists)
            self._n_runs += n_thread_runs(thread_counts)
            prompt = self.workloads[0].prompts[0]
            self.threads = thread_speeds(self.lab, prompt, thread_counts, self.plan.n_tokens, self._step)
            self._compare(possible, quick)
            figures = [figures_of(comparison) for comparison in self.comparisons]
            self.tried = sorted(overall(figures), key=lambda found: not accepts(found[0], figures))
            by_label = {setting.label: setting for setting in possible}
            self._compare([by_label[label] for label, _ratio in self.tried[:n_finalists]], self.plan)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Keep what was measured when the block is broken off, by Ctrl-C or by a setting that fails."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
        except PyspecError as error:
            if not (self.tried or any(comparison.pairs or comparison.verdicts for comparison in self.comparisons)):
                raise
            self.interrupted, self.failure = True, error

    def _compare(self, settings: Sequence[Setting], plan: Plan) -> None:
        n_threads = self.threads[0].n_threads if self.threads else None
        bench = Bench(self.lab, self.workloads, plan, self._step, n_threads)
        self.comparisons = bench.comparisons
        bench.run(settings)

    def _step(self) -> None:
        self._n_done += 1
        if self.progress is not None:
            self.progress(self._n_done, self._n_runs)
