"""Which draft tokens stand.

A rule decides row after row. What all rules share is in ``follow``: it goes on while the decided token is the drafted
one, and takes nothing in behind a token that ends the sequence. The rules differ in how the token of a row is chosen:

=========  ===========================================================================  ============
match      the target draws it from the row as it would alone                           here
rejection  the draft's with min(1, target / draft probability), else from what is left  rejection.py
coupled    the best of log probability + noise; drafters draw with the same noise       coupled.py
synthetic  the draft's, at given rates, whatever the target says: for benchmarks only   synthetic.py
=========  ===========================================================================  ============
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pyspec.config import shown
from pyspec.errors import SpeculationError, StalledError, UnsupportedError
from pyspec.speculation.draft import Candidates, Draft
from pyspec.speculation.ending import Ending, Finish
from pyspec.speculation.sequence import Sampler, Sequence
from pyspec.speculation.target import TargetRows


@dataclass(slots=True)
class Verdict:
    """What a rule decided for one sequence.

    Attributes:
        emitted: The accepted tokens and one more: recovered, bonus, or the token that ends the sequence.
        finish: Why the sequence ends with the last one, or None.
    """

    emitted: tuple[int, ...]
    finish: Finish | None


def check_verdict(verdict: Verdict, rule: AcceptRule, draft: Draft, n_vocab: int) -> None:
    """Refuse what memory and history cannot follow.

    Raises:
        StalledError: No token was emitted, so the next round would be the same again.
        SpeculationError: It is no verdict, or what was accepted is not how the draft begins.
    """
    if not _is_sound(verdict, draft.tokens, n_vocab):
        name = getattr(rule, "name", type(rule).__name__)
        if isinstance(verdict, Verdict) and not verdict.emitted:
            msg = f'The rule "{name}" emitted no token; each round must emit one.'
            raise StalledError(msg)
        msg = (
            f'The rule "{name}" decided {shown(verdict)} about the draft {shown(draft.tokens)}. It must return a '
            f"Verdict: how the draft begins and one more token, a tuple of ids from 0 to {n_vocab - 1}, and a Finish "
            "or None."
        )
        raise SpeculationError(msg)


def _is_sound(verdict: Verdict, drafted: TokenSequence[int], n_vocab: int) -> bool:
    """Return whether a verdict is one, and begins like the draft."""
    if not isinstance(verdict, Verdict) or type(verdict.emitted) is not tuple or not verdict.emitted:
        return False
    n_accepted = len(verdict.emitted) - 1
    if n_accepted > len(drafted):
        return False
    for i, token in enumerate(verdict.emitted):
        if type(token) is not int or not 0 <= token < n_vocab or (i < n_accepted and token != drafted[i]):
            return False
    return verdict.finish is None or type(verdict.finish) is Finish


class AcceptRule(Protocol):
    """Decides about drafts.

    Attributes:
        name: Such as "match".
        valid: Whether what it emits is the target's; else the output must be marked wherever it appears.
    """

    name: str
    valid: bool

    def accept(self, draft: Draft, rows: TargetRows, sequence: Sequence) -> Verdict:
        """Decide about one draft.

        Args:
            draft: The proposed tokens, possibly none.
            rows: Logits rows, [len(draft.tokens) + 1, n_vocab].
            sequence: Its sampler and ending take in exactly the emitted tokens.
        """
        ...


class DistributionSampler(Sampler, Protocol):
    """A sampler that can say what it would draw from."""

    def distribution(self, rows: Any, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return tokens and probabilities of what row i decides, both [k]; nothing is drawn, nothing taken in.

        It is what ``sample`` would draw from: bias, penalties of exactly the tokens taken in so far, temperature and
        truncation applied, forbidden tokens without probability. ``accept`` tells which token it became.
        """
        ...


class MatchRule:
    """The target chooses at each row as it would alone; a draft token stands while it is that choice.

    The output is the target's own, draw for draw: the number of draws equals the number of emitted tokens.
    """

    name = "match"
    valid = True

    def accept(self, draft: Draft, rows: TargetRows, sequence: Sequence) -> Verdict:
        """See ``AcceptRule``."""
        sampler, ending = sequence.sampler, sequence.ending
        if not draft.tokens:  # plain decoding, which must not take longer for being a round like any other
            token = sampler.sample(rows, 0)
            return Verdict((token,), ending.push(token))
        return follow(draft.tokens, ending, functools.partial(sampler.sample, rows))


def follow(drafted: TokenSequence[int], ending: Ending, choose: Callable[[int], int]) -> Verdict:
    """Decide row after row while what is chosen is what was drafted.

    Args:
        drafted: The draft's tokens.
        ending: Takes in each chosen token.
        choose: Returns the token of row i; the sampler has taken it in then. Never called behind a token that ends
            the sequence.
    """
    emitted: list[int] = []
    while True:
        i = len(emitted)
        token = choose(i)
        emitted.append(token)
        finish = ending.push(token)
        if i == len(drafted) or finish is not None or token != drafted[i]:
            return Verdict(tuple(emitted), finish)


def follow_distribution(
    draft: Draft, rows: TargetRows, sequence: Sequence, decide: Callable[[Candidates, int], int]
) -> Verdict:
    """Decide row after row from the target's distributions.

    Args:
        draft: The draft.
        rows: See ``AcceptRule``.
        sequence: See ``AcceptRule``.
        decide: Returns the token of row i; it is given the target's distribution, in which each token has a
            positive probability, and i.

    Raises:
        UnsupportedError: The sampler only draws.
    """
    sampler = _require_distribution(sequence.sampler)

    def choose(i: int) -> int:
        token = decide(supported(Candidates(*sampler.distribution(rows, i))), i)
        sampler.accept(token)
        return token

    return follow(draft.tokens, sequence.ending, choose)


def supported(candidates: Candidates) -> Candidates:
    """Return a distribution without the tokens of probability 0, so that rounding can never choose one of them."""
    positive = candidates.probs > 0.0
    if np.all(positive):
        return candidates
    return Candidates(candidates.tokens[positive], candidates.probs[positive])


def _require_distribution(sampler: Sampler) -> DistributionSampler:
    if not hasattr(sampler, "distribution"):
        msg = f'The sampler {type(sampler).__name__} has no distribution(); with it, use the rule "match".'
        raise UnsupportedError(msg)
    return cast("DistributionSampler", sampler)
