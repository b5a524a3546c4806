"""One generation, from the prompt to the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from types import TracebackType

from pyspec.config import SamplingConfig
from pyspec.drafters import Chain
from pyspec.drafters.registry import options_of
from pyspec.engine.result import Chunk, Observer, Result, RunInfo
from pyspec.engine.text import TextStream
from pyspec.errors import BusyError
from pyspec.llama.batch import NO_TOKEN
from pyspec.llama.context import Context
from pyspec.llama.model import Model
from pyspec.speculation.accept import AcceptRule
from pyspec.speculation.config import Speculation
from pyspec.speculation.ending import Finish
from pyspec.speculation.round import Outcome, RoundBatch, run_round
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.verify import catch_up


@dataclass(slots=True)
class Workplace:
    """What the generations of an engine share, one at a time.

    Attributes:
        model: The target's model.
        context: The target.
        chain: The drafters.
        rule: How drafts are accepted, unless a job says otherwise.
        speculation: What was asked, for observers.
        piece: Returns the bytes of a token.
        busy: A generation is under way.
    """

    model: Model
    context: Context
    chain: Chain
    rule: AcceptRule
    speculation: Speculation
    piece: Callable[[int], bytes]
    busy: bool = False


@dataclass(slots=True)
class Job:
    """A checked request.

    Attributes:
        sequence: Where it starts.
        sampling: How the target chooses.
        observer: Who follows it, or None.
        result: Filled round by round.
        rule: How its drafts are accepted; None takes the workplace's.
    """

    sequence: Sequence
    sampling: SamplingConfig
    observer: Observer | None
    result: Result = field(default_factory=Result)
    rule: AcceptRule | None = None


class Generation(Iterator[Chunk]):
    """An answer in the making; iterate over it for one chunk per round.

    An end that comes without a round, such as a full context, has a last chunk without tokens.

    Leaving early is fine, by ``close()``, by leaving a ``with`` block, or by forgetting it: memory, drafters and
    sampler end at the committed length.

    Attributes:
        result: What there is so far; complete when the iteration ends.
    """

    def __init__(self, workplace: Workplace, job: Job) -> None:
        self.result = job.result
        self._chunks = _play(workplace, job)  # holds no reference to self, so forgetting self ends it at once

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """End the generation now; ``result.finish`` becomes "cancelled" unless it had ended. May be called again."""
        self._chunks.close()
        self.result.finish = self.result.finish or Finish.CANCELLED  # a generation that never began has no handler

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _play(workplace: Workplace, job: Job) -> Generator[Chunk, None, None]:
    """Play a job to its end, whatever that is, and tell the observer."""
    if workplace.busy:
        msg = "This engine is still generating; finish or close the running stream first."
        raise BusyError(msg)
    result, observer = job.result, job.observer or _Nobody()
    try:
        workplace.busy = True
        observer.begin(_run_info(workplace, job))
        text = TextStream()
        for outcome in _rounds(workplace, job):
            observer.round(outcome)
            chunk = _chunk(outcome, text.release(job.sequence.ending, outcome.finish), workplace.piece)
            result.text += chunk.text
            result.sources += chunk.sources
            result.finish = outcome.finish
            yield chunk
        if result.finish is None:
            result.finish = Finish.LENGTH if job.sequence.ending.remaining <= 0 else Finish.CONTEXT
            chunk = Chunk(text.release(job.sequence.ending, result.finish), (), (), (), result.finish)
            result.text += chunk.text
            yield chunk
    except GeneratorExit:
        result.finish = result.finish or Finish.CANCELLED
        _report_rest(job)
    except BaseException as error:
        result.finish = Finish.CANCELLED if isinstance(error, KeyboardInterrupt) else Finish.ERROR
        _report_rest(job)
        raise
    finally:
        workplace.busy = False
        observer.end(result)


def _report_rest(job: Job) -> None:
    """Put into the result what was emitted and had no chunk, because something raised or the caller left."""
    sequence, result, ending = job.sequence, job.result, job.sequence.ending
    result.tokens[:] = [*sequence.history, sequence.pending][len(result.prompt_tokens) :]
    n_tokens = len(result.tokens)
    result.sources += ["unknown"] * (n_tokens - len(result.sources))
    if sequence.n_top:
        result.top += [()] * (n_tokens - len(result.top))
    result.text = bytes(ending.text[: ending.cut]).decode("utf-8", errors="replace")


class _Nobody:
    """The observer of a generation that nobody follows."""

    def begin(self, info: RunInfo) -> None: ...

    def round(self, outcome: Outcome) -> None: ...

    def end(self, result: Result) -> None: ...


def _rounds(workplace: Workplace, job: Job) -> Iterator[Outcome]:
    """The loop: read the prompt, then play rounds until the sequence ends."""
    sequence, result, context = job.sequence, job.result, workplace.context
    began = time.perf_counter()
    batch, rule = RoundBatch([sequence]), job.rule or workplace.rule
    result.valid = rule.valid
    context.memory.clear(sequence.seq_id)
    result.drafters = workplace.chain.new_stats()
    workplace.chain.begin(sequence.seq_id, sequence.history, sequence.rows)
    sequence.lag = sequence.n_committed
    catch_up(context, batch.buffer, sequence, workplace.chain)
    if job.sampling.has_penalties:
        sampler = getattr(sequence.sampler, "unconstrained", sequence.sampler)  # a prompt need not be grammatical
        for token in result.prompt_tokens:
            if token != NO_TOKEN:
                sampler.accept(token)
    result.stats.prompt_seconds = time.perf_counter() - began
    result.stats.n_prompt = len(result.prompt_tokens)
    while sequence.ending.remaining > 0 and sequence.n_committed < context.n_ctx_seq:
        outcome = run_round(batch, workplace.chain, context, rule)[0]
        result.stats.count(outcome)
        result.tokens += outcome.emitted
        result.top += outcome.top
        result.logprobs += outcome.logprobs
        yield outcome
        if outcome.finish is not None:
            return


def _chunk(outcome: Outcome, text: str, piece: Callable[[int], bytes]) -> Chunk:
    pieces = tuple(map(piece, outcome.emitted))
    return Chunk(text, outcome.emitted, outcome.sources, pieces, outcome.finish, outcome.logprobs, outcome.top)


def _run_info(workplace: Workplace, job: Job) -> RunInfo:
    speculation = workplace.speculation
    draft_model = speculation.draft_model
    return RunInfo(
        model=str(workplace.model.path),
        draft_model=None if draft_model is None else str(draft_model.path),
        speculation={
            "types": list(speculation.types or ()),
            "options": {drafter.name: options_of(drafter) for drafter in workplace.chain.drafters},
            "rule": (job.rule or workplace.rule).name,
        },
        sampling={**dataclasses.asdict(job.sampling), "seed": job.result.seed},
        prompt_tokens=job.result.prompt_tokens,
    )
