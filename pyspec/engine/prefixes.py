"""What slots held, kept in host memory until a request begins like it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pyspec.drafters import Chain
from pyspec.engine.slots import Slot, common_length
from pyspec.errors import PyspecError
from pyspec.llama.context import Context
from pyspec.llama.state import State

_logger = logging.getLogger(__name__)
_LEAST = 64  # tokens; fewer are read again as fast as they are restored


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """What a slot held.

    Attributes:
        tokens: The tokens in memory and, last, one that was pending.
        state: The target's memory.
        drafters: States of the drafters, by name.
    """

    tokens: list[int]
    state: State
    drafters: Mapping[str, bytes]

    @property
    def n_bytes(self) -> int:
        """What it takes."""
        return len(self.state.data) + sum(map(len, self.drafters.values())) + 8 * len(self.tokens)


class PrefixCache:
    """Keeps prefixes within a budget; what was used longest ago goes first.

    Args:
        context: The target.
        chain: The drafters.
        max_bytes: The budget.

    Attributes:
        n_bytes: What is kept now.
    """

    def __init__(self, context: Context, chain: Chain, max_bytes: int) -> None:
        self._context = context
        self._chain = chain
        self._max_bytes = max_bytes
        self._kept: list[Prefix] = []  # the newest last
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def exchange(self, slot: Slot, prompt: SequenceOf[int]) -> None:
        """Prepare a free slot for a prompt: keep what it would lose, and put in what fits better, if anything does."""
        reusable = slot.reusable(prompt)
        best = max(self._kept, key=lambda kept: _fitting(slot, kept, prompt), default=None)
        if slot.n_held - reusable >= _LEAST:
            self._keep(slot)
        if best in self._kept and _fitting(slot, best, prompt) >= max(reusable + 1, _LEAST):
            self._put(best, slot)

    def _keep(self, slot: Slot) -> None:
        tokens = slot.tokens
        if any(kept.tokens[: len(tokens)] == tokens for kept in self._kept):
            return
        try:
            if self._context.memory.n_bytes(slot.seq_id) > self._max_bytes:
                return
            prefix = Prefix(tokens, State.save(self._context, slot.seq_id), self._chain.save_state(slot.seq_id))
        except PyspecError as error:  # a sliding window has moved on, for example
            _logger.debug("The prefix of sequence %d is not kept: %s", slot.seq_id, error)
            return
        for kept in [kept for kept in self._kept if common_length(kept.tokens, tokens) == len(kept.tokens)]:
            self._drop(kept)  # this one goes further
        self._kept.append(prefix)
        self.n_bytes += prefix.n_bytes
        while self.n_bytes > self._max_bytes:
            self._drop(self._kept[0])

    def _put(self, prefix: Prefix, slot: Slot) -> None:
        self._drop(prefix)
        try:
            slot.take(prefix.tokens, prefix.state, prefix.drafters)
        except PyspecError as error:
            _logger.debug("A prefix could not be restored: %s", error)

    def _drop(self, prefix: Prefix) -> None:
        self._kept.remove(prefix)
        self.n_bytes -= prefix.n_bytes


def _fitting(slot: Slot, prefix: Prefix, prompt: SequenceOf[int]) -> int:
    return slot.reusable_of(prefix.tokens, len(prefix.tokens) - 1, prompt)
