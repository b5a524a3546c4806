"""draft-dflash and draft-dspark: a whole block of tokens in one decode (block diffusion).

The target's layer inputs go into the draft model's memory at the target's positions, as entries without tokens. A
block is then ``[pending, mask, mask, ...]``, in which every entry sees every other one unless the model says
otherwise, and each mask's row proposes the token of its position::

    DFlash    row 0 (the pending token) is not used; row i proposes draft token i - 1
    DFlash2   the rows hold candidates and scores given the candidate before; the best path is walked greedily
    DSpark    row i proposes draft token i, each given the one before it (Markov head); a confidence head ends it
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from pyspec.drafters.choosing import SURE, Choice
from pyspec.drafters.growing import Growing
from pyspec.drafters.hidden import FeatureFeed, Features
from pyspec.drafters.model_drafter import ModelDrafter, require_draft_model, require_vocabulary
from pyspec.drafters.registry import Resources
from pyspec.drafters.taps import require_layer_inputs
from pyspec.errors import ConfigError, UnsupportedError
from pyspec.llama.batch import NO_TOKEN, Batch
from pyspec.llama.context import Context
from pyspec.llama.model import Model
from pyspec.speculation.detection import drafter_for
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch, Needs, TokenView
from pyspec.speculation.target import TargetHidden, TargetRows

_logger = logging.getLogger(__name__)
_USUAL_BLOCK = 16


class DraftDFlash(ModelDrafter):
    """Drafts with DFlash or DFlash2; see ``ModelDrafter`` for the options."""

    name = "draft-dflash"
    reads_only = True
    needs = Needs.LAYER_INPUTS
    heeds_judge = False  # all tokens come at once
    first_row = 1  # the row that proposes the first draft token

    def _open(self, resources: Resources) -> None:
        model = require_draft_model(resources, self.name)
        self._layers = self._checked_layers(model, resources)
        self._mask = _mask_token(model, self.name)
        self._set_block(model)
        config = self._config(model, resources, n_extra=self._n_block, n_rows=self._n_block)
        self._context = Context(model, config, target=resources.target)
        hidden = self._context.hidden
        hidden.set_causal(value=model.metadata.get("dflash.attention.causal") == "true")
        hidden.keep_next_n("all" if self._lattice else "wanted")
        resources.target.hidden.keep_layer_inputs(self._layers)
        capacity = self._context.n_ctx_seq - self._n_block
        self._feed = FeatureFeed(self._features, self._read, capacity=capacity, drafter=self.name)
        self._batch = Batch()

    def _set_block(self, model: Model) -> None:
        """Find out how long a block is, and how its rows are read."""
        block_size = int(model.metadata.get("dflash.block_size", _USUAL_BLOCK))
        self.n_max = min(self.n_max, block_size - self.first_row)
        self.n_min = min(self.n_min, self.n_max)
        if self.n_max < 1:
            msg = f"{model.path.name} has blocks of {block_size} tokens, too short to propose any."
            raise UnsupportedError(msg)
        self._n_block = self.n_max + self.first_row
        self._lattice = model.info.selector_top_k if model.has_tensor("selector_hidden.weight") else 0

    def _checked_layers(self, model: Model, resources: Resources) -> tuple[int, ...]:
        target, layers = resources.target_model, model.info.target_layers
        if drafter_for(model) != self.name or not layers:
            msg = f"{self.name} needs a draft model of its kind; {model.path.name} is made for {drafter_for(model)}."
            raise UnsupportedError(msg)
        if model.info.n_embd != target.info.n_embd:
            msg = (
                f"{model.path.name} was made for a target of width {model.info.n_embd}; {target.path.name} has "
                f"{target.info.n_embd}."
            )
            raise UnsupportedError(msg)
        require_vocabulary(resources, model)
        require_layer_inputs(resources, layers, self.name)
        return layers

    def begin(self, seq_id: int, tokens: TokenView) -> None:  # noqa: ARG002 - they come with the target's rows
        """Forget the former request."""
        self._feed.begin(seq_id)
        self._context.memory.clear(seq_id)

    def rewind(self, seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:  # noqa: ARG002 - the interface
        """Keep what was read of the beginning."""
        self._feed.rewind(seq_id, length)
        self._context.memory.trim(seq_id, self._feed.of(seq_id).first)

    def observe(self, batch: EvaluatedBatch) -> None:
        """Keep the target's hidden states until it is certain which of them stand."""
        self._feed.observe(batch)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for all sequences together, in one decode."""
        growing = [Growing(request, self._limit(request)) for request in requests]
        active = [draft for draft in growing if draft.limit > 0]
        if active:
            try:
                for draft in active:
                    self._read(draft.request.seq_id, draft.request.position)
                rows = self._decode_blocks(active)
                for i, draft in enumerate(active):
                    draft.choices += itertools.islice(self._chosen(draft, rows, i * self._n_block), draft.limit)
            finally:
                for draft in active:
                    self._context.memory.trim(draft.request.seq_id, self._feed.of(draft.request.seq_id).first)
        return self._finished(growing)

    def discard(self, seq_id: int) -> None:
        """The round was undone: drop what was read in it and not noted."""
        self._context.memory.trim(seq_id, self._feed.of(seq_id).first)

    def save_state(self, seq_id: int) -> bytes | None:
        """Return the rows that wait, the deferred one among them, and the draft model's memory of the sequence."""
        return self._feed.save(self._context, seq_id)

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Take back what ``save_state`` returned; this takes the place of ``begin``."""
        self._feed.load(self._context, seq_id, state)

    def _features(self, hidden: TargetHidden) -> Features:
        return hidden.layer_inputs(self._layers)

    def _limit(self, request: DraftRequest) -> int:
        """Return how many tokens may be drafted; 0 when rows are missing, as they are when a block would not fit."""
        if request.position == 0 or self._feed.ready(request.seq_id, request.position) is None:
            return 0
        return min(self.n_max, request.budget)

    def _read(self, seq_id: int, end: int) -> None:
        """Put the rows of a sequence before position ``end`` into the draft model's memory."""
        waiting = self._feed.of(seq_id)
        while (count := min(end - waiting.first, self._context.n_ubatch)) > 0:
            self._batch.clear()
            for i, row in enumerate(waiting.rows[:count]):
                self._batch.add(NO_TOKEN, waiting.first + i, seq_id, state=row)
            self._decode()
            waiting.take(count)

    def _decode_blocks(self, active: list[Growing]) -> TargetRows:
        """Decode a block per sequence, all of the same length and at once: the masks see each other."""
        self._batch.clear()
        for draft in active:
            request = draft.request
            for i in range(self._n_block):
                token = request.pending if i == 0 else self._mask
                self._batch.add(token, request.position + i, request.seq_id, output=True)
        return self._decode()

    def _chosen(self, draft: Growing, rows: TargetRows, first: int) -> Iterator[Choice]:
        """Choose the tokens of a block whose rows begin at number ``first``."""
        if self._lattice:
            yield from self._walk(draft, first)
            return
        for i in range(self.n_max):
            position = draft.request.position + 1 + i
            choice = self.chooser.choose(rows, first + self.first_row + i, draft.request, position)
            if choice is None:
                return
            yield choice

    def _walk(self, draft: Growing, first: int) -> Iterator[Choice]:
        """Walk the lattice of DFlash2: from each candidate to the best one after it."""
        k = self._lattice
        lattice = self._context.hidden.next_n()
        predecessor = 0
        for i in range(self.first_row, self._n_block):
            row = lattice[first + i]
            scores = row[k + predecessor * k : k + (predecessor + 1) * k]
            tokens = row[:k].astype(np.int32)
            choice = self.chooser.of_candidates(tokens, scores, draft.request, draft.request.position + i)
            if choice is None:
                return
            predecessor = int(np.flatnonzero(tokens == choice.token)[0])
            yield choice

    def _decode(self) -> TargetRows:
        self.n_model_tokens += len(self._batch)
        return self._context.decode(self._batch)


