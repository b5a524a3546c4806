"""The rule "synthetic": accepts drafts at given rates, whatever the target says.

For benchmarks of what a drafter *would* gain. The output is not the target's and must be marked wherever it appears.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from pyspec.config import as_list, require_float, shown
from pyspec.errors import ConfigError
from pyspec.speculation.accept import Verdict, follow
from pyspec.speculation.draft import Draft
from pyspec.speculation.noise import Stream, Uniform, uniform
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import TargetRows


class SyntheticRule:
    """Accepts the draft's token i with the probability ``rates[i]``, over all drafts that are that long.

    The token after the accepted ones is the target's choice. A drafted end token is never accepted.

    Args:
        rates: Per draft position, as ``checked_rates`` returns them.
        numbers: Where random numbers come from.
    """

    name = "synthetic"
    valid = False

    def __init__(self, rates: SequenceOf[float], numbers: Uniform = uniform) -> None:
        before = (1.0, *rates)
        # The rates are those of all drafts; a token is asked about only when those before it stand.
        self._conditional = [rate / last if last > 0.0 else 0.0 for rate, last in zip(rates, before, strict=False)]
        self._numbers = numbers

    def accept(self, draft: Draft, rows: TargetRows, sequence: Sequence) -> Verdict:
        """See ``AcceptRule``."""
        standing = draft.tokens[: self._n_standing(draft, sequence)]
        sampler = sequence.sampler

        def choose(i: int) -> int:
            if i == len(standing):
                return sampler.sample(rows, i)
            sampler.accept(standing[i])
            return standing[i]

        return follow(standing, sequence.ending, choose)

    def _n_standing(self, draft: Draft, sequence: Sequence) -> int:
        """Return how many of the draft's tokens are accepted."""
        seed, first = sequence.seed or 0, sequence.n_committed + 1
        n_standing = 0
        for token, rate in zip(draft.tokens, self._conditional, strict=False):
            refused = self._numbers(seed, first + n_standing, Stream.ACCEPT) >= rate
            if refused or sequence.ending.is_end(token):
                break
            n_standing += 1
        return n_standing


def checked_rates(rates: object, n_max: int) -> tuple[float, ...]:
    """Return acceptance rates per draft position.

    Args:
        rates: ``n_max`` numbers in [0, 1], none larger than the one before it.
        n_max: Longest draft.

    Raises:
        ConfigError: They are not of this form.
    """
    numbers = as_list(rates)
    if numbers is None or len(numbers) != n_max:
        found = shown(rates) if numbers is None else f"{len(numbers)} of them"
        msg = f"rates must be one acceptance rate for each of the {n_max} draft positions, not {found}."
        raise ConfigError(msg)
    checked = tuple(require_float(f"rates[{i}]", rate, 0.0, 1.0) for i, rate in enumerate(numbers))
    for i in range(1, n_max):
        if checked[i] > checked[i - 1]:
            msg = (
                f"rates must not increase, because a token stands only when those before it do; "
                f"rates[{i}] is {checked[i]}, after {checked[i - 1]}."
            )
            raise ConfigError(msg)
    return checked


def rates_of_length(length: object, n_max: int) -> tuple[float, ...]:
    """Return rates with which rounds with drafts of ``n_max`` tokens emit ``length`` tokens on average.

    They are powers of one number, which is found by bisection: their sum must be ``length - 1``.

    Args:
        length: In [1, n_max + 1].
        n_max: Longest draft.

    Raises:
        ConfigError: ``length`` is out of range.
    """
    wanted = require_float("length", length, 1.0, n_max + 1.0) - 1.0
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if sum(_powers(middle, n_max)) < wanted:
            low = middle
        else:
            high = middle
    return _powers(high, n_max) if wanted > 0.0 else (0.0,) * n_max


def _powers(rate: float, n_max: int) -> tuple[float, ...]:
    return tuple(rate ** (i + 1) for i in range(n_max))
