"""draft-mtp: next-n (multi-token prediction) layers, which come with the target or in a file of their own.

The entry at position P is the token of P beside the target's state before the output norm at P - 1. Three modes:

* one head, applied again to its own output
* several heads: head i drafts token i. Each has memory of its own in the same cells, so each reads all that is
  drafted again, and drafts are at most as long as there are heads
* a head that reads the target's memory (gemma4-assistant): it has none of its own, and all tokens of a draft stand
  at the position of the pending token
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from pyspec.drafters.growing import Growing, Step
from pyspec.drafters.hidden import Features, Waiting
from pyspec.drafters.model_drafter import require_vocabulary
from pyspec.drafters.next_token_head import NextTokenHead
from pyspec.drafters.registry import Resources
from pyspec.drafters.taps import require_next_n_rows
from pyspec.errors import UnsupportedError
from pyspec.llama.batch import NO_TOKEN
from pyspec.llama.context import Context
from pyspec.llama.limits import ASSISTANT, LENDER
from pyspec.llama.model import Model
from pyspec.speculation.detection import drafter_for
from pyspec.speculation.draft import DraftRequest, Needs, TokenView
from pyspec.speculation.target import TargetHidden


class DraftMtp(NextTokenHead):
    """Drafts with next-n layers; see ``ModelDrafter`` for the options."""

    name = "draft-mtp"
    reads_only = True
    needs = Needs.NEXT_N
    shift = 1

    def _open(self, resources: Resources) -> None:
        model = _checked_model(resources)
        n_heads = max(1, model.info.n_layer_nextn)
        config = self._config(model, resources, n_extra=1, n_rows=self.n_max + 1)
        if model.info.architecture == ASSISTANT:  # its memory is the target's, so it is laid out alike
            alike = resources.target.config
            config = dataclasses.replace(config, kv_unified=alike.kv_unified, flash_attn=alike.flash_attn)
        self._context = Context(model, config, target=resources.target, next_n=True)
        self._shared = self._context.borrows_memory
        self._n_heads = 1 if self._shared else n_heads
        if self._n_heads > 1:
            self.n_max = min(self.n_max, self._n_heads)
            self.n_min = min(self.n_min, self.n_max)
        self._nothing = np.zeros(model.info.n_embd_out, np.float32)
        resources.target.hidden.keep_next_n("all")
        self._start()

    def _features(self, hidden: TargetHidden) -> Features:
        return hidden.next_n()

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Forget the former request."""
        if self._shared:
            self._feed.begin(seq_id, self._nothing_read())
        else:
            super().begin(seq_id, tokens)

    def rewind(self, seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:
        """Keep what is known of the beginning."""
        if self._shared:  # that is all in the target's memory
            self._feed.begin(seq_id, Waiting(first=length))
        else:
            super().rewind(seq_id, tokens, length, n_same)

    def _nothing_read(self) -> Waiting:
        """Nothing comes before the first token, which stands beside zeros."""
        return Waiting(first=-1, rows=[self._nothing], tokens=[NO_TOKEN])

    def _limit(self, request: DraftRequest) -> int:
        if self._shared and request.position == 0:  # there is nothing in the target's memory to read
            return 0
        return super()._limit(request)

    def _step(self, active: list[Growing]) -> Step:
        if self._shared:
            return self._step_at_pending(active)
        return super()._step(active) if self._n_heads == 1 else self._step_next_head(active)

    def _step_next_head(self, active: list[Growing]) -> Step:
        """Let the next head read the draft so far, from the target's newest row on."""
        head = len(active[0].choices)
        if head == 0:
            for draft in active:
                self._read(draft.request.seq_id, draft.request.position - 1)
                draft.states.append(self._feed.of(draft.request.seq_id).rows[-1])
        self._batch.clear()
        newest = []
        for draft in active:
            seq_id, first = draft.request.seq_id, draft.request.position - 1 + self.shift
            self._context.memory.trim(seq_id, first)
            tokens = [draft.request.pending, *(choice.token for choice in draft.choices)]
            for i, (token, state) in enumerate(zip(tokens, draft.states, strict=True)):
                self._batch.add(token, first + i, seq_id, output=True, state=state)
            newest.append(len(self._batch) - 1)
        with self._head(head):
            return self._decode_wanted(active, newest)

    def _decode_history(self, seq_id: int) -> None:
        """Let every head read it into its own memory; the same entries find the same cells again."""
        first = self._batch.positions[0]
        for head in range(self._n_heads):
            self._context.memory.trim(seq_id, first)
            with self._head(head):
                self._decode()

    @contextlib.contextmanager
    def _head(self, head: int) -> Iterator[None]:
        """Run one of several heads."""
        if self._n_heads == 1:
            yield
            return
        self._context.hidden.set_next_n_layer(head)
        try:
            yield
        finally:
            self._context.hidden.set_next_n_layer(0)

    def _step_at_pending(self, active: list[Growing]) -> Step:
        """Decode the newest tokens at the position of the pending one; the target's memory is read and left alone."""
        self._batch.clear()
        for draft in active:
            request = draft.request
            if not draft.choices:
                draft.states.append(self._feed.of(request.seq_id).rows[-1])
            self._batch.add(draft.newest, request.position, request.seq_id, output=True, state=draft.states[-1])
        return self._decode_wanted(active, range(len(active)))

    def _read(self, seq_id: int, end: int) -> None:
        if self._shared:  # all that counts is in the target's memory
            waiting = self._feed.of(seq_id)
            waiting.take(min(len(waiting.rows), end - waiting.first))
        else:
            super()._read(seq_id, end)

    def _trim(self, seq_id: int) -> None:
        if not self._shared:
            super()._trim(seq_id)


def _checked_model(resources: Resources) -> Model:
    """Return the model whose next-n layers draft: the draft model if it is made for that, or else the target itself."""
    target, model = resources.target_model, resources.draft_model
    if model is None or (drafter_for(model) != "draft-mtp" and target.info.n_layer_nextn > 0):
        model = target
    if model.info.n_layer_nextn == 0 or not model.config.next_n:
        unloaded = "" if model.config.next_n else " loaded (ModelConfig(next_n=True))"
        hint = "" if model is not target else " A draft model with such layers can be given with -md."
        msg = f"draft-mtp needs next-n layers; {model.path.name} has none{unloaded}.{hint}"
        raise UnsupportedError(msg)
    if model is not target:
        require_vocabulary(resources, model)
    if model.info.architecture == ASSISTANT and target.info.architecture != LENDER:
        found = target.info.architecture
        msg = f"{model.path.name} reads the memory of a {LENDER} target; {target.path.name} is {found}."
        raise UnsupportedError(msg)
    if model.info.n_embd_out != target.info.n_embd_out:
        msg = (
            f"{model.path.name} reads rows of width {model.info.n_embd_out}; {target.path.name} gives "
            f"{target.info.n_embd_out}."
        )
        raise UnsupportedError(msg)
    require_next_n_rows(resources, "draft-mtp")
    return model
