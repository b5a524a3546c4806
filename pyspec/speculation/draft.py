"""What drafters are asked and what they answer."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyspec.config import as_list, require_float, require_int, shown
from pyspec.errors import ConfigError
from pyspec.speculation.target import TargetHidden

if TYPE_CHECKING:
    from pyspec.speculation.costs import Decoded
    from pyspec.speculation.round import Outcome

TokenView = Sequence[int]
"""Tokens to read: the engine's own, which grow. Nothing is copied per round; see ``pyspec.drafters.guarded``."""


class Needs(enum.Flag):
    """What a drafter reads from the target."""

    NOTHING = 0
    PROMPT = enum.auto()  # observe() is called for prompt pieces
    LAYER_INPUTS = enum.auto()
    NEXT_N = enum.auto()
    LOGITS = enum.auto()


@dataclass(frozen=True, slots=True)
class Drafting:
    """What one request wants of its engine's drafters; it can leave some out, and narrow what they do.

    Attributes:
        types: Names of the drafters to ask, as one string separated by commas or as a list; empty or "none" asks
            nobody. None and "auto" ask all that the engine has.
        n_max: Longest draft; None leaves each drafter its own. A drafter never proposes more than its own.
        n_min: A shorter draft of a draft model is not proposed; None leaves each drafter its own.
        p_min: Draft models stop before a token of lower draft probability; None leaves each drafter its own.

    Raises:
        ConfigError: Something is not of this form.

    Example:
        >>> Drafting("ngram-mod, draft-simple", n_max=4).types
        ('ngram-mod', 'draft-simple')
    """

    types: str | Iterable[str] | None = None
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None

    def __post_init__(self) -> None:
        if self.types is not None:
            empty = not isinstance(self.types, str) and as_list(self.types) == []
            names = () if empty else parsed_types(self.types)
            object.__setattr__(self, "types", None if names == ("auto",) else () if names == ("none",) else names)
        for name in ("n_max", "n_min"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, require_int(name, getattr(self, name), 0, 1 << 16))
        if self.p_min is not None:
            object.__setattr__(self, "p_min", require_float("p_min", self.p_min, 0.0, 1.0))
        if self.n_max is not None and self.n_min is not None and self.n_min > self.n_max:
            msg = f"n_min must be at most n_max, {self.n_max}, not {self.n_min}."
            raise ConfigError(msg)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The drafters to ask; None means all."""
        return None if self.types is None else tuple(self.types)

    def allows(self, name: str) -> bool:
        """Return whether a drafter may be asked."""
        return self.types is None or name in self.types


FREELY = Drafting()
"""All drafters, as the engine made them."""


def parsed_types(types: object) -> tuple[str, ...]:
    """Return drafter names, each once; "none" stands alone.

    Args:
        types: One string separated by commas, or a list.

    Raises:
        ConfigError: It is neither, or "none" is among others.
    """
    parts: list[Any] | None = types.split(",") if isinstance(types, str) else as_list(types)
    if parts is None:
        parts = [types]
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            msg = f"types must be drafter names separated by commas, not {shown(types)}."
            raise ConfigError(msg)
    found = tuple(dict.fromkeys(part.strip() for part in parts))
    if not found or ("none" in found and len(found) > 1):
        msg = f'"none" switches speculation off and stands alone; found {shown(types)}.'
        raise ConfigError(msg)
    return found


class DraftRequest(NamedTuple):
    """A question to a drafter.

    Attributes:
        seq_id: The sequence.
        tokens: History without the pending token.
        pending: The token that the draft continues.
        position: Position of the pending token.
        budget: The most tokens that may be proposed, at least 1.
        temperature: The target's, for drafters that sample.
        seed: The target's.
        drafting: What else the request wants; the chain and the budget see to the drafters and the length.
        n_entries: Entries that the round's decode has without any draft, of all its sequences.
        wants_signals: The answer should have ``signals``.
        judge: To be called with each token's signal as soon as the token is chosen; when it says False, the draft ends
            with that token. A drafter that has no signals, or all its tokens at once, leaves it.
    """

    seq_id: int
    tokens: TokenView
    pending: int
    position: int
    budget: int
    temperature: float = 0.0
    seed: int | None = None
    drafting: Drafting = FREELY
    n_entries: int = 1
    wants_signals: bool = False
    judge: Callable[[float], bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """A truncated distribution over tokens; every other token has probability 0.

    Attributes:
        tokens: Different ids, [k], at least one.
        probs: Their probabilities, [k]; they sum to 1.
    """

    tokens: npt.NDArray[np.int32]
    probs: npt.NDArray[np.float64]

    def draw(self, number: float) -> int:
        """Return the token that a number in [0, 1) falls on."""
        sums = self.probs.cumsum()  # rounding may leave the last one below 1
        return int(self.tokens[np.searchsorted(sums, number * sums[-1], side="right")])


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer: the tokens proposed; empty means "not me".

    Attributes:
        tokens: What should follow the pending token.
        probs: Per token the distribution it was drawn from, or None when the draft is deterministic.
        signals: Per token how sure the drafter is, where a request wants them: the share of probability that the
            likeliest token has, below 1, or from 1 on how much of the text speaks for it, such as the length in tokens
            of the match that it continues, the draft's tokens before it among them. ``auto`` learns how often tokens of
            like signals are accepted. A signal must not depend on which token was drawn.
    """

    tokens: Sequence[int] = ()
    probs: Sequence[Candidates] | None = None
    signals: Sequence[float] | None = None

    def cut(self, n_tokens: int) -> Draft:
        """Return the first tokens, and what belongs to them."""
        probs, signals = self.probs, self.signals
        return Draft(
            self.tokens[:n_tokens],
            None if probs is None else probs[:n_tokens],
            None if signals is None else signals[:n_tokens],
        )


