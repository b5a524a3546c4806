"""Runs by engines of this package."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspec.bench.running import Run
from pyspec.bench.setting import Setting
from pyspec.config import ContextConfig
from pyspec.engine import Engine, Result, RunInfo, Settings
from pyspec.engine.generation import Generation
from pyspec.engine.many import Answers
from pyspec.engine.prompt import Prompt
from pyspec.llama.model import Model
from pyspec.speculation import Outcome

if TYPE_CHECKING:
    from typing_extensions import Unpack

_N_TOP = 8  # logits per token: where two runs differ, both tokens are nearly always among them
_SHARES = (0.5, 0.75, 1.0)  # of the most tokens, for answers that share the slots
_MARGIN = 72  # tokens of context that a draft may want beyond the answer


class EngineLab:
    """Makes engines that share one loaded model.

    Args:
        model: The target.
        draft_model: For the settings that have a use for it.
        context: Sizes; without ``n_ctx`` each slot gets what ``longest`` and ``n_tokens`` need.
        n_slots: Prompts at once.
        longest: Tokens of the longest prompt.
        n_tokens: Most tokens of an answer.
        n_outputs: Logits rows that a decode must be able to have, for measuring decodes.
    """

    def __init__(
        self,
        model: Model,
        draft_model: Model | None,
        context: ContextConfig,
        *,
        n_slots: int,
        longest: int,
        n_tokens: int,
        n_outputs: int = 1,
    ) -> None:
        self._model = model
        self._draft_model = draft_model
        n_ctx = context.n_ctx or n_slots * (longest + n_tokens + _MARGIN)
        self._context = dataclasses.replace(context, n_ctx=n_ctx)
        self._n_slots = n_slots
        self._n_outputs = n_outputs

    def open(self, setting: Setting, n_threads: int | None = None) -> EngineRunner:
        """See ``Lab``."""
        context = self._context
        if n_threads is not None:
            context = dataclasses.replace(context, n_threads=n_threads, n_threads_batch=n_threads)
        if not setting.types:
            context = dataclasses.replace(context, n_outputs_max=max(self._n_outputs, self._n_slots))
        speculation = setting.speculation(self._draft_model)
        return EngineRunner(Engine(self._model, speculation=speculation, context=context, n_slots=self._n_slots))

    def piece(self, token: int) -> str:
        """See ``Lab``."""
        return self._model.vocab.detokenize([token], special=True)


class EngineRunner:
    """Answers prompts with one engine, which is closed with it.

    Drafters forget a request when the next one begins, unless told otherwise, so a prompt that comes again is drafted
    for as at the first time.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine = engine
        self._clock = clock

    def run(self, prompts: Sequence[str], n_tokens: int, *, inspect: bool = False) -> Run:
        """See ``Runner``."""
        rounds = _Rounds()
        settings: Settings = {"max_tokens": n_tokens}
        if inspect or len(prompts) == 1:
            settings["observer"] = rounds
        if inspect:
            settings["n_top"] = _N_TOP
        began = self._clock()
        if len(prompts) == 1:
            results = [self.engine.generate(prompts[0], **settings)]
        else:
            results = Answers(_Unequal(self.engine), prompts, settings, progress=False).collect()
        return Run(tuple(results), self._clock() - began, tuple(rounds.seen))

    def close(self) -> None:
        """See ``Runner``."""
        self.engine.close()


class _Unequal:
    """An engine whose answers end at different lengths, as they do in use.

    With equal ones plain decoding would read the next prompts of all slots at once, which is quicker than one by one,
    and drafts, by which some answers end earlier, would seem to cost that.

    Args:
        engine: Who answers.
    """

    def __init__(self, engine: Engine) -> None:
        self.n_slots = engine.n_slots
        self.n_queue = engine.n_queue
        self._engine = engine
        self._n_begun = 0

    def stream(self, prompt: Prompt, **settings: Unpack[Settings]) -> Generation:
        """Begin with the next answer; ``max_tokens`` is the most that any of them may have."""
        share = _SHARES[self._n_begun % len(_SHARES)]
        settings["max_tokens"] = max(1, int(share * (settings["max_tokens"] or 0)))
        generation = self._engine.stream(prompt, **settings)
        self._n_begun += 1
        return generation


class _Rounds:
    """Notes tokens and seconds of the rounds after a request's first."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def begin(self, info: RunInfo) -> None:
        """A generation starts."""

    def round(self, outcome: Outcome) -> None:
        """A round was played."""
        if not outcome.first:
            self.seen.append((len(outcome.emitted), outcome.seconds["total"]))

    def end(self, result: Result) -> None:
        """The generation ended."""
