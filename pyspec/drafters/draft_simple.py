"""draft-simple: a smaller model of the same vocabulary drafts token by token.

The draft model's memory keeps the rows of what was drafted. After a round only what the target said beyond the
draft is missing: one token, or two when the whole draft stood::

    memory of the draft model       pending  d1  d2          (d3 was drafted and never decoded)
    the target accepts d1, d2, d3   ->  the next round decodes d3 and the bonus token
    the target accepts d1 only      ->  d2 is dropped; the next round decodes the recovered token

A draft model whose memory cannot drop d2 (a recurrent one) returns to a checkpoint before the draft and reads d1 again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyspec.drafters.choosing import Chooser
from pyspec.drafters.growing import Growing, Step, grow
from pyspec.drafters.hidden import Features
from pyspec.drafters.model_drafter import ModelDrafter, require_draft_model, require_vocabulary
from pyspec.drafters.registry import Resources
from pyspec.drafters.saved import memory_parts, pack, restore_memory, unpack
from pyspec.errors import UnsupportedError
from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.detection import drafter_for
from pyspec.speculation.draft import Draft, DraftRequest, TokenView
from pyspec.speculation.target import Target, TargetRows
from pyspec.speculation.verify import add_piece

_logger = logging.getLogger(__name__)
_MOST_MISSING = 16  # tokens that go in front of a draft; more of them get a decode of their own


class DraftSimple(ModelDrafter):
    """Drafts with a draft model; see ``ModelDrafter`` for the options."""

    name = "draft-simple"
    reads_only = True
    reads_late = True  # a prompt, when the first draft after it is asked for: "auto" may never ask

    def _open(self, resources: Resources) -> None:
        model = require_draft_model(resources, self.name)
        if model.is_head:
            msg = f"{model.path.name} is no language model by itself; it is made for {drafter_for(model)}."
            raise UnsupportedError(msg)
        require_vocabulary(resources, model)
        self._context = Context(model, self._config(model, resources), target=resources.target)
        if self._context.memory.rollback is RollbackKind.NONE:
            self._context.close()
            msg = f"The draft model {model.path.name} has no memory, so it cannot draft token by token."
            raise UnsupportedError(msg)
        self._core = TokenByToken(self._context, self.chooser)
        self._warned_of_rows = False

    def embed(self, seq_id: int, rows: Mapping[int, Features]) -> None:
        """Keep the rows that stand in place of tokens; where their width is not the draft model's, zeros do."""
        width = self._context.model.info.n_embd_inp
        if any(len(row) != width for row in rows.values()):
            if not self._warned_of_rows:
                self._warned_of_rows = True
                _logger.warning("draft-simple reads zeros in place of embeddings; its model's have width %d.", width)
            rows = dict.fromkeys(rows, np.zeros(width, np.float32))
        self._core.embed(seq_id, rows)

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Forget the former request."""
        self._core.begin(seq_id, tokens)

    def rewind(self, seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:  # noqa: ARG002 - the interface
        """Keep what the draft model has read of the beginning."""
        self._core.rewind(seq_id, tokens, n_same)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for all sequences together, one draft-model decode per step."""
        growing = self._core.draft([(request, min(self.n_max, request.budget)) for request in requests])
        self.n_model_tokens = self._core.n_model_tokens
        drafts = [each.finished(self.n_min) for each in growing]
        for request, draft in zip(requests, drafts, strict=True):
            if not draft.tokens:
                self._core.drop(request.seq_id)
        return drafts

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """Drop what the target did not accept."""
        self._core.accept(seq_id, n_accepted if own else 0)

    def discard(self, seq_id: int) -> None:
        """The round was undone: return to the history before it."""
        self._core.discard(seq_id)

    def save_state(self, seq_id: int) -> bytes:
        """Return the draft model's memory of the sequence."""
        self._core.discard(seq_id)  # between rounds nothing that was drafted is needed
        return pack(**memory_parts(self._context, seq_id))

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Take back what ``save_state`` returned; this takes the place of ``begin``.

        Raises:
            StateError: It is damaged, or of another draft model.
        """
        parts = unpack(state, "memory_length")
        restore_memory(self._context, seq_id, parts)
        self._core.resume(seq_id, int(parts["memory_length"]))


@dataclass(slots=True)
class _Mirror:
    """What the draft model's memory holds for one sequence.

    Attributes:
        n_valid: Positions known to equal the target's history.
        position: Position of the pending token of the draft under way.
        n_decoded: Positions decoded for that draft, the pending token included.
        full: The draft context is too small for this sequence.
        checkpoint: The memory before the draft under way, where it cannot drop positions.
        rows: Position to the row that stands there in place of a token.
    """

    n_valid: int = 0
    position: int = 0
    n_decoded: int = 0
    full: bool = False
    checkpoint: Any = None
    rows: Mapping[int, Features] = field(default_factory=dict)


class TokenByToken:
    """Autoregressive drafting over any target-like context; knows nothing of models and options.

    Args:
        context: The draft model at work.
        chooser: Chooses the tokens.
    """

    def __init__(self, context: Target, chooser: Chooser) -> None:
        self._context = context
        self._chooser = chooser
        self._mirrors: dict[int, _Mirror] = {}
        self._rows: dict[int, Mapping[int, Features]] = {}
        self._batch = Batch()
        self._warned = False
        self._trims = context.memory.rollback is RollbackKind.TRIM
        self.n_model_tokens = 0

    def embed(self, seq_id: int, rows: Mapping[int, Features]) -> None:
        """Note the rows of the prompt that is about to begin."""
        self._rows[seq_id] = rows

    def begin(self, seq_id: int, tokens: TokenView) -> None:  # noqa: ARG002 - the interface
        """Forget the sequence. Its new prompt is read when a draft is asked for, which may be never."""
        self._mirrors[seq_id] = _Mirror(rows=self._rows.pop(seq_id, {}))
        self._context.memory.clear(seq_id)

    def rewind(self, seq_id: int, tokens: TokenView, n_same: int) -> None:  # noqa: ARG002 - the interface
        """Forget all but the first ``n_same`` positions, with which a new prompt begins."""
        mirror = self._mirrors.setdefault(seq_id, _Mirror())
        mirror.full, mirror.rows = False, {}
        self._end_draft(seq_id, mirror, min(mirror.n_valid, n_same))

    def resume(self, seq_id: int, n_valid: int) -> None:
        """Go on with a sequence of which memory holds so many positions."""
        self._mirrors[seq_id] = _Mirror(n_valid=n_valid)

    def draft(self, asked: Sequence[tuple[DraftRequest, int]]) -> list[Growing]:
        """Continue each request by at most so many tokens."""
        growing = [self._prepare(request, limit) for request, limit in asked]
        grow(growing, self._step, self._chooser)
        return growing

    def accept(self, seq_id: int, n_accepted: int) -> None:
        """Keep the rows of the pending token and the accepted tokens, as far as they were decoded."""
        mirror = self._mirrors.get(seq_id)
        if mirror is not None:
            n_new = min(1 + n_accepted, mirror.n_decoded)
            self._end_draft(seq_id, mirror, mirror.position + n_new if n_new else mirror.n_valid)

    def drop(self, seq_id: int) -> None:
        """The draft under way is not proposed: of its rows only the pending token's can be of use."""
        mirror = self._mirrors[seq_id]
        if mirror.n_decoded > 1 and self._trims:
            mirror.n_decoded = 1
            self._context.memory.trim(seq_id, mirror.position + 1)
        elif mirror.n_decoded > 1:
            self.discard(seq_id)

    def discard(self, seq_id: int) -> None:
        """Drop what was decoded for the draft under way."""
        mirror = self._mirrors.get(seq_id)
        if mirror is not None:
            self._end_draft(seq_id, mirror, mirror.n_valid)

    def _end_draft(self, seq_id: int, mirror: _Mirror, n_valid: int) -> None:
        mirror.n_decoded = 0
        mirror.n_valid = self._keep(seq_id, mirror, n_valid)

    def _keep(self, seq_id: int, mirror: _Mirror, length: int) -> int:
        """Drop positions from ``length`` on; return the length that is left, which may be less."""
        memory = self._context.memory
        if self._trims:
            memory.trim(seq_id, length)
            return length
        if memory.length(seq_id) <= length:
            return memory.length(seq_id)
        if mirror.checkpoint is not None and mirror.checkpoint.length <= length:
            memory.restore(seq_id, mirror.checkpoint)
            return int(mirror.checkpoint.length)
        memory.clear(seq_id)
        return 0

    def _prepare(self, request: DraftRequest, limit: int) -> Growing:
        seq_id = request.seq_id
        mirror = self._mirrors.setdefault(seq_id, _Mirror())
        if request.position > mirror.position:  # nobody's draft was verified, but the pending token was
            self.accept(seq_id, 0)
        else:
            self.discard(seq_id)
        if mirror.n_valid > request.position:  # the history became shorter
            self._end_draft(seq_id, mirror, request.position)
        if not self._trims or mirror.rows or len(request.tokens) - mirror.n_valid > _MOST_MISSING:
            self._catch_up(seq_id, request.tokens)
        room = self._room(mirror, request)
        if not self._trims and min(limit, room) > 0:
            mirror.checkpoint = self._context.memory.checkpoint(seq_id)
        mirror.position = request.position
        return Growing(request, min(limit, room))

    def _room(self, mirror: _Mirror, request: DraftRequest) -> int:
        """Return how many tokens can be drafted before the draft context is full."""
        room = self._context.n_ctx_seq - request.position
        if room <= 0:
            self._give_up(mirror)
        return 0 if mirror.full else room

    def _catch_up(self, seq_id: int, tokens: TokenView) -> None:
        """Decode the part of the history that the draft model has not seen."""
        mirror = self._mirrors[seq_id]
        if len(tokens) >= self._context.n_ctx_seq:
            self._give_up(mirror)
            return
        while mirror.n_valid < len(tokens):
            self._batch.clear()
            count = add_piece(self._batch, tokens, mirror.rows, mirror.n_valid, self._context.n_batch, seq_id)
            self._batch.tokens[:] = [self._readable(token) for token in self._batch.tokens]
            self._decode()
            mirror.n_valid += count

    def _give_up(self, mirror: _Mirror) -> None:
        mirror.full = True
        if not self._warned:
            self._warned = True
            _logger.warning(
                "The draft context holds %d tokens per sequence; a longer sequence goes on without draft-simple.",
                self._context.n_ctx_seq,
            )

    def _step(self, active: list[Growing]) -> Step:
        """Decode the newest token of each draft, after what is missing of its history."""
        self._batch.clear()
        n_free = self._context.n_batch - len(active)
        for draft in active:
            request, mirror = draft.request, self._mirrors[draft.request.seq_id]
            missing = request.tokens[mirror.n_valid :] if not draft.choices else ()
            if len(missing) > n_free:  # a tiny batch
                return self._step_after_catching_up(active)
            n_free -= len(missing)
            self._batch.extend([self._readable(token) for token in missing], mirror.n_valid, request.seq_id)
            self._batch.add(self._readable(draft.newest), draft.next_position - 1, request.seq_id, output=True)
        rows = self._decode()
        for draft in active:
            mirror = self._mirrors[draft.request.seq_id]
            mirror.n_valid = draft.request.position
            mirror.n_decoded = len(draft.choices) + 1
        return rows, range(len(active))

    def _step_after_catching_up(self, active: list[Growing]) -> Step:
        for draft in active:
            self._catch_up(draft.request.seq_id, draft.request.tokens)
        return self._step(active)

    def _readable(self, token: int) -> int:
        """Stand in for a token that only the target has, so that positions have no holes."""
        return token if token < self._context.n_vocab else 0

    def _decode(self) -> TargetRows:
        self.n_model_tokens += len(self._batch)
        return self._context.decode(self._batch)
