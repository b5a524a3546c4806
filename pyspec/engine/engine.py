"""The engine: one model, its drafters, and the loop over rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspec.config import ContextConfig, SamplingConfig, require_bool, require_int
from pyspec.drafters import Chain, Resources, sorted_by_priority
from pyspec.drafters.registry import build, option_names
from pyspec.engine.generation import Generation, Job, Workplace
from pyspec.engine.prompt import Prompt, checked_prompt, checked_stops
from pyspec.engine.result import Observer, Result
from pyspec.engine.self_check import check_fed_drafters
from pyspec.engine.snapshots import with_snapshots
from pyspec.errors import ConfigError, UnsupportedError
from pyspec.llama.constrained import GrammarSampler
from pyspec.llama.context import Context
from pyspec.llama.grammar import Grammar
from pyspec.llama.memory import RollbackKind
from pyspec.llama.model import Model
from pyspec.llama.sampler import GreedySampler, SamplerChain, make_sampler
from pyspec.speculation.accept import AcceptRule
from pyspec.speculation.config import Speculation
from pyspec.speculation.detection import drafter_for
from pyspec.speculation.ending import Ending, Finish
from pyspec.speculation.rollback import run_all
from pyspec.speculation.sequence import Sequence as SequenceState

if TYPE_CHECKING:
    from pyspec.speculation.draft import Drafter

_logger = logging.getLogger(__name__)
_DEFAULT_N_CTX = 4096
_OBSERVER_HOOKS = ("begin", "round", "end")
_NO_LIMIT = 2**31 - 1
_SAMPLING_OF_RULE = {"rejection": "probabilistic", "coupled": "coupled"}


class Engine:
    """Generates text with one model. Belongs to the thread that creates it.

    Args:
        model: The target; it must stay open.
        speculation: Which drafters propose. None decodes plainly.
        context: Sizes of the target's context. None takes the model's context size, at most 4096 tokens.
        n_slots: Requests at once; one for now.

    Raises:
        ConfigError: An option is wrong.
        UnsupportedError: Speculation cannot work with this model; the message says why.
        VocabMismatchError: The draft model has another vocabulary.

    Example:
        >>> with pyspec.Engine(model, speculation=pyspec.Speculation("ngram-simple")) as engine:  # doctest: +SKIP
        ...     print(engine.generate("Once upon a time", max_tokens=32).text)
    """

    def __init__(
        self,
        model: Model,
        *,
        speculation: Speculation | None = None,
        context: ContextConfig | None = None,
        n_slots: int = 1,
    ) -> None:
        if not isinstance(model, Model):
            msg = f"model must be a Model, not {type(model).__name__}."
            raise ConfigError(msg)
        require_int("n_slots", n_slots, 1, 1)
        if model.is_head:
            msg = f"{model.path.name} is a head for {drafter_for(model)}, no language model by itself; give its target."
            raise UnsupportedError(msg)
        self.model = model
        self.speculation = _checked_speculation(speculation)
        self.context = Context(model, with_snapshots(model, _sized(model, context), self.speculation))
        try:
            chain = self._make_chain()
        except BaseException:
            self.context.close()
            raise
        try:
            if self.speculation.self_check:
                check_fed_drafters(self.context, chain)
        except BaseException:
            run_all((chain.close, self.context.close))
            raise
        piece = model.vocab.all_pieces().__getitem__
        rule = self.speculation.make_rule(None, chain.n_max)
        self._workplace = Workplace(model, self.context, chain, rule, self.speculation, piece)

    def generate(  # noqa: PLR0913 - each is a setting by its own name
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: SamplingConfig | None = None,
        stop: str | Sequence[str] = (),
        rule: str | None = None,
        grammar: Grammar | None = None,
        n_top: int = 0,
        logprobs: bool = False,
        observer: Observer | None = None,
    ) -> Result:
        """Generate a whole answer; see ``stream`` for the arguments.

        Raises:
            PyspecError: As in ``stream``. Any exception, KeyboardInterrupt included, has the ``Result`` so far in its
                attribute ``partial``.
        """
        generation = self.stream(
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            rule=rule,
            grammar=grammar,
            n_top=n_top,
            logprobs=logprobs,
            observer=observer,
        )
        try:
            for _chunk in generation:
                pass
        except BaseException as error:
            if generation.result.finish is None:
                generation.result.finish = Finish.CANCELLED if isinstance(error, KeyboardInterrupt) else Finish.ERROR
            with contextlib.suppress(AttributeError):  # a class with slots cannot carry it
                error.partial = generation.result  # type: ignore[attr-defined]
            raise
        return generation.result

    def stream(  # noqa: PLR0913 - as above
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: SamplingConfig | None = None,
        stop: str | Sequence[str] = (),
        rule: str | None = None,
        grammar: Grammar | None = None,
        n_top: int = 0,
        logprobs: bool = False,
        observer: Observer | None = None,
    ) -> Generation:
        """Generate an answer piece by piece.

        Args:
            prompt: Text, token ids, or a list of parts: texts, lists of token ids, and ``Embeddings``. Names of special
                tokens in text are read as these tokens; only a text at the beginning gets the vocabulary's BOS.
            max_tokens: Most tokens to emit; None goes on until the model ends or the context is full.
            sampling: How the target chooses; None takes the most likely token.
            stop: Strings to stop before.
            rule: How drafts are accepted: "match", "rejection", "coupled" or "synthetic"; None takes the engine's.
            grammar: What the output must look like: a JSON schema, a regular expression, Lark or GBNF.
            n_top: How many of the largest logits to report per token.
            logprobs: Report the log-probability of each token, as the model gives it, before any sampling.
            observer: Follows the rounds, for example a ``pyspec.trace.TraceWriter``.

        Returns:
            An iterator with one chunk per round; the work is done while it is iterated.

        Raises:
            ConfigError: An argument is wrong.
            TokenError: A token id is outside the vocabulary.
            ContextFullError: The prompt does not fit.
            GrammarError: The grammar is wrong; the message says where.
            UnsupportedError: The rule needs what the sampling does not have; the message says what.
            BusyError: While iterating: another generation of this engine is under way.
        """
        settings = sampling if sampling is not None else SamplingConfig()
        sampler = make_sampler(settings, self.context.n_vocab, self.model.vocab)
        chosen = None if rule is None else self.speculation.make_rule(rule, self._workplace.chain.n_max)
        _require_distribution(chosen or self._workplace.rule, sampler)
        limit = _NO_LIMIT if max_tokens is None else require_int("max_tokens", max_tokens, 0, _NO_LIMIT)
        tokens, rows = checked_prompt(prompt, self.model, self.context.n_ctx_seq)
        sequence = SequenceState(
            seq_id=0,
            history=tokens[:-1],
            pending=tokens[-1],
            sampler=sampler if grammar is None else self._constrained(sampler, grammar),
            ending=Ending(
                eog=self.model.vocab.eog,
                max_tokens=limit,
                stops=checked_stops(stop),
                piece=self._workplace.piece,
            ),
            temperature=settings.temperature,
            seed=sampler.seed,
            n_top=require_int("n_top", n_top, 0, self.context.n_vocab),
            wants_logprobs=require_bool("logprobs", logprobs),
            rows=rows,
        )
        if observer is not None and not all(callable(getattr(observer, hook, None)) for hook in _OBSERVER_HOOKS):
            msg = f"observer must have the methods {', '.join(_OBSERVER_HOOKS)}; found {observer!r}."
            raise ConfigError(msg)
        result = Result(prompt_tokens=tokens, seed=sampler.seed)
        return Generation(self._workplace, Job(sequence, settings, observer, result, chosen))

    def _constrained(self, sampler: GreedySampler | SamplerChain, grammar: Grammar) -> GrammarSampler:
        if not isinstance(grammar, Grammar):
            msg = f"grammar must be a Grammar, such as Grammar.json_schema(...), not {type(grammar).__name__}."
            raise ConfigError(msg)
        return GrammarSampler(sampler, grammar.compile(self.model.vocab).start())

    def _make_chain(self) -> Chain:
        speculation = self.speculation
        kind = self.context.memory.rollback  # also for plain decoding: memory must be empty to find it out
        if not speculation.names:
            return Chain([])
        if kind is RollbackKind.NONE:
            msg = (
                f"{self.model.path.name} has no memory that could drop rejected tokens, so there is nothing to "
                f"speculate with. Use --spec-type none (speculation=None)."
            )
            raise UnsupportedError(msg)
        resources = Resources(self.model, self.context, speculation.draft_model, n_sequences=1)
        drafters: list[Drafter] = []
        try:
            for name in sorted_by_priority(speculation.names):
                drafter = build(name, self._options(name), resources)
                drafters.append(drafter)
            return Chain(drafters)
        except BaseException:
            run_all(drafter.close for drafter in drafters if hasattr(drafter, "close"))
            raise

    def _options(self, name: str) -> dict[str, Any]:
        """Return a drafter's options; where drafts can be drawn, they are drawn as the rule wants them."""
        options = dict(self.speculation.options.get(name, {}))
        sampling = _SAMPLING_OF_RULE.get(self.speculation.rule)
        if sampling is not None and "sampling" in option_names(name):
            options.setdefault("sampling", sampling)
        return options

    def close(self) -> None:
        """Close the drafters and the context. The models stay open. May be called again."""
        run_all((self._workplace.chain.close, self.context.close))

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _require_distribution(rule: AcceptRule, sampler: GreedySampler | SamplerChain) -> None:
    """Refuse a rule that judges drafts by a distribution where the sampler has none."""
    if rule.name in _SAMPLING_OF_RULE and not sampler.exact_per_row:
        msg = f'mirostat draws from what it drew before, so the rule "{rule.name}" cannot judge drafts; use "match".'
        raise UnsupportedError(msg)


