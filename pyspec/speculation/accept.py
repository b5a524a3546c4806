"""Which draft tokens stand."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pyspec.speculation.draft import Draft
from pyspec.speculation.ending import Finish
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import TargetRows


class Verdict(NamedTuple):
    """What a rule decided for one sequence.

    Attributes:
        emitted: The accepted tokens and one more: recovered, bonus, or the token that ends the sequence.
        finish: Why the sequence ends with the last one, or None.
    """

    emitted: tuple[int, ...]
    finish: Finish | None


class AcceptRule(Protocol):
    """Decides about drafts."""

    name: str

    def accept(self, draft: Draft, rows: TargetRows, sequence: Sequence) -> Verdict:
        """Decide about one draft.

        Args:
            draft: The proposed tokens, possibly none.
            rows: Logits rows, [len(draft.tokens) + 1, n_vocab].
            sequence: Its sampler and ending take in exactly the emitted tokens.
        """
        ...


class MatchRule:
    """The target chooses at each row as it would alone; a draft token stands while it is that choice.

    The output is the target's own, draw for draw: the number of draws equals the number of emitted tokens.
    """

    name = "match"

    def accept(self, draft: Draft, rows: TargetRows, sequence: Sequence) -> Verdict:
        """See ``AcceptRule``."""
        emitted: list[int] = []
        while True:
            i = len(emitted)
            token = sequence.sampler.sample(rows, i)
            emitted.append(token)
            finish = sequence.ending.push(token)
            if finish is not None or i == len(draft.tokens) or token != draft.tokens[i]:
                return Verdict(tuple(emitted), finish)
