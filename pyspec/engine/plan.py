"""What an engine computes with: a context, its drafters, and the scheduler over both."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspec.config import ContextConfig
from pyspec.drafters import Chain, Resources, sorted_by_priority
from pyspec.drafters.automatic import resolved
from pyspec.drafters.registry import build, longest_draft, option_names
from pyspec.engine.admission import SAMPLING_OF_RULE
from pyspec.engine.calibration import controller_of
from pyspec.engine.prefixes import PrefixCache
from pyspec.engine.scheduler import Scheduler
from pyspec.engine.self_check import check_fed_drafters
from pyspec.engine.snapshots import with_snapshots
from pyspec.engine.worker import Workshop
from pyspec.errors import ConfigError, UnsupportedError
from pyspec.llama.context import Context
from pyspec.llama.memory import RollbackKind
from pyspec.llama.model import Model
from pyspec.speculation.config import Speculation
from pyspec.speculation.detection import drafter_for
from pyspec.speculation.rollback import run_all

if TYPE_CHECKING:
    from pyspec.speculation.draft import Drafter

_logger = logging.getLogger(__name__)
_DEFAULT_N_CTX = 4096
_MOST_OUTPUTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """How an engine is built.

    Attributes:
        model: The target's model.
        speculation: Which drafters propose.
        context: Sizes of the target's context, all of them set.
        n_slots: Requests at once.
        n_prefill: The most prompt tokens in a round beside running requests.
        n_keep: Tokens to keep when a context is full, or None.
        cache_bytes: Budget of the host-side cache of prefixes.
    """

    model: Model
    speculation: Speculation
    context: ContextConfig
    n_slots: int
    n_prefill: int
    n_keep: int | None
    cache_bytes: int

    def build(self, news: Callable[[], None]) -> Workshop:
        """Build it on the calling thread, which will own it."""
        context = Context(self.model, self.context)
        try:
            if self.n_keep is not None:
                self._require_shift(context)
            chain = self._make_chain(context)
        except BaseException:
            context.close()
            raise
        try:
            if self.speculation.self_check:
                check_fed_drafters(context, chain)
                chain.new_stats()
            scheduler = Scheduler(
                context,
                chain,
                self.speculation.make_rule(None, chain.n_max),
                n_slots=self.n_slots,
                n_prefill=self.n_prefill,
                n_keep=self.n_keep,
                prefixes=PrefixCache(context, chain, self.cache_bytes) if self.cache_bytes else None,
                news=news,
            )
        except BaseException:
            run_all((chain.close, context.close))
            raise
        return Workshop(context, chain, scheduler)

    def _require_shift(self, context: Context) -> None:
        """Refuse to shift what cannot be shifted."""
        memory, reason = context.memory, None
        if memory.rollback is not RollbackKind.TRIM or memory.one_ubatch or not memory.can_shift:
            reason = "its memory cannot forget positions in the middle"
        elif context.config.kv_unified and self.n_slots > 1:
            reason = "slots that share a buffer (kv_unified) may share the positions"
        elif self.speculation.rule in SAMPLING_OF_RULE:
            reason = f'the rule "{self.speculation.rule}" would draw the same numbers for the same positions again'
        if reason is not None:
            msg = f"{self.model.path.name} cannot go on when the context is full (n_keep): {reason}."
            raise UnsupportedError(msg)

    def _make_chain(self, context: Context) -> Chain:
        kind = context.memory.rollback  # also for plain decoding: memory must be empty to find it out
        names = self.speculation.names
        if not names:
            return Chain([])
        if kind is RollbackKind.NONE and self.speculation.auto:
            _logger.info("%s decodes plainly: its memory cannot drop rejected tokens.", self.model.path.name)
            return Chain([])
        if kind is RollbackKind.NONE:
            msg = (
                f"{self.model.path.name} has no memory that could drop rejected tokens, so there is nothing to "
                "speculate with. Use --spec-type none (Speculation('none'))."
            )
            raise UnsupportedError(msg)
        resources = Resources(self.model, context, self.speculation.draft_model, n_sequences=self.n_slots)
        drafters: list[Drafter] = []
        try:
            drafters.extend(build(name, self._options(name), resources) for name in sorted_by_priority(names))
            if self.speculation.auto:
                return controller_of(drafters, context, self.speculation, self.n_slots)
            return Chain(drafters)
        except BaseException:
            run_all(drafter.close for drafter in drafters if hasattr(drafter, "close"))
            raise

    def _options(self, name: str) -> dict[str, Any]:
        """Return a drafter's options: as many threads as the target, and draws as the rule wants them, unless given."""
        options = dict(self.speculation.options.get(name, {}))
        if "n_threads" in option_names(name) and self.context.n_threads:
            options.setdefault(
                "n_threads", self.context.n_threads
            )  # two thread pools of unequal size wait for each other
        sampling = SAMPLING_OF_RULE.get(self.speculation.rule)
        if sampling is not None and "sampling" in option_names(name):
            options.setdefault("sampling", sampling)
        return options


