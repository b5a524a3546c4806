"""draft-simple: a smaller model of the same vocabulary drafts token by token.

The draft model's memory keeps the rows of what was drafted. After a round only what the target said beyond the
draft is missing: one token, or two when the whole draft stood::

    memory of the draft model       pending  d1  d2          (d3 was drafted and never decoded)
    the target accepts d1, d2, d3   ->  the next round decodes d3 and the bonus token
    the target accepts d1 only      ->  d2 is trimmed; the next round decodes the recovered token
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pyspec.config import ContextConfig, require_float, require_int
from pyspec.drafters.registry import Resources
from pyspec.errors import ConfigError, UnsupportedError, VocabMismatchError
from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.memory import RollbackKind
from pyspec.llama.model import Model
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch, Needs, TokenView
from pyspec.speculation.target import Target, TargetRows
from pyspec.speculation.vocab_gate import vocab_difference

_logger = logging.getLogger(__name__)
_N_CANDIDATES = 10  # a token's draft probability is its share of the ten best, as in llama.cpp
_PROMPT_BATCH = 512


class DraftSimple:
    """Drafts greedily with a draft model.

    Args:
        resources: Models and sizes, from the engine.
        n_max: Longest draft.
        n_min: A shorter draft is not proposed.
        p_min: Drafting stops before a token whose draft probability is lower.
        sampling: "greedy".
        n_ctx: Tokens of the draft context per sequence; 0 means the target's.
        n_threads: 0 means the physical cores.
        type_k: Type of the keys in the draft model's memory.
        type_v: Type of the values.

    Raises:
        ConfigError: An option is out of range.
        UnsupportedError: There is no draft model, or its memory cannot be trimmed.
        VocabMismatchError: The vocabularies differ; the message names the first difference.
    """

    name = "draft-simple"
    needs = Needs.NOTHING
    needs_resources = True

    def __init__(  # noqa: PLR0913 - each is an option by its own name
        self,
        *,
        resources: Resources,
        n_max: int = 3,
        n_min: int = 0,
        p_min: float = 0.0,
        sampling: Literal["greedy"] = "greedy",
        n_ctx: int = 0,
        n_threads: int = 0,
        type_k: str = "f16",
        type_v: str = "f16",
    ) -> None:
        self.n_max = require_int("n_max", n_max, 1, 1 << 16)
        self.n_min = require_int("n_min", n_min, 0, self.n_max)
        self.p_min = require_float("p_min", p_min, 0.0, 1.0)
        require_int("n_ctx", n_ctx, 0, 2**31 - 1)
        if sampling != "greedy":
            msg = f'sampling must be "greedy"; {sampling!r} is not available yet.'
            raise ConfigError(msg)
        model = _checked_model(resources)
        self._n_vocab = resources.target.n_vocab
        config = draft_context_config(
            model,
            n_ctx_seq=n_ctx or resources.target.n_ctx_seq,
            n_sequences=resources.n_sequences,
            n_threads=n_threads,
            types=(type_k, type_v),
        )
        self._context = Context(model, config)
        self._core = _TokenByToken(self._context, self._n_vocab)
        kind = self._context.memory.rollback
        if kind is not RollbackKind.TRIM:
            self._context.close()
            msg = (
                f"The draft model {model.path.name} has memory of the kind {kind.value!r}, which cannot drop "
                f"rejected tokens; draft-simple needs a draft model whose memory trims."
            )
            raise UnsupportedError(msg)

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Let the draft model read the prompt."""
        self._core.begin(seq_id, tokens)

    def observe(self, batch: EvaluatedBatch) -> None:
        """Nothing is needed from the target."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for all sequences together, one draft-model decode per step."""
        lengths = [min(self.n_max, request.budget) for request in requests]
        drafts = self._core.draft(requests, lengths, self.p_min)
        for i, request in enumerate(requests):
            if len(drafts[i]) < self.n_min:
                self._core.drop(request.seq_id)
                drafts[i] = []
        return [Draft(tuple(tokens)) for tokens in drafts]

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """Trim what the target did not accept."""
        self._core.accept(seq_id, n_accepted if own else 0)

    def discard(self, seq_id: int) -> None:
        """The round was undone: trim to the history before it."""
        self._core.discard(seq_id)

    def save_state(self, seq_id: int) -> bytes | None:  # noqa: ARG002 - the interface
        """Return nothing: the draft model reads the history again."""
        return None

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Nothing was saved."""

    def close(self) -> None:
        """Free the draft context. May be called again."""
        self._context.close()

    @property
    def n_model_tokens(self) -> int:
        """Tokens the draft model has evaluated."""
        return self._core.n_model_tokens

    @property
    def memory(self) -> object:
        """The draft model's memory, for tests."""
        return self._context.memory


