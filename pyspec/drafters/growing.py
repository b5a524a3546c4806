"""Drafts that grow token by token, all sequences of a round together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyspec.drafters.choosing import Choice, Chooser
from pyspec.speculation.draft import Draft, DraftRequest
from pyspec.speculation.target import TargetRows


@dataclass(slots=True)
class Growing:
    """A draft under way.

    Attributes:
        request: What it answers.
        limit: The most tokens it may have.
        choices: Its tokens so far.
        states: Rows that belong to its tokens, for drafters that continue from hidden states; each is [width].
    """

    request: DraftRequest
    limit: int
    choices: list[Choice] = field(default_factory=list)
    states: list[npt.NDArray[np.float32]] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The token to decode next."""
        return self.choices[-1].token if self.choices else self.request.pending

    @property
    def next_position(self) -> int:
        """Position of the token that will be chosen next."""
        return self.request.position + 1 + len(self.choices)

    def finished(self, n_min: int) -> Draft:
        """Return the draft; one with fewer than ``n_min`` tokens, or the request's number, is not proposed.

        A drawn one always is: how long it became depends on what was drawn, and dropping it for that would make the
        tokens of longer ones likelier than their draft probabilities say.
        """
        tokens = tuple(choice.token for choice in self.choices)
        probs = tuple(choice.candidates for choice in self.choices if choice.candidates is not None)
        wanted = self.request.drafting.n_min
        if len(tokens) < (n_min if wanted is None else min(wanted, self.limit)) and not probs:
            return Draft()
        signals = tuple(choice.signal for choice in self.choices if choice.signal is not None)
        return Draft(tokens, probs or None, signals if self.request.wants_signals else None)

    def take(self, choice: Choice) -> bool:
        """Append a token, and return whether to go on.

        Whether there is another token never depends on what it would be: its own choice comes later.
        """
        self.choices.append(choice)
        if len(self.choices) >= self.limit:
            return False
        judge = self.request.judge
        return judge is None or choice.signal is None or judge(choice.signal)


Step = tuple[TargetRows, Sequence[int]]
"""Logits rows, and for each draft the number of its row."""


def grow(drafts: Sequence[Growing], step: Callable[[list[Growing]], Step], chooser: Chooser) -> None:
    """Grow drafts to their limits, or until the chooser or their judge stops them.

    Args:
        drafts: One per sequence; those with limit 0 stay empty.
        step: Decodes the newest token of each draft it is given and returns a logits row for each.
        chooser: Chooses from the rows.
    """
    active = [draft for draft in drafts if draft.limit > 0]
    while active:
        rows, numbers = step(active)
        still = []
        for i, draft in zip(numbers, active, strict=True):
            choice = chooser.choose(rows, i, draft.request, draft.next_position)
            if choice is not None and draft.take(choice):
                still.append(draft)
        active = still
