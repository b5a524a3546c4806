"""Comparing a speculative run with plain decoding.

Kernels compute a row a little differently alone than in a batch of several rows, so two candidates that are nearly
equal can change places, in every speculative decoder and on every backend. A first difference is therefore looked
at: where each run had both candidates nearly level it is a tie, otherwise it is a fault.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pyspec.engine.result import Result, TopTokens
from pyspec.errors import ConfigError

TIE_EPSILON = 0.5
"""Logits that are this near count as level.

Measured with ``benchmarks/row_width.py`` on SmolLM2-135M Q4_1, 400 positions, two threads: rows decoded alone and in
batches differ by 0.12 (root mean square) from 256 cells on, the largest gap at which the best token changed was 0.31,
and the logits' standard deviation is 8.2. With one thread they are identical.
"""


class Verdict(enum.Enum):
    """How two runs compare."""

    SAME = "same"
    TIE = "tie"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of the same prompt.

    Attributes:
        verdict: Same, tie or different.
        index: First differing emitted token, or None.
        plain_token: Token of the plain run there.
        other_token: Token of the other run there.
        plain_gap: By how much the plain run preferred its token, in logits; None when the other token was not
            among its largest.
        other_gap: By how much the other run preferred its token.
        epsilon: Gaps below this are ties.
        by_plain: The plain run's logits alone were looked at.
    """

    verdict: Verdict
    index: int | None = None
    plain_token: int | None = None
    other_token: int | None = None
    plain_gap: float | None = None
    other_gap: float | None = None
    epsilon: float = TIE_EPSILON
    by_plain: bool = False

    def __str__(self) -> str:
        if self.verdict is Verdict.SAME:
            return "yes"
        if self.plain_token is None:
            return f"NO, one run ends before token {self.index}, where the other goes on"
        gaps = f"{_number(self.plain_gap)} (plain) and {_number(self.other_gap)} (speculative) logits apart"
        if self.by_plain:
            gaps = f"{_number(self.plain_gap)} logits apart (plain)"
        where = f"token {self.index}: {self.plain_token} (plain) and {self.other_token} (speculative) are {gaps}"
        if self.verdict is Verdict.TIE:
            return f"a tie at {where}; below {self.epsilon:g} either is right"
        return f"NO, {where}; that is more than rounding ({self.epsilon:g})"


def compare(plain: Result, other: Result, *, epsilon: float = TIE_EPSILON, by_plain: bool = False) -> Comparison:
    """Compare a run with the plain one; both generated at temperature 0, with ``n_top`` of at least 2.

    Args:
        plain: The plain run.
        other: The other one.
        epsilon: Gaps below this are ties.
        by_plain: Judge by the logits of the plain run alone; the other one needs no ``n_top``.

    Raises:
        ConfigError: The prompts differ, or a run has no ``top``.
    """
    if plain.prompt_tokens != other.prompt_tokens:
        raise ConfigError("These runs have different prompts; only runs of one prompt can be compared.")
    pairs = enumerate(zip(plain.tokens, other.tokens, strict=False))
    index = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
    if index is None:
        same = len(plain.tokens) == len(other.tokens)
        shorter = min(len(plain.tokens), len(other.tokens))
        return Comparison(Verdict.SAME if same else Verdict.DIFFERENT, None if same else shorter, epsilon=epsilon)
    if len(plain.top) <= index or (len(other.top) <= index and not by_plain):
        raise ConfigError("To explain a difference both runs need n_top=2 or more.")
    ours, theirs = plain.tokens[index], other.tokens[index]
    gaps = (_gap(plain.top[index], ours, theirs), None if by_plain else _gap(other.top[index], theirs, ours))
    tie = all(gap is not None and gap < epsilon for gap in (gaps[:1] if by_plain else gaps))
    return Comparison(
        Verdict.TIE if tie else Verdict.DIFFERENT, index, ours, theirs, *gaps, epsilon=epsilon, by_plain=by_plain
    )


def _gap(top: TopTokens, chosen: int, rejected: int) -> float | None:
    logits = dict(top)
    if chosen not in logits or rejected not in logits:
        return None
    return logits[chosen] - logits[rejected]


def _number(gap: float | None) -> str:
    return "?" if gap is None else f"{gap:.4f}"
