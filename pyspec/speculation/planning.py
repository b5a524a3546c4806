"""How much to draft and to verify: the arithmetic of the controller. Nothing here has state but the judge of a draft.

A length is chosen by its *rate*, the tokens that the round is expected to emit by the seconds that it is expected to
take. It is enumerated, because the seconds of a decode grow in steps::

    rate(k) = (n + P_1 + ... + P_k) / (plain + extra seconds of k rows)      P_i: tokens 1 to i are all accepted
                                                                             n sequences, plain: seconds without drafts

Rates of one round are compared, and not with the average of all rounds: what a round leaves, the next ones have to
emit, and they go about as fast. So a long draft in a text that repeats is right even if other texts go faster.

What a drafter *gains* is reckoned in tokens, its time at the worth that it has in plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspec.speculation.costs import Costs

LEAST = 0.01
"""Chances below it are not worth a thought: a row costs more than so much of a decode."""
MARGIN = 0.1
"""How much more than the rate without drafts a draft has to reach, and of several sequences that many of them have to.
Of several lengths whose times are not known exactly the one that seems best is rather one that seems too good, and the
rounds after a draft are slower, too."""


class Plan(NamedTuple):
    """A length, and what it brings.

    Attributes:
        length: Tokens.
        gain: Tokens that it gains over no draft at all, when a second is worth what plain decoding makes of it.
        seconds: What it costs.
        rate: Tokens per second of the round.
    """

    length: int
    gain: float
    seconds: float
    rate: float

    def gain_at(self, worth: float, plain: float) -> float:
        """Return the gain when a second is worth so many tokens, instead of what it is in plain decoding."""
        return self.gain - (worth - plain) * self.seconds


class Base(NamedTuple):
    """A round without drafts: the tokens it emits and the seconds it takes."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Restoring(NamedTuple):
    """What a memory costs that cannot drop any suffix.

    Attributes:
        bound: Rejected tokens that it can drop like any other.
        checkpoint: Seconds to save and restore.
        again: Seconds per token that is decoded again.
    """

    bound: int = 1 << 30
    checkpoint: float = 0.0
    again: float = 0.0

    def seconds(self, length: int, whole: float, n_accepted: float) -> float:
        """Return what a draft costs here.

        Args:
            length: Its length.
            whole: The chance that all of it is accepted.
            n_accepted: How many tokens of it are expected to be.
        """
        if length <= self.bound:
            return 0.0
        return self.checkpoint + (1.0 - whole) * (1.0 + n_accepted) * self.again


TRIMS = Restoring()


def best_prefix(
    path: Sequence[float],
    extra: Sequence[float],
    base: Base,
    restoring: Restoring = TRIMS,
    *,
    least: int = 1,
    spent: float = 0.0,
    always: bool = False,
) -> Plan:
    """Return how much of a draft to verify.

    Args:
        path: Chance of each token and all before it, [n_tokens].
        extra: Seconds that 0, 1, ... rows add to the round, [at least n_tokens + 1].
        base: The round without drafts.
        restoring: What the memory costs.
        least: Shorter lengths are not allowed, apart from 0.
        spent: Seconds that were spent on the draft already.
        always: The best length that is not 0, even if no draft at all would be better.

    Example:
        >>> best_prefix([0.9, 0.5], [0.0, 0.010, 0.011], Base(1, 0.010)).length  # rates 100, 95 and 114
        2
    """
    plain = base.rate
    best = Plan(0, 0.0, 0.0, base.tokens / (base.seconds + spent))
    together, found = 0.0, always and bool(path)
    least_rate = 0.0 if always else best.rate * (1.0 + MARGIN)
    for k, chance in enumerate(path, 1):
        together += chance
        if k < least:
            continue
        seconds = extra[k] + restoring.seconds(k, chance, together)
        rate = (base.tokens + together) / (base.seconds + spent + seconds)
        if found or rate > max(best.rate, least_rate):
            best, found = Plan(k, together - plain * seconds, seconds, rate), False
    return best


def best_lengths(
    paths: Sequence[Sequence[float]],
    fixed: Sequence[bool],
    seconds: Callable[[Sequence[int], int], float],
    restoring: Restoring = TRIMS,
) -> list[int]:
    """Return how much of each sequence's draft to verify, when they share the decode.

    The rows of all sequences are taken in the order of their chances, and the number of rows with the best rate wins.
    Chances fall along a draft, so what is taken of it is always its beginning.

    Args:
        paths: Per sequence the chance of each token and all before it.
        fixed: Per sequence whether its draft is verified as it is. Drawn drafts are, see ``rejection.py``.
        seconds: Returns the seconds of the round with drafts of these lengths, given them and their sum.
        restoring: What the memory costs.
    """
    lengths = [len(path) if whole else 0 for path, whole in zip(paths, fixed, strict=True)]
    sums = [sum(path) if whole else 0.0 for path, whole in zip(paths, fixed, strict=True)]
    rows = sorted(
        ((-chance, k, i) for i, path in enumerate(paths) if not fixed[i] for k, chance in enumerate(path, 1)),
        key=lambda row: (row[0], row[1]),
    )
    n_rows, tokens, lost = sum(lengths), len(paths) + sum(sums), 0.0
    losses = [0.0] * len(paths)
    best, best_rate = list(lengths), (1.0 + MARGIN / len(paths)) * tokens / seconds(lengths, n_rows)
    for chance, k, i in rows:
        if -chance < LEAST:
            break
        lengths[i] = k
        n_rows += 1
        sums[i] -= chance
        tokens -= chance
        loss = restoring.seconds(k, -chance, sums[i])
        lost += loss - losses[i]
        losses[i] = loss
        rate = tokens / (seconds(lengths, n_rows) + lost)
        if rate > best_rate:
            best, best_rate = list(lengths), rate
    return best