class DraftDSpark(DraftDFlash):
    """Drafts with DSpark; see ``ModelDrafter`` for the options. ``p_min`` is compared with the confidence head."""

    name = "draft-dspark"
    reads_only = True

    def _set_block(self, model: Model) -> None:
        self.first_row = 0 if model.metadata.get("dflash.sample_from_anchor", "true") == "true" else 1
        self._has_confidence = model.has_tensor("conf_proj.weight")
        if self.p_min > 0.0 and not self._has_confidence:
            msg = f"{model.path.name} has no confidence head to compare p_min with; use p_min 0."
            raise ConfigError(msg)
        super()._set_block(model)

    def _chosen(self, draft: Growing, rows: TargetRows, first: int) -> Iterator[Choice]:
        least = self.chooser.least(draft.request)
        wanted = least > 0.0 or draft.request.wants_signals
        confidence = self._context.hidden.next_n()[:, 0] if wanted and self._has_confidence else None
        for i in range(self.n_max):
            number = first + self.first_row + i
            if confidence is not None and confidence[number] < least:
                return
            choice = self.chooser.choose(rows, number, draft.request, draft.request.position + 1 + i, p_min=0.0)
            if choice is None:
                return
            if confidence is not None and draft.request.wants_signals:
                choice = choice._replace(signal=min(SURE, max(0.0, float(confidence[number]))))
            yield choice


def _mask_token(model: Model, drafter: str) -> int:
    """Return the token that stands for one to be proposed.

    Raises:
        UnsupportedError: The vocabulary has none.
    """
    if model.vocab.mask is None:
        msg = f"{drafter} needs a mask token; the vocabulary of {model.path.name} has none."
        raise UnsupportedError(msg)
    return model.vocab.mask
