"""A lab whose runners take as long as a script says, by a clock of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pyspec.bench import PLAIN, Run, Setting
from pyspec.engine import Result
from pyspec.engine.result import TopTokens
from pyspec.errors import DrafterError, UnsupportedError
from pyspec.speculation.stats import DrafterStats, GenerationStats

PROMPT_SECONDS = 5.0
N_PROMPT = 7
RIVAL, RIVAL_OF = 99, 3
"""Tokens that are half a logit apart in each row."""


@dataclass
class Script:
    """How a setting does.

    Attributes:
        token_seconds: Per measured run the seconds for a token; they repeat.
        answer: Returns the tokens of an answer.
        n_drafted: Length of each draft; all rounds have one.
        n_accepted: Tokens of it that stand.
    """

    token_seconds: Sequence[float] = (1.0,)
    answer: Callable[[str], list[int]] = lambda _prompt: [1, 2, 3, 4, 1]
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass
class FakeLab:
    """A lab for tests.

    Attributes:
        scripts: By label.
        impossible: Labels of settings that cannot work.
        by_threads: Seconds for a token by number of threads, where that is given.
        log: Labels in the order of the runs, with "?" behind those of inspected ones.
        break_at: Number of the run at which Ctrl-C comes.
        fail_at: Number of the run that fails.
        fails_to_close: Labels of settings that fail when they are closed.
        opened: Labels and threads, in order.
        n_open: Runners that are open.
        most_open: The most that ever were.
    """

    scripts: dict[str, Script] = field(default_factory=dict)
    impossible: Sequence[str] = ()
    by_threads: dict[int, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    break_at: int | None = None
    fail_at: int | None = None
    fails_to_close: Sequence[str] = ()
    opened: list[tuple[str, int | None]] = field(default_factory=list)
    n_open: int = 0
    most_open: int = 0

    def open(self, setting: Setting, n_threads: int | None = None) -> FakeRunner:
        if setting.label in self.impossible:
            msg = f"{setting.label} cannot work here."
            raise UnsupportedError(msg)
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        self.opened.append((setting.label, n_threads))
        script = self.scripts.get(setting.label, Script())
        if setting is PLAIN and n_threads in self.by_threads:
            script = Script((self.by_threads[n_threads],))
        return FakeRunner(self, setting.label, script)

    def piece(self, token: int) -> str:
        return f"<{token}>"


class FakeRunner:
    def __init__(self, lab: FakeLab, label: str, script: Script) -> None:
        self._lab = lab
        self._label = label
        self._script = script
        self._seconds: Iterator[float] = itertools.cycle(script.token_seconds)

    def run(self, prompts: Sequence[str], n_tokens: int, *, inspect: bool = False) -> Run:
        self._lab.log.append(f"{self._label}?" if inspect else self._label)
        if len(self._lab.log) == self._lab.break_at:
            raise KeyboardInterrupt
        if len(self._lab.log) == self._lab.fail_at:
            msg = f"{self._label} failed."
            raise DrafterError(msg)
        per_token = 1.0 if inspect else next(self._seconds)
        results = tuple(self._result(prompt, n_tokens, per_token) for prompt in prompts)
        n_after_first = sum(len(result.tokens) - 1 for result in results)
        seconds = PROMPT_SECONDS + n_after_first * per_token
        return Run(results, seconds, ((1, per_token),) * n_after_first if inspect or len(prompts) == 1 else ())

    def close(self) -> None:
        self._lab.n_open -= 1
        if self._label in self._lab.fails_to_close:
            msg = f"{self._label} cannot be saved."
            raise DrafterError(msg)

    def _result(self, prompt: str, n_tokens: int, per_token: float) -> Result:
        tokens = self._script.answer(prompt)[:n_tokens]
        n_drafted, n_accepted = self._script.n_drafted, self._script.n_accepted
        n_rounds = len(tokens) // (1 + n_accepted)
        drafter = DrafterStats()
        for _ in range(n_rounds if n_drafted else 0):
            drafter.count(n_drafted, n_accepted)
        seconds = (len(tokens) - 1) * per_token
        stats = GenerationStats(
            n_prompt=N_PROMPT,
            n_rounds=n_rounds,
            n_emitted=len(tokens),
            n_drafted=drafter.n_drafted,
            n_accepted=drafter.n_accepted,
            prompt_seconds=PROMPT_SECONDS,
            seconds={"draft": 0.25 * seconds, "verify": 0.5 * seconds, "total": 0.9 * seconds},
            n_first=1,
        )
        top: list[TopTokens] = [((token, 3.0), (RIVAL if token != RIVAL else RIVAL_OF, 2.5)) for token in tokens]
        return Result(tokens=tokens, prompt_tokens=[1], stats=stats, top=top, drafters={"fake": drafter})
