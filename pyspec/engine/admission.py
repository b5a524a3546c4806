"""From what a user asks to a request that can run: everything is checked here, before anything waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from pyspec.config import MAX_INT32, SamplingConfig, require_bool, require_float, require_int, shown
from pyspec.drafters.registry import options_of
from pyspec.engine.prompt import Prompt, checked_prompt, checked_stops
from pyspec.engine.request import Event, Request
from pyspec.engine.result import Observer, RunInfo
from pyspec.engine.saving import SavedSlot, advance, settings_of
from pyspec.errors import ConfigError, StateError, UnsupportedError
from pyspec.llama.constrained import ConstrainedSampler
from pyspec.llama.grammar import Grammar
from pyspec.llama.minimum import Constraint, MinimumLength
from pyspec.llama.model import Model
from pyspec.llama.sampler import GreedySampler, SamplerChain, make_sampler
from pyspec.speculation.accept import AcceptRule
from pyspec.speculation.config import AUTO, Speculation
from pyspec.speculation.draft import FREELY, Drafting
from pyspec.speculation.ending import Ending
from pyspec.speculation.sequence import Sequence as SequenceState

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyspec.engine.worker import Workshop

_OBSERVER_HOOKS = ("begin", "round", "end")
_NO_SLOT_YET = -1
_MOST_SECONDS = 1e9
SAMPLING_OF_RULE = {"rejection": "probabilistic", "coupled": "coupled"}
"""Rules that judge drafts by a distribution, and how drafts are best drawn for them."""


class Settings(TypedDict, total=False):
    """What a request may say; each can be left out.

    Attributes:
        max_tokens: Most tokens to emit; None goes on until the model ends or the context is full.
        min_tokens: Fewest tokens before one that ends the generation; until then no such token is chosen, unless the
            grammar leaves nothing else.
        sampling: How the target chooses; None takes the most likely token.
        stop: Strings to stop before.
        stop_tokens: Tokens that end the generation besides the model's own; like these they are emitted without text.
        rule: How drafts are accepted: "match", "rejection", "coupled" or "synthetic"; None takes the engine's.
        grammar: What the output must look like: a JSON schema, a regular expression, Lark or GBNF.
        n_top: How many of the largest logits to report per token.
        logprobs: Report the log-probability of each token, as the model gives it, before any sampling.
        observer: Follows the rounds, for example a ``pyspec.trace.TraceWriter``.
        drafting: Which of the engine's drafters to ask, and how far they may go; None leaves that to the engine.
            ``Drafting("none")`` decodes plainly.
        priority: Requests that wait get a slot by this, lower ones first; equals in the order they came.
        timeout: Seconds until the request must have ended, the time it waits included.
    """

    max_tokens: int | None
    min_tokens: int
    sampling: SamplingConfig | None
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]
    rule: str | None
    grammar: Grammar | None
    n_top: int
    logprobs: bool
    observer: Observer | None
    drafting: Drafting | None
    priority: int
    timeout: float | None


_DEFAULTS: Mapping[str, Any] = {
    "max_tokens": None,
    "min_tokens": 0,
    "sampling": None,
    "stop": (),
    "stop_tokens": (),
    "rule": None,
    "grammar": None,
    "n_top": 0,
    "logprobs": False,
    "observer": None,
    "drafting": None,
    "priority": 0,
    "timeout": None,
}


class Admitted(NamedTuple):
    """A request, what it starts with, and who follows it."""

    request: Request
    info: RunInfo
    observer: Observer | None


@dataclass(frozen=True, slots=True)
class Admission:
    """Checks requests to one engine. Any thread may use it.

    Attributes:
        model: The target's model.
        speculation: What the engine was asked for.
        drafters: Per drafter its options in force.
        n_max: Longest draft of any of them.
        rule: How drafts are accepted, unless a request says otherwise.
        n_ctx_seq: Tokens that one request may have.
        n_vocab: Size of the vocabulary.
        fingerprint: Of the model and its memory.
        shifts: Whether a request goes on when its context is full.
        piece: Returns the bytes of a token.
    """

    model: Model
    speculation: Speculation
    drafters: Mapping[str, Mapping[str, Any]]
    n_max: int
    rule: AcceptRule
    n_ctx_seq: int
    n_vocab: int
    fingerprint: str
    shifts: bool
    piece: Callable[[int], bytes]

    def admit(self, prompt: Prompt, tell: Callable[[Event], None], **settings: Unpack[Settings]) -> Admitted:
        """Return a request; see ``Settings`` and ``Engine.stream``."""
        unknown = next((name for name in settings if name not in _DEFAULTS), None)
        if unknown is not None:
            msg = f"There is no setting {unknown!r}; a request may have {', '.join(_DEFAULTS)}."
            raise TypeError(msg)
        wanted: Any = {**_DEFAULTS, **settings}
        sampling = wanted["sampling"] if wanted["sampling"] is not None else SamplingConfig()
        sampler = make_sampler(sampling, self.n_vocab, self.model.vocab)
        rule = None if wanted["rule"] is None else self.speculation.make_rule(wanted["rule"], self.n_max)
        _require_distribution(rule or self.rule, sampler)
        if self.shifts and (rule or self.rule).name in SAMPLING_OF_RULE:
            msg = f'With n_keep the rule "{(rule or self.rule).name}" would draw the same numbers again; use "match".'
            raise UnsupportedError(msg)
        tokens, rows = checked_prompt(prompt, self.model, self.n_ctx_seq)
        limit, checked = wanted["max_tokens"], checked_stops(wanted["stop"])
        most = None if limit is None else require_int("max_tokens", limit, 0, MAX_INT32)
        stop_tokens = list(self.model.vocab.check(wanted["stop_tokens"]))
        ends = self.model.vocab.eog.union(stop_tokens)
        n_min = require_int("min_tokens", wanted["min_tokens"], 0, MAX_INT32)
        constraint = self._constraint(wanted["grammar"], n_min, ends)
        sequence = SequenceState(
            seq_id=_NO_SLOT_YET,
            history=tokens[:-1],
            pending=tokens[-1],
            sampler=sampler if constraint is None else ConstrainedSampler(sampler, constraint),
            ending=Ending(
                eog=ends,
                max_tokens=MAX_INT32 if most is None else most,
                stops=checked,
                piece=self.piece,
            ),
            temperature=sampling.temperature,
            seed=sampler.seed,
            n_top=require_int("n_top", wanted["n_top"], 0, self.n_vocab),
            wants_logprobs=require_bool("logprobs", wanted["logprobs"]),
            rows=rows,
            rule=rule or self.rule,
            drafting=self._checked_drafting(wanted["drafting"]),
        )
        stops = [stop.decode("utf-8", errors="surrogatepass") for stop in checked]
        settled = {"max_tokens": most, "min_tokens": n_min, "grammar": wanted["grammar"]}
        settled.update(stop=stops, stop_tokens=stop_tokens)
        request = Request(sequence, tokens, sampling, tell, settings=settled)
        request.priority = require_int("priority", wanted["priority"], -MAX_INT32, MAX_INT32)
        if wanted["timeout"] is not None:
            request.deadline = request.submitted + require_float("timeout", wanted["timeout"], 0.0, _MOST_SECONDS)
        info = self._info(request, sampler.seed)
        sampler.hand_over()
        return Admitted(request, info, _checked_observer(wanted["observer"]))

    def readmit(self, saved: SavedSlot, tell: Callable[[Event], None], observer: Observer | None) -> Admitted:
        """Return a request that goes on where it was saved.

        Raises:
            StateError: It belongs to another model or another layout of memory.
        """
        self.require_fitting(saved)
        described = saved.request or {}
        settings = settings_of(described)
        admitted = self.admit(saved.tokens[: described["n_prompt"]], tell, **settings, observer=observer)
        if len(saved.tokens) > self.n_ctx_seq:
            msg = f"The slot was saved with {len(saved.tokens)} tokens; this engine has room for {self.n_ctx_seq}."
            raise StateError(msg)
        advance(admitted.request, saved.tokens, described)
        admitted.request.saved = saved
        return admitted

    def require_fitting(self, saved: SavedSlot) -> None:
        """Refuse what was saved elsewhere.

        Raises:
            StateError: It belongs to another model or another layout of memory.
        """
        if saved.fingerprint != self.fingerprint:
            msg = f"The slot was saved with {saved.fingerprint}; this engine has {self.fingerprint}."
            raise StateError(msg)

    def _constraint(self, grammar: Grammar | None, n_min: int, ends: frozenset[int]) -> Constraint | None:
        """Return what the output must be like, or None."""
        if grammar is not None and not isinstance(grammar, Grammar):
            msg = f"grammar must be a Grammar, such as Grammar.json_schema(...), not {type(grammar).__name__}."
            raise ConfigError(msg)
        state = None if grammar is None else grammar.compile(self.model.vocab).start()
        return state if n_min == 0 else MinimumLength(n_min, ends, self.n_vocab, state)

    def _checked_drafting(self, drafting: Drafting | None) -> Drafting:
        if drafting is None:
            return FREELY
        if not isinstance(drafting, Drafting):
            msg = f"drafting must be a Drafting, not {type(drafting).__name__}."
            raise ConfigError(msg)
        names = drafting.types or ()
        if AUTO in names:
            msg = f"drafting asks for {', '.join(names)}; auto stands alone, for all drafters that the engine has."
            raise ConfigError(msg)
        for name in names:
            if name not in self.drafters:
                have = ", ".join(self.drafters) or "none"
                msg = f"drafting asks for {name!r}; this engine was made with the drafters: {have}."
                raise ConfigError(msg)
        return drafting

    def _info(self, request: Request, seed: int | None) -> RunInfo:
        draft_model = self.speculation.draft_model
        drafting = request.sequence.drafting
        rule = request.sequence.rule or self.rule
        return RunInfo(
            model=str(self.model.path),
            draft_model=None if draft_model is None else str(draft_model.path),
            speculation={
                "types": list((self.speculation.types or ()) if drafting.types is None else drafting.types),
                "options": {name: dict(options) for name, options in self.drafters.items() if drafting.allows(name)},
                "rule": rule.name,
            },
            sampling={**dataclasses.asdict(request.sampling), "seed": seed},
            prompt_tokens=request.prompt,
        )


def admission_of(workshop: Workshop, speculation: Speculation, *, shifts: bool = False) -> Admission:
    """Return what checks the requests of a workshop; called on the thread that owns it."""
    chain, context = workshop.chain, workshop.context
    return Admission(
        model=context.model,
        speculation=speculation,
        drafters={drafter.name: options_of(drafter) for drafter in chain.drafters},
        n_max=chain.n_max,
        rule=speculation.make_rule(None, chain.n_max),
        n_ctx_seq=context.n_ctx_seq,
        n_vocab=context.n_vocab,
        fingerprint=context.fingerprint,
        shifts=shifts,
        piece=context.model.vocab.all_pieces().__getitem__,
    )


def _require_distribution(rule: AcceptRule, sampler: GreedySampler | SamplerChain) -> None:
    """Refuse a rule that judges drafts by a distribution where the sampler has none."""
    if rule.name in SAMPLING_OF_RULE and not sampler.exact_per_row:
        msg = f'mirostat draws from what it drew before, so the rule "{rule.name}" cannot judge drafts; use "match".'
        raise UnsupportedError(msg)


def _checked_observer(observer: Any) -> Observer | None:
    if observer is not None and not all(callable(getattr(observer, hook, None)) for hook in _OBSERVER_HOOKS):
        msg = f"observer must have the methods {', '.join(_OBSERVER_HOOKS)}; found {shown(observer)}."
        raise ConfigError(msg)
    return observer  # type: ignore[no-any-return]