def _checked_model(resources: Resources) -> Model:
    model = resources.draft_model
    if model is None:
        msg = "draft-simple needs a draft model: give draft_model, or -md on the command line."
        raise UnsupportedError(msg)
    difference = vocab_difference(resources.target_model.vocab, model.vocab)
    if difference is not None:
        msg = f"{model.path.name} cannot draft for {resources.target_model.path.name}: {difference}."
        raise VocabMismatchError(msg)
    return model


def draft_context_config(
    model: Model, *, n_ctx_seq: int, n_sequences: int, n_threads: int = 0, types: tuple[str, str] = ("f16", "f16")
) -> ContextConfig:
    """Size a draft context: what one sequence may hold, times the sequences, and batches of its own.

    Args:
        model: The draft model; it never gets more context than it was trained for.
        n_ctx_seq: Tokens of one target sequence.
        n_sequences: Sequences.
        n_threads: 0 means the physical cores.
        types: Of keys and values.
    """
    per_sequence = min(n_ctx_seq, model.info.n_ctx_train or n_ctx_seq)
    return ContextConfig(
        n_ctx=per_sequence * n_sequences,
        n_batch=max(_PROMPT_BATCH, n_sequences),
        n_ubatch=max(_PROMPT_BATCH, n_sequences),
        n_seq_max=n_sequences,
        n_outputs_max=n_sequences,
        n_threads=n_threads,
        type_k=types[0],
        type_v=types[1],
    )


@dataclass(slots=True)
class _Mirror:
    """What the draft model's memory holds for one sequence.

    Attributes:
        n_valid: Positions known to equal the target's history.
        position: Position of the pending token of the draft under way.
        n_decoded: Positions decoded for that draft, the pending token included.
        full: The draft context is too small for this sequence.
    """

    n_valid: int = 0
    position: int = 0
    n_decoded: int = 0
    full: bool = False


@dataclass(slots=True)
class _Growing:
    """A draft under way."""

    request: DraftRequest
    mirror: _Mirror
    limit: int
    tokens: list[int] = field(default_factory=list)


