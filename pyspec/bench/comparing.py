"""Plain decoding and other settings in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspec.bench.running import Lab, Run, Runner
from pyspec.bench.setting import PLAIN, Setting
from pyspec.bench.workloads import Workload
from pyspec.engine.slots import common_length
from pyspec.trace import Comparison as Verdict
from pyspec.trace import compare

_PROMPTS_PER_SLOT = 4
_AT_ONCE = 5  # settings that take turns: each holds memory for a context of its own
Step = Callable[[], None]
"""Is called after each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure.

    Attributes:
        n_tokens: Most tokens of an answer.
        n_pairs: Pairs per workload and setting.
        n_slots: Prompts that are answered at once.
        tie: Logits nearer than this are level, so that either token is right; None does not compare outputs by logits.
    """

    n_tokens: int
    n_pairs: int
    n_slots: int = 1
    tie: float | None = None

    def batches(self, workload: Workload) -> list[tuple[str, ...]]:
        """Return the prompts that are answered at once.

        With one slot each prompt is alone. Otherwise several for each slot are handed in together: where drafts stand,
        an answer ends early, and its slot has to go on with another one. Prompts come again for that, with a number in
        front so that none finds another one's memory.
        """
        if self.n_slots == 1:
            return [(prompt,) for prompt in workload.prompts]
        prompts, n_prompts = workload.prompts, len(workload.prompts)
        n_all = max(n_prompts, _PROMPTS_PER_SLOT * self.n_slots)
        again = tuple(f"{i}. {prompts[i % n_prompts]}" for i in range(n_prompts, n_all))
        return [(*prompts, *again)]

    def n_runs(self, workloads: Sequence[Workload], n_settings: int) -> int:
        """Return how many runs a bench with so many settings has."""
        n_batches = sum(len(self.batches(workload)) for workload in workloads)
        n_groups = -(-n_settings // _AT_ONCE)
        n_inspected = n_settings + (n_groups if len(workloads) > 1 else 1)  # see Bench
        return n_batches * (n_inspected + n_settings * 2 * self.n_pairs)


@dataclass(frozen=True, slots=True)
class Pair:
    """One workload, answered twice; a run per batch."""

    plain: tuple[Run, ...]
    other: tuple[Run, ...]

    @property
    def speeds(self) -> tuple[float, float]:
        """Tokens per second of plain decoding and of the setting, 0 when nothing counts.

        Of a prompt by itself the tokens after the first one count, with what the first round took longer than plain
        decoding's: it may have a draft, too. Where the answers part, another text begins, which may be easier or harder
        to draft. So what both said counts.
        """
        counted: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
        for runs in zip(self.plain, self.other, strict=True):
            plain = runs[0].results[0]
            n_same = common_length(plain.tokens, runs[1].results[0].tokens)
            for run, found in zip(runs, counted, strict=True):
                alone = len(run.results) == 1
                found.append(run.after_first_token(n_same, plain.stats.prompt_seconds) if alone else run.counted)
        return _rate(counted[0]), _rate(counted[1])

    @property
    def ratio(self) -> float | None:
        """The setting's speed by plain decoding's; None when one of them said nothing."""
        plain, other = self.speeds
        return other / plain if plain and other else None

    @property
    def equal(self) -> bool:
        """Whether all outputs are the same."""
        return all(
            ours.tokens == theirs.tokens
            for plain, other in zip(self.plain, self.other, strict=True)
            for ours, theirs in zip(plain.results, other.results, strict=True)
        )


def speed(runs: Sequence[Run]) -> float:
    """Return tokens per second of some runs together, 0 when nothing was said."""
    return _rate([run.counted for run in runs])


def _rate(counted: Sequence[tuple[int, float]]) -> float:
    seconds = sum(each for _n_tokens, each in counted)
    return sum(n_tokens for n_tokens, _each in counted) / seconds if seconds > 0 else 0.0


@dataclass(slots=True)
class Comparison:
    """A setting against plain decoding on one workload; it grows with each pair.

    Attributes:
        workload: Its name.
        setting: The setting.
        pairs: What was measured.
        inspected: The first run of each batch, which is not measured: it warms up, and is looked at closely.
        plain_inspected: The same of plain decoding.
        verdicts: Whether both say the same: per prompt of the inspected runs, then likewise of each pair, whose runs
            are judged by the inspected run of plain decoding. Empty unless asked.
    """

    workload: str
    setting: Setting
    pairs: list[Pair] = field(default_factory=list)
    inspected: tuple[Run, ...] = ()
    plain_inspected: tuple[Run, ...] = ()
    verdicts: list[Verdict] = field(default_factory=list)


class Bench:
    """Compares settings with plain decoding on some workloads.

    A few settings take turns, each after a run of plain decoding: a machine that others use is faster in one minute
    than in the next, and decodes of several rows not by the same factor as those of one.

    Args:
        lab: Makes the runners.
        workloads: The workloads.
        plan: How much to measure.
        step: Called after each run.
        n_threads: In place of the lab's own number.

    Attributes:
        comparisons: What was measured so far, also when it was broken off.
    """

    def __init__(
        self,
        lab: Lab,
        workloads: Sequence[Workload],
        plan: Plan,
        step: Step = lambda: None,
        n_threads: int | None = None,
    ) -> None:
        self.comparisons: list[Comparison] = []
        self._lab = lab
        self._workloads = workloads
        self._plan = plan
        self._step = step
        self._n_threads = n_threads
        self._plain_inspected: tuple[Run, ...] = ()
        self._plain_knows = ""  # the workload that it answered last

    def run(self, settings: Sequence[Setting]) -> list[Comparison]:
        """Measure all; returns the comparisons that were added."""
        first = len(self.comparisons)
        with contextlib.closing(self._lab.open(PLAIN, self._n_threads)) as plain:
            for i in range(0, len(settings), _AT_ONCE):
                with contextlib.ExitStack() as stack:
                    group = settings[i : i + _AT_ONCE]
                    opened = (self._lab.open(setting, self._n_threads) for setting in group)
                    others = [stack.enter_context(contextlib.closing(other)) for other in opened]
                    for workload in self._workloads:
                        self._compare(plain, others, group, workload)
        return self.comparisons[first:]

    def _compare(
        self, plain: Runner, others: Sequence[Runner], settings: Sequence[Setting], workload: Workload
    ) -> None:
        batches = self._plan.batches(workload)
        found = [Comparison(workload.name, setting) for setting in settings]
        self.comparisons += found
        if workload.name != self._plain_knows:
            # What a slot holds is not read again, and what is read in other pieces is rounded otherwise: both must have
            # answered the same before.
            self._plain_inspected, self._plain_knows = self._inspect(plain, batches), workload.name
        for comparison, other in zip(found, others, strict=True):
            comparison.plain_inspected = self._plain_inspected
            comparison.inspected = self._inspect(other, batches)
            if self._plan.tie is not None:
                comparison.verdicts += _verdicts(comparison, comparison.inspected, self._plan.tie)
        for _ in range(self._plan.n_pairs):
            for comparison, other in zip(found, others, strict=True):
                pair = self._pair(plain, other, batches)
                comparison.pairs.append(pair)
                if self._plan.tie is not None:
                    comparison.verdicts += _verdicts(comparison, pair.other, self._plan.tie, by_plain=True)

    def _inspect(self, runner: Runner, batches: Sequence[Sequence[str]]) -> tuple[Run, ...]:
        runs = []
        for prompts in batches:
            runs.append(runner.run(prompts, self._plan.n_tokens, inspect=True))
            self._step()
        return tuple(runs)

    def _pair(self, plain: Runner, other: Runner, batches: Sequence[Sequence[str]]) -> Pair:
        runs: tuple[list[Run], list[Run]] = ([], [])
        for prompts in batches:
            for runner, made in zip((plain, other), runs, strict=True):
                made.append(runner.run(prompts, self._plan.n_tokens))
                self._step()
        return Pair(tuple(runs[0]), tuple(runs[1]))


def _verdicts(comparison: Comparison, runs: Sequence[Run], tie: float, *, by_plain: bool = False) -> list[Verdict]:
    """Judge what a setting's runs say, which had largest logits noted unless ``by_plain``."""
    return [
        compare(ours, theirs, epsilon=tie, by_plain=by_plain)
        for plain, other in zip(comparison.plain_inspected, runs, strict=True)
        for ours, theirs in zip(plain.results, other.results, strict=True)
    ]
