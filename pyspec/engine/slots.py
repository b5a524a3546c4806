"""A slot: one sequence of the target, and what it still holds of former requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, cast

from pyspec.drafters import Chain
from pyspec.engine.request import Request
from pyspec.errors import ContextError
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.draft import Needs
from pyspec.speculation.rollback import put_right
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target

if TYPE_CHECKING:
    from pyspec.engine.saving import SavedSlot
    from pyspec.llama.context import Context
    from pyspec.llama.state import State

_logger = logging.getLogger(__name__)


class Slot:
    """One sequence of an engine's target.

    A memory that drops any suffix goes back to any length. One that does not is saved at some lengths while it reads a
    prompt: at the prompt's end, and wherever it has doubled since the last time.

    Args:
        seq_id: The sequence.
        target: The target.
        chain: The drafters.

    Attributes:
        chain: See above.
        request: What runs in it, or None.
        tokens: What an idle slot knows: the tokens in memory and, last, one that was pending.
        used: When it was used last, as a number that grows.
    """

    __slots__ = (
        "_borrowed",
        "_held",
        "_saved",
        "_target",
        "_unshifted",
        "chain",
        "request",
        "seq_id",
        "tokens",
        "used",
    )

    def __init__(self, seq_id: int, target: Target, chain: Chain) -> None:
        self.seq_id = seq_id
        self.request: Request | None = None
        self.tokens: list[int] = []
        self.used = 0
        self._target = target
        self.chain = chain
        self._held = 0  # positions that memory holds
        self._unshifted: int | None = None  # positions before the first one that was ever forgotten
        self._borrowed = False  # they are another slot's too, and drafters do not know them
        self._saved: list[Any] = []  # checkpoints of it, by length

    @property
    def has_shifted(self) -> bool:
        """Whether its request has forgotten a part of its context."""
        return self._unshifted is not None

    @property
    def n_held(self) -> int:
        """Positions that memory holds while the slot is idle."""
        return self._held

    def reusable(self, prompt: SequenceOf[int]) -> int:
        """Return how many positions need not be read again for a prompt."""
        return self.reusable_of(self.tokens, self._held, prompt, [saved.length for saved in self._saved])

    def reusable_of(
        self, tokens: SequenceOf[int], n_held: int, prompt: SequenceOf[int], saved: SequenceOf[int] = ()
    ) -> int:
        """Return what would be reusable if memory held ``n_held`` positions of these tokens, and was saved at some."""
        n_same = common_length(tokens, prompt)
        # What stands beside the target's last row is the token after it, and that must be the same one.
        most = max(0, min(len(prompt) - 1, n_same if self.chain.needs is Needs.NOTHING else n_same - 1))
        if self._trims or n_held <= most:
            return min(n_held, most)
        return max((length for length in saved if length <= most), default=0)

    def begin(self, request: Request) -> int:
        """Let a request begin, with what memory holds of its prompt; return how many positions that is."""
        sequence = request.sequence
        sequence.seq_id = self.seq_id
        length = 0 if sequence.rows else self._return_to(self.reusable(request.prompt))
        sequence.lag = sequence.n_committed - length
        sequence.reading = True
        if not self._trims:
            sequence.pause = sequence.n_committed
        n_same = common_length(self.tokens, request.prompt)
        self._unshifted = None
        self.request, self.tokens = request, []  # if a drafter fails now, nothing is known
        borrowed, self._borrowed = self._borrowed, False
        if length and borrowed:
            self.chain.begin(self.seq_id, sequence.history)
        elif length:
            self.chain.rewind(self.seq_id, sequence.history, length, min(n_same, sequence.n_committed))
        else:
            self._target.memory.clear(self.seq_id)
            self._saved.clear()
            self.chain.begin(self.seq_id, sequence.history, sequence.rows)
        return length

    def in_memory(self) -> SequenceOf[int]:
        """Return the tokens that memory holds now."""
        request = self.request
        if request is None:
            return self.tokens[: self._held]
        sequence = request.sequence
        return [] if sequence.rows else sequence.history[: sequence.n_committed - sequence.lag]

    def borrow(self, lender: Slot, prompt: SequenceOf[int], length: int) -> None:
        """Share the first positions of another slot, which begins like a prompt."""
        self.forget()
        self._target.memory.copy(lender.seq_id, self.seq_id, length)
        self.tokens, self._held, self._borrowed = list(prompt[: length + 1]), length, True

    def take(self, tokens: SequenceOf[int], state: State, drafters: Mapping[str, bytes]) -> None:
        """Hold what another slot held, while this one is idle.

        Args:
            tokens: Those in memory and, last, one that was pending.
            state: The target's memory.
            drafters: States of the drafters that have one.

        Raises:
            StateError: It does not fit; the slot is empty.
        """
        self.forget()
        try:
            state.restore(cast("Context", self._target), self.seq_id)
            self.chain.load_state(self.seq_id, tokens[:-1], drafters)
        except BaseException:
            self.forget()
            raise
        self.tokens, self._held = list(tokens), state.length

    def resume(self, request: Request, saved: SavedSlot) -> int:
        """Let a request go on that was saved; return how many positions of it memory gets.

        Raises:
            StateError: What was saved does not fit.
        """
        sequence = request.sequence
        sequence.seq_id = self.seq_id
        self.request, self.tokens, self._held, self._unshifted = request, [], 0, None
        self._saved.clear()
        if saved.state is None:
            self._target.memory.clear(self.seq_id)
            self.chain.begin(self.seq_id, sequence.history)
            sequence.reading = True
        else:
            saved.state.restore(cast("Context", self._target), self.seq_id)
            self.chain.load_state(self.seq_id, sequence.history, saved.drafters)
        n_held = saved.state.length if saved.state is not None else 0
        sequence.lag = sequence.n_committed - n_held
        if not self._trims:
            sequence.pause = sequence.n_committed
        return n_held

    def read_on(self, sequence: Sequence) -> None:
        """Save memory where a later request may want to return to; called when a piece of the prompt was read."""
        length = sequence.n_committed - sequence.lag
        last = self._saved[-1].length if self._saved else 0
        if not sequence.reading or self._trims or sequence.rows or length <= last:
            return
        if length < 2 * last and sequence.lag:
            return
        try:
            self._saved.append(self._target.memory.checkpoint(self.seq_id, lasting=True))
        except ContextError as error:
            _logger.debug("Sequence %d is not saved at %d: %s", self.seq_id, length, error)

    def shift(self, n_keep: int) -> None:
        """Make room in a full context: forget half of what follows the first ``n_keep`` tokens.

        Memory keeps what it computed of the rest, although that once followed what is forgotten (llama.cpp's context
        shift). Drafters begin anew.
        """
        request = self.request
        if request is None:
            return
        sequence, memory = request.sequence, self._target.memory
        first = min(n_keep, sequence.n_committed - 2)
        n_dropped = max(1, (sequence.n_committed - first) // 2)
        self._unshifted = min(first, sequence.n_committed if self._unshifted is None else self._unshifted)
        memory.remove(self.seq_id, first, first + n_dropped)
        memory.shift(self.seq_id, first + n_dropped, -n_dropped)
        del sequence.history[first : first + n_dropped]
        self.chain.rebegin(self.seq_id, sequence.history)

    def end(self) -> None:
        """The request is over; what memory holds may serve the next one."""
        request, self.request = self.request, None
        if request is None:
            return
        sequence = request.sequence
        length = sequence.n_committed - sequence.lag
        if sequence.rows or self._target.memory.length(self.seq_id) != length:
            self.forget()
            return
        if self._unshifted is not None:  # what comes after it was computed from other tokens
            length = min(length, self._unshifted)
            self._target.memory.trim(self.seq_id, length)
        self._held = length
        self.tokens = [*sequence.history, sequence.pending][: length + 1]

    def look_again(self) -> None:
        """Notice that a decode of others, which failed, has emptied memory."""
        memory = self._target.memory
        if self.request is not None:
            put_right(memory, self.request.sequence)
        elif memory.length(self.seq_id) != self._held:
            self.forget()

    def forget(self) -> None:
        """Empty memory; nothing is known any more."""
        self.tokens, self._held, self._borrowed = [], 0, False
        self._saved.clear()
        self._target.memory.clear(self.seq_id)

    @property
    def _trims(self) -> bool:
        """Whether memory goes back to any length; a sliding window that has moved on does not."""
        memory = self._target.memory
        return memory.rollback is RollbackKind.TRIM and not memory.one_ubatch

    def _return_to(self, length: int) -> int:
        """Drop what memory holds beyond a length that is ``reusable``; return what is left."""
        memory = self._target.memory
        held, self._held = self._held, 0
        while self._saved and self._saved[-1].length > length:
            self._saved.pop()
        try:
            if 0 < length < held and self._trims:
                if not memory.reaches(self.seq_id, length):
                    return 0
                memory.trim(self.seq_id, length)
            elif 0 < length < held:
                memory.restore(self.seq_id, self._saved[-1])
        except ContextError as error:
            _logger.debug("Sequence %d is read again: %s", self.seq_id, error)
            return 0
        return length


def common_length(first: SequenceOf[int], second: SequenceOf[int]) -> int:
    """Return how many tokens two texts have in common at their beginning."""
    end = min(len(first), len(second))
    if first[:end] == second[:end]:
        return end
    return next(i for i in range(end) if first[i] != second[i])