class _TokenByToken:
    """Autoregressive greedy drafting over any target-like context; knows nothing of models and options.

    Args:
        context: The draft model at work.
        n_vocab: Size of the target's vocabulary, which may be a little larger or smaller than the draft model's.
    """

    def __init__(self, context: Target, n_vocab: int) -> None:
        self._context = context
        self._n_vocab = n_vocab
        self._mirrors: dict[int, _Mirror] = {}
        self._batch = Batch()
        self._warned = False
        self.n_model_tokens = 0

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        self._mirrors[seq_id] = _Mirror()
        self._context.memory.clear(seq_id)
        self._catch_up(seq_id, tokens)

    def draft(self, requests: Sequence[DraftRequest], lengths: Sequence[int], p_min: float) -> list[list[int]]:
        """Return the greedy continuation of each request, at most ``lengths`` tokens."""
        growing = [self._prepare(request, limit) for request, limit in zip(requests, lengths, strict=True)]
        active = [draft for draft in growing if not draft.mirror.full and draft.limit > 0]
        while active:
            rows = self._step(active)
            active = [draft for i, draft in enumerate(active) if self._grow(draft, rows, i, p_min)]
        return [draft.tokens for draft in growing]

    def accept(self, seq_id: int, n_accepted: int) -> None:
        """Keep the rows of the pending token and the accepted tokens, as far as they were decoded."""
        mirror = self._mirrors.get(seq_id)
        if mirror is not None:
            n_new = min(1 + n_accepted, mirror.n_decoded)
            self._end_draft(seq_id, mirror, mirror.position + n_new if n_new else mirror.n_valid)

    def drop(self, seq_id: int) -> None:
        """The draft under way is not proposed: of its rows only the pending token's can be of use."""
        mirror = self._mirrors[seq_id]
        if mirror.n_decoded > 1:
            mirror.n_decoded = 1
            self._context.memory.trim(seq_id, mirror.position + 1)

    def discard(self, seq_id: int) -> None:
        """Drop what was decoded for the draft under way."""
        mirror = self._mirrors.get(seq_id)
        if mirror is not None:
            self._end_draft(seq_id, mirror, mirror.n_valid)

    def _end_draft(self, seq_id: int, mirror: _Mirror, n_valid: int) -> None:
        mirror.n_decoded = 0
        mirror.n_valid = n_valid
        self._context.memory.trim(seq_id, n_valid)

    def _prepare(self, request: DraftRequest, limit: int) -> _Growing:
        mirror = self._mirrors.setdefault(request.seq_id, _Mirror())
        if request.position > mirror.position:  # nobody's draft was verified, but the pending token was
            self.accept(request.seq_id, 0)
        else:
            self.discard(request.seq_id)
        if mirror.n_valid > request.position:  # the history became shorter
            self._end_draft(request.seq_id, mirror, request.position)
        self._catch_up(request.seq_id, request.tokens)
        mirror.position = request.position
        room = self._context.n_ctx_seq - request.position
        return _Growing(request, mirror, min(limit, room))

    def _catch_up(self, seq_id: int, tokens: TokenView) -> None:
        """Decode the part of the history that the draft model has not seen."""
        mirror = self._mirrors[seq_id]
        if len(tokens) >= self._context.n_ctx_seq:
            self._give_up(mirror)
            return
        while mirror.n_valid < len(tokens):
            piece = tokens[mirror.n_valid : mirror.n_valid + self._context.n_batch]
            self._batch.clear()
            self._batch.extend([self._readable(token) for token in piece], mirror.n_valid, seq_id)
            self._decode()
            mirror.n_valid += len(piece)

    def _give_up(self, mirror: _Mirror) -> None:
        mirror.full = True
        if not self._warned:
            self._warned = True
            _logger.warning(
                "The draft context holds %d tokens per sequence; a longer sequence goes on without draft-simple.",
                self._context.n_ctx_seq,
            )

    def _step(self, active: list[_Growing]) -> TargetRows:
        """Decode the newest token of each draft; row i belongs to the i-th."""
        self._batch.clear()
        for draft in active:
            token = draft.tokens[-1] if draft.tokens else draft.request.pending
            position = draft.request.position + len(draft.tokens)
            self._batch.add(self._readable(token), position, draft.request.seq_id, output=True)
        rows = self._decode()
        for draft in active:
            draft.mirror.n_decoded = len(draft.tokens) + 1
        return rows

    def _readable(self, token: int) -> int:
        """Stand in for a token that only the target has, so that positions have no holes."""
        return token if token < self._context.n_vocab else 0

    def _decode(self) -> TargetRows:
        self.n_model_tokens += len(self._batch)
        return self._context.decode(self._batch)

    def _grow(self, draft: _Growing, rows: TargetRows, i: int, p_min: float) -> bool:
        """Append the best token of row i. False when the draft is complete."""
        if p_min > 0.0:
            tokens, logits = rows.top_k(i, _N_CANDIDATES)
            token, share = int(tokens[0]), _share_of_best(logits)
        else:
            token, share = rows.argmax(i), 1.0
        if share < p_min or token >= self._n_vocab:  # padding of the draft model's vocabulary is never drafted
            return False
        draft.tokens.append(token)
        return len(draft.tokens) < draft.limit


def _share_of_best(logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """Return the best candidate's probability among these candidates, [k] best first."""
    return float(1.0 / np.exp(logits.astype(np.float64) - float(logits[0])).sum())