class Span(NamedTuple):
    """Entries of a batch that belong to one sequence and follow each other.

    Attributes:
        seq_id: The sequence.
        first: Number of the first entry.
        end: Number after the last one.
    """

    seq_id: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class EvaluatedBatch:
    """What the target has just evaluated; good during the call that receives it.

    Entries of a later batch at the same positions replace these: a draft that was not accepted, for example. The lists
    are the engine's and not to be changed; arrays of ``hidden`` belong to whoever asked for them.

    Attributes:
        tokens: Token per entry, ``NO_TOKEN`` where an embedding stands in its place.
        positions: Position per entry.
        seq_ids: Sequences per entry.
        hidden: The target's hidden states, one row per entry, as far as the drafter asked the target to keep them.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    seq_ids: Sequence[tuple[int, ...]]
    hidden: TargetHidden | None = None

    def spans(self) -> list[Span]:
        """Return the runs of entries per sequence, in batch order."""
        spans: list[Span] = []
        last: dict[int, int] = {}  # sequence to its newest span
        for i, sequences in enumerate(self.seq_ids):
            for seq_id in sequences:
                at = last.get(seq_id)
                if at is not None and spans[at].end == i:
                    spans[at] = spans[at]._replace(end=i + 1)
                else:
                    last[seq_id] = len(spans)
                    spans.append(Span(seq_id, i, i + 1))
        return spans


class Drafter(Protocol):
    """Proposes tokens. See the tutorial "Write a drafter".

    Order of calls per sequence: ``begin``, then any number of ``draft``, each followed by ``accept`` when the
    target decided, or by nothing when the round was undone. A drafter may also have ``discard(seq_id)``, which is
    called then; one that keeps a model's memory uses it to drop what it decoded for that draft. It may have
    ``embed(seq_id, rows)``, called before ``begin`` when rows of floats stand in place of some prompt tokens, which
    then are ``NO_TOKEN``: ``rows`` has them by position. One that learns from requests may have
    ``end(seq_id, tokens)``, called when one is over, with its history; what was left in the middle may have none.

    One whose state is worth keeping may have ``rewind(seq_id, tokens, length, n_same)``. It takes the place of
    ``begin`` when a new request starts like what the sequence holds: ``tokens`` is the new history, of which the first
    ``n_same`` are those that this drafter knows, and the target's memory keeps the first ``length`` positions, which it
    does not evaluate again. For a drafter that needs something of the target, ``length`` is below ``n_same``: what
    stands beside the rows before ``length`` is the same too.

    What it is shown is not to be changed. A class with ``reads_only = True`` in its own body promises that, and reads
    the engine's own lists, which is faster; others read them through ``ReadOnly``.

    Attributes:
        name: Such as "ngram-simple". This and the next two are read once, when the chain is made.
        n_max: Longest draft it may return.
        needs: What it reads from the target.
    """

    name: str
    n_max: int
    needs: Needs

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """A new request starts; ``tokens`` is its history without the pending token."""
        ...

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this. Called only for drafters that need something."""
        ...

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Return one answer per request, in their order."""
        ...

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """A draft was verified; ``own`` tells whether it was this drafter's."""
        ...

    def save_state(self, seq_id: int) -> bytes | None:
        """Return what must be saved with the sequence between two rounds, or None when its tokens suffice."""
        ...

    def load_state(self, seq_id: int, state: bytes) -> None:
        """Take back what ``save_state`` returned; this takes the place of ``begin``."""
        ...

    def close(self) -> None:
        """Free what is held. May be called again."""
        ...


class Expectation(NamedTuple):
    """What ``auto`` expects of a round.

    Attributes:
        drafter: Whose draft it chose, None for none.
        length: Tokens of the draft that are verified.
        tokens: Tokens that the sequence will emit.
        seconds: What the round will take, for all its sequences.
        plain_seconds: What it would take without drafts.
        explores: A draft was made only to learn how good it is.
    """

    drafter: str | None
    length: int
    tokens: float
    seconds: float
    plain_seconds: float
    explores: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft and who made it.

    Attributes:
        draft: The draft.
        drafter: The name of its drafter, None for an empty draft.
        expected: What is expected of the round, where drafts are chosen by that (``auto``).
    """

    draft: Draft
    drafter: str | None
    expected: Expectation | None = None


NO_DRAFT = Proposal(Draft(), None)
GRAMMAR = "grammar"
"""In place of a drafter's name, for tokens that a grammar forces."""


class Proposer(Protocol):
    """What a round asks for drafts; ``pyspec.drafters.Chain`` offers it."""

    @property
    def n_max(self) -> int:
        """The longest draft it may return; 0 for plain decoding."""
        ...

    @property
    def needs(self) -> Needs:
        """What its drafters read from the target; ``observe`` is called when it is not nothing."""
        ...

    def rest(self, seq_ids: Sequence[int], n_entries: int) -> Sequence[Proposal] | None:
        """Return one proposal without a draft per sequence, or None: then ``propose`` is called for this round.

        Args:
            seq_ids: Of all sequences that may draft.
            n_entries: Entries of the round's decode without drafts.
        """
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Proposal]:
        """Return one proposal per request, within its budget."""
        ...

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this."""
        ...

    def accept(self, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        """The target has decided about a proposal that was not empty."""
        ...

    def discard(self, seq_id: int) -> None:
        """The round was undone."""
        ...

    def played(self, decodes: Sequence[Decoded], outcomes: Sequence[Outcome]) -> None:
        """A round is over; this is what it cost, where ``n_max`` is not 0, and what came out."""
        ...