def _sized(model: Model, context: ContextConfig | None) -> ContextConfig:
    """Choose the context's size and how many logits rows it may have."""
    config = context if context is not None else ContextConfig()
    if not isinstance(config, ContextConfig):
        msg = f"context must be a ContextConfig, not {type(config).__name__}."
        raise ConfigError(msg)
    n_ctx = config.n_ctx or min(model.info.n_ctx_train or _DEFAULT_N_CTX, _DEFAULT_N_CTX)
    n_batch = min(config.n_batch, n_ctx)
    return dataclasses.replace(
        config,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=min(config.n_ubatch, n_batch),
        n_outputs_max=config.n_outputs_max or min(n_batch, 128),
    )


def _checked_speculation(speculation: Speculation | None) -> Speculation:
    """Warn about a draft model that is paid for and unused."""
    if speculation is None:
        return Speculation()
    if not isinstance(speculation, Speculation):
        msg = f"speculation must be a Speculation, not {type(speculation).__name__}."
        raise ConfigError(msg)
    draft_model = speculation.draft_model
    if draft_model is not None and not isinstance(draft_model, Model):
        msg = f"draft_model must be a Model, not {type(draft_model).__name__}."
        raise ConfigError(msg)
    if draft_model is not None:
        with_model = {name for name in speculation.names if name.startswith("draft-")}
        made_for = drafter_for(draft_model)
        if not with_model or (with_model == {"draft-mtp"} and made_for != "draft-mtp"):
            _logger.warning("None of the drafters uses the draft model %s; %s would.", draft_model.path.name, made_for)
    return speculation
