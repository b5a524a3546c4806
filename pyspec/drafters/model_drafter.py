"""What all drafters with a model share: their options, the draft context and its size, and what can be wrong."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pyspec.config import ContextConfig, require_bool, require_int
from pyspec.drafters.choosing import N_CANDIDATES, Chooser, Sampling
from pyspec.drafters.growing import Growing
from pyspec.drafters.registry import Resources
from pyspec.errors import UnsupportedError, VocabMismatchError
from pyspec.llama.context import Context
from pyspec.llama.model import Model
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch, Needs, TokenView
from pyspec.speculation.vocab_gate import vocab_difference

_logger = logging.getLogger(__name__)
_PROMPT_BATCH = 512


class ModelDrafter:
    """Base of the drafters with a model. It owns the draft context, ``self._context``.

    A subclass opens the context in ``_open``, which may also lower ``n_max``.

    Args:
        resources: Models and sizes, from the engine.
        n_max: Longest draft.
        n_min: A shorter draft is not proposed.
        p_min: Drafting stops before a token whose draft probability is lower.
        sampling: "greedy" proposes the most likely token, "probabilistic" draws at the target's temperature, "coupled"
            does so with the noise that the target has under the rule "coupled".
        n_ctx: Tokens of the draft context per sequence; 0 means the target's.
        n_threads: 0 means the physical cores.
        type_k: Type of the keys in the draft model's memory.
        type_v: Type of the values.
        backend_sampling: Let the device select the best tokens, where it can and one sequence drafts alone.

    Raises:
        ConfigError: An option is out of range.
        UnsupportedError: What the drafter needs is missing; the message names it.
        VocabMismatchError: The vocabularies differ; the message names the first difference.
    """

    name: str = ""
    needs: Needs = Needs.NOTHING
    needs_resources = True
    heeds_judge = True  # drafts step by step, and ends where the request's judge says
    _context: Context

    def __init__(  # noqa: PLR0913 - each is an option by its own name
        self,
        *,
        resources: Resources,
        n_max: int = 3,
        n_min: int = 0,
        p_min: float = 0.0,
        sampling: Sampling = "greedy",
        n_ctx: int = 0,
        n_threads: int = 0,
        type_k: str = "f16",
        type_v: str = "f16",
        backend_sampling: bool = False,
    ) -> None:
        self.n_max = require_int("n_max", n_max, 1, 1 << 16)
        self.n_min = require_int("n_min", n_min, 0, self.n_max)
        self.chooser = Chooser(resources.target.n_vocab, p_min, sampling)
        self.n_ctx = require_int("n_ctx", n_ctx, 0, 2**31 - 1)
        self.n_threads, self.type_k, self.type_v = n_threads, type_k, type_v
        self.backend_sampling = require_bool("backend_sampling", backend_sampling)
        self.n_model_tokens = 0
        self._open(resources)
        if self.backend_sampling:
            self._select_on_device(resources.n_sequences)

    @property
    def p_min(self) -> float:
        """See the class."""
        return self.chooser.p_min

    @property
    def sampling(self) -> Sampling:
        """See the class."""
        return self.chooser.sampling

    @property
    def memory(self) -> Any:
        """The draft model's memory."""
        return self._context.memory

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """A new request starts."""
        raise NotImplementedError

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for all sequences together."""
        raise NotImplementedError

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """A draft was verified."""

    def discard(self, seq_id: int) -> None:
        """The round was undone."""

    def save_state(self, seq_id: int) -> bytes | None:  # noqa: ARG002 - the interface
        """Return nothing: the draft model reads the history again."""
        return None

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Take back what ``save_state`` returned."""

    def request_abort(self, *, value: bool = True) -> None:
        """Ask a decode of the draft model to stop, or take the request back. Any thread may call this."""
        self._context.request_abort(value=value)

    def close(self) -> None:
        """Free the draft context. May be called again."""
        self._context.close()

    def _open(self, resources: Resources) -> None:
        """Check what is there and create ``self._context``."""
        raise NotImplementedError

    def _finished(self, growing: Sequence[Growing]) -> list[Draft]:
        """Return the drafts; what the budget cut short is not too short (for draft-simple it is, as in llama.cpp)."""
        return [each.finished(min(self.n_min, each.limit)) for each in growing]

    def _config(self, model: Model, resources: Resources, *, n_extra: int = 0, n_rows: int = 1) -> ContextConfig:
        """Return the size of the draft context; see ``draft_context_config``."""
        return draft_context_config(
            model,
            n_ctx_seq=(self.n_ctx or resources.target.n_ctx_seq) + n_extra,
            n_sequences=resources.n_sequences,
            n_rows=n_rows,
            n_threads=self.n_threads,
            types=(self.type_k, self.type_v),
        )

    def _select_on_device(self, n_sequences: int) -> None:
        """Let the device find the candidates; llama.cpp mixes them up when several sequences draft together."""
        reason = f"{n_sequences} sequences draft together, whose candidates llama.cpp would mix up"
        if n_sequences == 1:
            if self._context.hidden.select_on_device(0, N_CANDIDATES):
                return
            reason = "this device cannot"
        self.backend_sampling = False
        _logger.warning("%s selects its tokens on the CPU: %s.", self.name, reason)


def require_draft_model(resources: Resources, drafter: str) -> Model:
    """Return the draft model.

    Raises:
        UnsupportedError: There is none.
    """
    if resources.draft_model is None:
        msg = f"{drafter} needs a draft model: give draft_model, or -md on the command line."
        raise UnsupportedError(msg)
    return resources.draft_model


def require_vocabulary(resources: Resources, model: Model) -> None:
    """Refuse a draft model with another vocabulary.

    Raises:
        VocabMismatchError: The message names the first difference.
    """
    difference = vocab_difference(resources.target_model.vocab, model.vocab)
    if difference is not None:
        msg = f"{model.path.name} cannot draft for {resources.target_model.path.name}: {difference}."
        raise VocabMismatchError(msg)


def draft_context_config(
    model: Model,
    *,
    n_ctx_seq: int,
    n_sequences: int,
    n_rows: int = 1,
    n_threads: int = 0,
    types: tuple[str, str] = ("f16", "f16"),
) -> ContextConfig:
    """Size a draft context: what one sequence may hold, times the sequences, and batches of its own.

    Args:
        model: The draft model; it never gets more context than it was trained for.
        n_ctx_seq: Tokens of one sequence.
        n_sequences: Sequences.
        n_rows: Logits rows that one sequence asks for in a decode.
        n_threads: 0 means the physical cores.
        types: Of keys and values.
    """
    per_sequence = min(n_ctx_seq, model.info.n_ctx_train or n_ctx_seq)
    n_batch = max(_PROMPT_BATCH, n_sequences * n_rows)
    return ContextConfig(
        n_ctx=per_sequence * n_sequences,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_seq_max=n_sequences,
        kv_unified=n_sequences > 1,
        n_ctx_seq=per_sequence,
        n_outputs_max=n_sequences * n_rows,
        n_threads=n_threads,
        type_k=types[0],
        type_v=types[1],
    )
