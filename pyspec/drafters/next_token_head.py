"""What draft-eagle3 and draft-mtp share: a small head that drafts token by token from hidden states.

Each entry of the head's input is a token together with a row that tells what came before it. For a committed token
the row comes from the target; for a drafted one it is the head's own output for the token before::

    position of the target's row   0      1      2      3
    token beside it               t1     t2     t3     pending    <- the entry that drafts
    its position in the head      +shift (0 for EAGLE-3, 1 for MTP, which begins with (t0, zeros))

The entries of drafted tokens are dropped after the draft: once the target has evaluated the accepted ones, its own
rows for them are better.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from pyspec.drafters.growing import Growing, Step, grow
from pyspec.drafters.hidden import FeatureFeed, Features, Waiting
from pyspec.drafters.model_drafter import ModelDrafter
from pyspec.llama.batch import Batch
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch, TokenView
from pyspec.speculation.target import TargetHidden, TargetRows

_logger = logging.getLogger(__name__)


class NextTokenHead(ModelDrafter):
    """Base of drafters whose model continues from hidden states. Subclasses say where the rows come from.

    Attributes:
        shift: What is added to a row's position to give its entry's position in the head.
    """

    shift = 0

    def _start(self) -> None:
        """Prepare to draft; called once ``self._context`` is open."""
        self._context.hidden.keep_next_n("wanted")
        capacity = self._context.n_ctx_seq - self.shift
        self._feed = FeatureFeed(self._features, self._read, capacity=capacity, drafter=self.name)
        self._batch = Batch()

    def _features(self, hidden: TargetHidden) -> Features:
        """Take the target's rows for a batch, [n_entries, width]."""
        raise NotImplementedError

    def _prepared(self, rows: Features) -> Features:
        """Turn the target's rows into what the head reads, [n, n_embd]."""
        return rows

    def begin(self, seq_id: int, tokens: TokenView) -> None:  # noqa: ARG002 - they come with the target's rows
        """Forget the former request."""
        self._feed.begin(seq_id, self._nothing_read())
        self._context.memory.clear(seq_id)

    def rewind(self, seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:  # noqa: ARG002 - the interface
        """Keep what the head has read of the beginning."""
        self._feed.rewind(seq_id, length)
        self._trim(seq_id)

    def _nothing_read(self) -> Waiting:
        """Return the rows that wait when a request starts."""
        return Waiting()

    def observe(self, batch: EvaluatedBatch) -> None:
        """Keep the target's hidden states until it is certain which of them stand."""
        self._feed.observe(batch)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for all sequences together, one decode per step."""
        growing = [Growing(request, self._limit(request)) for request in requests]
        try:
            grow(growing, self._step, self.chooser)
        finally:
            for each in growing:
                self._trim(each.request.seq_id)
        return self._finished(growing)

    def discard(self, seq_id: int) -> None:
        """The round was undone: the row that its draft was made from is read again for the next one."""
        self._feed.of(seq_id).put_back()
        self._trim(seq_id)

    def save_state(self, seq_id: int) -> bytes | None:
        """Return the rows that wait, the deferred one among them, and the draft model's memory of the sequence."""
        return self._feed.save(self._context, seq_id)

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Take back what ``save_state`` returned; this takes the place of ``begin``."""
        self._feed.load(self._context, seq_id, state)

    def _trim(self, seq_id: int) -> None:
        """Drop the entries of drafted tokens."""
        self._context.memory.trim(seq_id, max(0, self._feed.of(seq_id).first + self.shift))

    def _limit(self, request: DraftRequest) -> int:
        """Return how many tokens may be drafted; 0 when rows are missing or the head's memory is full."""
        waiting = self._feed.ready(request.seq_id, request.position)
        if waiting is None or not waiting.rows:
            return 0
        room = self._context.n_ctx_seq - request.position - self.shift + 1
        return max(0, min(self.n_max, request.budget, room))

    def _step(self, active: list[Growing]) -> Step:
        """Decode the newest token of each draft with the row before it."""
        if not active[0].choices:  # all drafts of a round begin together
            return self._first_step(active)
        self._batch.clear()
        for draft in active:
            position = draft.next_position - 2 + self.shift
            self._batch.add(draft.newest, position, draft.request.seq_id, output=True, state=draft.states[-1])
        return self._decode_wanted(active, range(len(active)))

    def _first_step(self, active: list[Growing]) -> Step:
        """Decode all rows that wait; the last of each sequence stands beside its pending token.

        All entries ask for their logits: several of llama.cpp's graphs compute every row and hand out the first
        ones, whichever were wanted.
        """
        n_most = self._context.n_outputs_max // len(active)
        for draft in active:
            if len(self._feed.of(draft.request.seq_id).rows) > n_most:
                self._read(draft.request.seq_id, draft.request.position - 1)
        waits = [self._feed.of(draft.request.seq_id) for draft in active]
        rows = self._prepared(np.stack([row for waiting in waits for row in waiting.rows]))
        newest = []
        self._batch.clear()
        for draft, waiting in zip(active, waits, strict=True):
            tokens = [*waiting.tokens[1:], draft.request.pending]
            first = len(self._batch)
            for i, token in enumerate(tokens, waiting.first):
                state = rows[first + i - waiting.first]
                self._batch.add(token, i + self.shift, draft.request.seq_id, output=True, state=state)
            newest.append(len(self._batch) - 1)
        step = self._decode_wanted(active, newest)
        for draft, waiting in zip(active, waits, strict=True):
            waiting.take(len(waiting.rows))
            waiting.drafted_at = draft.request.position
        return step

    def _decode_wanted(self, active: list[Growing], numbers: Sequence[int]) -> Step:
        """Decode the batch, and keep with each draft the head's own output for its newest token."""
        rows = self._decode()
        own = self._context.hidden.next_n()
        for draft, number in zip(active, numbers, strict=True):
            draft.states.append(own[number])
        return rows, numbers

    def _read(self, seq_id: int, end: int) -> None:
        """Let the head read the rows of a sequence before position ``end``; the token at ``end`` is known."""
        waiting = self._feed.of(seq_id)
        while (count := min(end - waiting.first, self._context.n_batch)) > 0:
            rows = self._prepared(np.stack(waiting.rows[:count]))
            self._batch.clear()
            for i in range(count):
                position = waiting.first + i + self.shift
                self._batch.add(waiting.tokens[i + 1], position, seq_id, state=rows[i])
            self._decode_history(seq_id)
            waiting.take(count)

    def _decode_history(self, seq_id: int) -> None:  # noqa: ARG002 - for heads that read it several times
        """Decode a batch of committed tokens."""
        self._decode()

    def _decode(self) -> TargetRows:
        self.n_model_tokens += len(self._batch)
        return self._context.decode(self._batch)