def least_chance(extra: Mapping[int, float], base: Base) -> float:
    """Return the chance that a first token must have, so that a draft can be worth its rows, however it goes on.

    No token of a draft is more likely to be reached and right than its first one. So with rows that emit so much each,
    the best number of rows must reach the rate that is asked of drafts. Above 1 none can.

    Args:
        extra: Seconds that some numbers of rows add to the round; between them they grow evenly.
        base: The round without drafts.

    Example:
        >>> round(least_chance({1: 0.010, 3: 0.012}, Base(1, 0.010)), 2)  # two rows cost twice as much as one
        0.47
    """
    asked = base.rate * (1.0 + MARGIN / base.tokens)
    return min((asked * (base.seconds + seconds) - base.tokens) / n_rows for n_rows, seconds in extra.items())


class Judge:
    """Decides after each drafted token whether another one is worth its time; see ``DraftRequest.judge``.

    Drafting goes on when some longer draft is expected to gain more than the best part of what is there. Here a second
    is worth what the drafter usually makes of it, since each round of this text can have a draft of it.

    Args:
        chance: Returns the chance of the token with this number, given its signal.
        expected: Chance of each token before its signal is known, [limit].
        extra: Seconds that 0, 1, ... rows add to the round, [limit + 1].
        steps: Seconds that drafting 0, 1, ... tokens takes, [limit + 1].
        worth: Tokens per second.
    """

    __slots__ = ("_best", "_chance", "_expected", "_extra", "_path", "_steps", "_sum", "_worth", "n_tokens")

    def __init__(
        self,
        chance: Callable[[float, int], float],
        expected: Sequence[float],
        extra: Sequence[float],
        steps: Sequence[float],
        worth: float,
    ) -> None:
        self._chance = chance
        self._expected = expected
        self._extra = extra
        self._steps = steps
        self._worth = worth
        self._path, self._sum, self._best = 1.0, 0.0, 0.0
        self.n_tokens = 0

    def __call__(self, signal: float) -> bool:
        """Take in the signal of the next token, and return whether to draft on."""
        self._path *= self._chance(signal, self.n_tokens)
        self._sum += self._path
        n = self.n_tokens = self.n_tokens + 1
        worth, extra, steps = self._worth, self._extra, self._steps
        self._best = max(self._best, self._sum - worth * extra[n])
        path, together = self._path, self._sum
        for k in range(n, len(self._expected)):
            path *= self._expected[k]
            together += path
            if together - worth * (extra[k + 1] + steps[k + 1] - steps[n]) > self._best:
                return True
        return False


class Prices:
    """What the rows of one round cost, looked up when they are needed.

    A *turn* is what a decode takes longer when the one before had another number of entries. A draft pays for the way
    back to plain decoding too, unless the round would have to pay for that anyway.

    Args:
        costs: Of the machine.
        n_entries: Entries of the round's decode without drafts.
        n_sequences: Its sequences.

    Attributes:
        n_entries: See above.
        base: The round without drafts.
        plain: Seconds of such a round after others like it.
        way_back: The turn after a draft.
    """

    __slots__ = ("_beside", "_curve", "_doubts", "_extra", "_last", "base", "n_entries", "plain", "way_back")

    def __init__(self, costs: Costs, n_entries: int, n_sequences: int) -> None:
        self._curve = costs.verify
        self._last = costs.n_entries
        self.way_back = costs.turn
        self._extra: list[float] = [0.0]
        self._doubts: list[float] = [0.0]
        self.n_entries = n_entries
        self.plain = self._curve.seconds(n_entries) + costs.overhead
        without = self.decode(n_entries)
        self._beside = self.way_back - without
        self.base = Base(n_sequences, without + costs.overhead)

    def decode(self, n_entries: int) -> float:
        """Return what a decode of so many entries takes after the one before."""
        return self._curve.seconds(n_entries) + (0.0 if n_entries == self._last else self.way_back)

    def more_rows(self, n_rows: int) -> list[float]:
        """Return the seconds that 0, 1, ... further rows cost, [at least n_rows + 1]."""
        extra = self._extra
        if len(extra) <= n_rows:
            extra += [self.more(n) for n in range(len(extra), n_rows + 1)]
        return extra

    def doubts(self, n_rows: int) -> list[float]:
        """Return the seconds that 0, 1, ... further rows may cost less (``CostCurve.doubt``), [at least n_rows + 1]."""
        doubts, doubt = self._doubts, self._curve.doubt
        if len(doubts) <= n_rows:
            doubts += [doubt(self.n_entries + n) for n in range(len(doubts), n_rows + 1)]
        return doubts

    def more(self, n_rows: int) -> float:
        """Return the seconds that so many further rows cost, at least one."""
        return self.decode(self.n_entries + n_rows) + self._beside

    def shared(self, n_rows: int, n_sequences: int) -> list[float]:
        """Return a sequence's part of the seconds when so many have 0, 1, ... n_rows further rows each."""
        extra = self.more_rows(n_rows * n_sequences)
        return [extra[n * n_sequences] / n_sequences for n in range(n_rows + 1)]