def sized(
    model: Model, context: ContextConfig | None, speculation: Speculation, n_slots: int, *, shifts: bool = False
) -> ContextConfig:
    """Choose what is left open of the context's sizes: tokens, sequences, buffers, logits rows, snapshots.

    Args:
        model: The target's model.
        context: What is asked for.
        speculation: The drafters.
        n_slots: Requests at once.
        shifts: Whether full contexts will be shifted, which a buffer that is shared does not allow.

    Raises:
        ConfigError: They do not fit together.
    """
    config = context if context is not None else ContextConfig()
    if not isinstance(config, ContextConfig):
        msg = f"context must be a ContextConfig, not {type(config).__name__}."
        raise ConfigError(msg)
    n_sequences = max(config.n_seq_max, n_slots)
    per_slot = min(model.info.n_ctx_train or _DEFAULT_N_CTX, _DEFAULT_N_CTX)
    n_ctx = config.n_ctx or per_slot * n_sequences
    if n_ctx < n_sequences:
        msg = f"n_ctx is {n_ctx}; it cannot be divided among {n_sequences} slots."
        raise ConfigError(msg)
    n_batch = min(config.n_batch, n_ctx)
    if n_batch < n_slots:
        msg = f"n_batch must be at least n_slots, {n_slots}, so that each slot has a token in a round; it is {n_batch}."
        raise ConfigError(msg)
    longest = max((longest_draft(name, speculation.options.get(name, {})) for name in speculation.names), default=0)
    n_outputs = config.n_outputs_max or min(n_batch, n_slots * (1 + longest), _MOST_OUTPUTS)
    if n_outputs < n_slots:
        msg = f"n_outputs_max must be at least n_slots, {n_slots}, a logits row for each; it is {n_outputs}."
        raise ConfigError(msg)
    chosen = dataclasses.replace(
        config if config.kv_unified is not None else _with_buffers(config, n_ctx, n_sequences, shared=not shifts),
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=min(config.n_ubatch, n_batch),
        n_seq_max=n_sequences,
        n_outputs_max=max(n_outputs, n_sequences),
    )
    return with_snapshots(model, chosen, speculation)


def _with_buffers(config: ContextConfig, n_ctx: int, n_sequences: int, *, shared: bool) -> ContextConfig:
    """Return it with one buffer for several sequences, each of which may have an equal part."""
    if n_sequences == 1 or not shared:
        return dataclasses.replace(config, kv_unified=False)
    part = n_ctx // n_sequences
    return dataclasses.replace(config, kv_unified=True, n_ctx_seq=min(config.n_ctx_seq or part, part))


def checked_speculation(speculation: Speculation | None) -> Speculation:
    """Return it with what "auto" stands for, and None is "auto".

    Warn about a draft model that is paid for and unused.
    """
    if speculation is None:
        speculation = Speculation()
    if not isinstance(speculation, Speculation):
        msg = f"speculation must be a Speculation, not {type(speculation).__name__}."
        raise ConfigError(msg)
    draft_model = speculation.draft_model
    if draft_model is not None and not isinstance(draft_model, Model):
        msg = f"draft_model must be a Model, not {type(draft_model).__name__}."
        raise ConfigError(msg)
    speculation = resolved(speculation)
    if draft_model is not None:
        with_model = {name for name in speculation.names if name.startswith("draft-")}
        made_for = drafter_for(draft_model)
        if not with_model or (with_model == {"draft-mtp"} and made_for != "draft-mtp"):
            _logger.warning("None of the drafters uses the draft model %s; %s would.", draft_model.path.name, made_for)
    return speculation
