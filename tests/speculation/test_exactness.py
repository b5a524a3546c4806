"""Rules give exactly the target's distribution: every path of small vocabularies, without sampling noise.

One round is enough: when what it emits, continued by the target, has the target's distribution, so have all rounds
together. What random numbers do to each other over several rounds is in the second part, where whole generations are
integrated.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyspec.llama.memory import RollbackKind
from pyspec.speculation import (
    AcceptRule,
    Candidates,
    Draft,
    DraftRequest,
    Ending,
    MatchRule,
    Needs,
    Outcome,
    Proposal,
    RoundBatch,
    Sequence,
    Verdict,
    run_round,
)
from pyspec.speculation.accept import supported
from pyspec.speculation.coupled import CoupledRule, coupled_token
from pyspec.speculation.noise import Stream, gumbel, uniform
from pyspec.speculation.rejection import RejectionRule, acceptance, residual
from tests.chances import DistributionTable, Given, Weighted, chi_square, integrated
from tests.fakes import FakeTarget, HashLogits, InjectedError

Tokens = tuple[int, ...]
Numbers = npt.NDArray[np.float64]
Distributions = Callable[[Tokens], Weighted]
"""Tokens so far to the distribution of the next one."""
Chances = dict[Tokens, Fraction]

END = 0  # in the cases with an end token
FIRST = 4  # position of the first token that is decided
N_SHARES = 12  # probabilities are multiples of 1 / 12, or that with some tokens left out


def distributions(seed: int, n_vocab: int, *, holes: bool = False) -> Distributions:
    """Return random distributions; with ``holes`` some tokens have no probability."""

    @functools.cache
    def of(tokens: Tokens) -> Weighted:
        rng = np.random.default_rng([*tokens, 1 + seed])
        cuts = [0, *sorted(rng.permutation(N_SHARES - 1)[: n_vocab - 1] + 1), N_SHARES]
        weights = np.diff(cuts)
        if holes:
            weights[rng.permutation(n_vocab)[: rng.integers(n_vocab)]] = 0
        return Weighted(tuple(weights.tolist()), explicit=bool(rng.random() < 0.5))

    return of


def quarters(seed: int) -> Distributions:
    """Return random distributions over two tokens, one of which may be three times as likely."""
    choices = [Weighted(weights) for weights in ((1, 3), (3, 1), (1, 1))]
    return functools.cache(lambda tokens: choices[np.random.default_rng([*tokens, seed]).integers(3)])


def continued(given: Chances, target: Distributions, n_vocab: int, n: int, *, ends: bool) -> Chances:
    """Return the distribution of ``n`` tokens, fewer when an end token comes, from those given to begin with."""
    total: dict[Tokens, Fraction] = defaultdict(Fraction)
    for tokens, weight in given.items():
        if len(tokens) == n or (ends and END in tokens):
            assert END not in tokens[:-1] or not ends, "something follows an end token"
            total[tokens] += weight
            continue
        of = target(tokens)
        more = {(*tokens, token): weight * of[token] for token in range(n_vocab) if of[token]}
        for each, share in continued(more, target, n_vocab, n, ends=ends).items():
            total[each] += share
    return dict(total)


def decided(rule: Callable[[Given], AcceptRule], target: Distributions, draft: Draft, *, ends: bool) -> Chances:
    """Return the distribution of what a rule emits for one draft."""

    def play(numbers: Given) -> Tokens:
        sampler = DistributionTable(lambda tokens: target(tokens).candidates, numbers, first=FIRST)
        ending = Ending(eog={END} if ends else (), max_tokens=100)
        sequence = Sequence(0, [0] * (FIRST - 1), 0, sampler, ending, temperature=1.0, seed=7)
        verdict = rule(numbers).accept(draft, None, sequence)  # type: ignore[arg-type]
        assert tuple(sampler.seen) == verdict.emitted
        assert ending.n_tokens == len(verdict.emitted)
        n_accepted = len(verdict.emitted) - 1
        assert verdict.emitted[:n_accepted] == draft.tokens[:n_accepted]
        return verdict.emitted

    return integrated(play)


CASES = ("full", "truncated", "masked", "masked and truncated", "other lengths", "end token", "deterministic")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n_drafted", [0, 1, 2])
@pytest.mark.parametrize("n_vocab", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", [RejectionRule, lambda _numbers: MatchRule()], ids=["rejection", "match"])
def test_the_output_has_the_targets_distribution(
    n_vocab: int, n_drafted: int, case: str, rule: Callable[[Given], AcceptRule]
) -> None:
    for seed in (1, 2):
        target = distributions(seed, n_vocab, holes="masked" in case)
        drafter = distributions(100 + seed, n_vocab, holes="truncated" in case)
        ends = case == "end token"
        n = n_drafted + 1
        expected = continued({(): Fraction(1)}, target, n_vocab, n, ends=ends)
        total: dict[Tokens, Fraction] = defaultdict(Fraction)
        for path in itertools.product(range(n_vocab), repeat=n_drafted):
            # Whether the second token is drafted may depend on the first one.
            length = 1 if case == "other lengths" and n_drafted == 2 and path[0] % 2 else n_drafted
            of = [drafter(path[:i]) for i in range(length)]
            weight = Fraction(1)
            for i in range(n_drafted):
                weight *= drafter(path[:i])[path[i]]
            draft = Draft(path[:length], [each.candidates for each in of])
            if case == "deterministic":
                emitted = decided(rule, target, Draft(path), ends=ends)
                assert continued(emitted, target, n_vocab, n, ends=ends) == expected
            elif weight:
                emitted = decided(rule, target, draft, ends=ends)
                for tokens, share in continued(emitted, target, n_vocab, n, ends=ends).items():
                    total[tokens] += weight * share
        assert case == "deterministic" or total == expected


@pytest.mark.parametrize("n_vocab", [1, 2, 3, 4])
def test_a_drawn_token_stands_with_the_overlap_of_the_distributions(n_vocab: int) -> None:
    for seed in range(5):
        target, drafter = distributions(seed, n_vocab, holes=True)(()), distributions(100, n_vocab, holes=True)(())
        overlap = sum(min(target[token], drafter[token]) for token in range(n_vocab))
        stands = Fraction(0)
        for token in range(n_vocab):
            if drafter[token]:
                draft = Draft((token,), [drafter.candidates])
                emitted = decided(RejectionRule, lambda _, only=target: only, draft, ends=False)  # type: ignore[misc]
                stands += drafter[token] * sum(share for each, share in emitted.items() if each[0] == token)
        assert stands == overlap


def test_acceptance_and_residual_are_those_of_the_papers() -> None:
    for seed, n_vocab in itertools.product(range(20), (1, 2, 3, 4)):
        target, drafter = distributions(seed, n_vocab, holes=True)(()), distributions(100, n_vocab, holes=True)(())
        tokens = range(n_vocab)
        rejected = Fraction(0)
        for token in tokens:
            if drafter[token]:
                stands = min(Fraction(1), target[token] / drafter[token])
                rejected += drafter[token] * (1 - stands)
                assert acceptance(target.candidates, drafter.candidates, token) == pytest.approx(stands, abs=1e-15)
        if rejected:
            left = residual(target.candidates, drafter.candidates)
            shares = dict(zip(left.tokens.tolist(), left.probs.tolist(), strict=True))
            for token in tokens:
                above = max(target[token] - drafter[token], Fraction(0)) / rejected
                assert shares.get(token, 0.0) == pytest.approx(above, abs=1e-15)
                assert (token in shares) == (above > 0)


# Whole generations


class Drawing:
    """A proposer that draws from given distributions."""

    n_max = 2
    needs = Needs.NOTHING

    def __init__(self, of: Distributions, numbers: Given) -> None:
        self._of = of
        self._numbers = numbers

    def rest(self, _seq_ids: SequenceOf[int], _n_entries: int) -> None:
        """Never."""

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        (request,) = requests
        tokens: list[int] = []
        probs: list[Candidates] = []
        while len(tokens) < min(request.budget, self.n_max):
            number = self._numbers(0, request.position + 1 + len(tokens), Stream.DRAFT)
            probs.append(self._of((*request.tokens, request.pending, *tokens)).candidates)
            tokens.append(probs[-1].draw(number))
            self._numbers.notes.append(tokens[-1])
        return [Proposal(Draft(tuple(tokens), probs), "drawing")]

    def observe(self, batch: object) -> None:
        raise AssertionError(batch)

    def accept(self, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        pass

    def discard(self, seq_id: int) -> None:
        pass

    def played(self, decodes: object, outcomes: object) -> None:
        pass


class Faltering:
    """A rule that fails the first time it is asked at a position, after it has decided."""

    name, valid = "faltering", True

    def __init__(self, rule: AcceptRule) -> None:
        self._rule = rule
        self._failed_at = -1

    def accept(self, draft: Draft, rows: object, sequence: Sequence) -> Verdict:
        verdict = self._rule.accept(draft, rows, sequence)  # type: ignore[arg-type]
        if self._failed_at != sequence.n_committed:
            self._failed_at = sequence.n_committed
            raise InjectedError
        return verdict


def play_rounds(
    sequence: Sequence, proposer: Drawing, target: FakeTarget, rule: AcceptRule, numbers: Given
) -> list[Outcome]:
    """Play a sequence to its end; a round that fails is played again."""
    outcomes = []
    while sequence.ending.remaining:
        with contextlib.suppress(InjectedError):
            outcomes += run_round(RoundBatch([sequence]), proposer, target, rule)
        numbers.notes.append((*sequence.history, sequence.pending))
    return outcomes


@pytest.mark.parametrize("falters", [False, True], ids=["once", "undone and played again"])
@pytest.mark.parametrize("kind", [RollbackKind.TRIM, RollbackKind.WHOLE], ids=["trim", "replay"])
def test_a_generation_has_the_targets_distribution(kind: RollbackKind, falters: bool) -> None:  # noqa: FBT001
    n_vocab, n_tokens = 2, 3
    prompt = (1, 0)
    target, drafter = quarters(1), quarters(2)
    n_replays = 0

    def play(numbers: Given) -> Tokens:
        nonlocal n_replays
        fake = FakeTarget(HashLogits(1, n_vocab), n_vocab, kind=kind)
        sampler = DistributionTable(lambda tokens: target(tokens).candidates, numbers)
        sequence = Sequence(0, list(prompt[:-1]), prompt[-1], sampler, Ending(max_tokens=n_tokens), lag=1)
        rule = Faltering(RejectionRule(numbers)) if falters else RejectionRule(numbers)
        proposer = Drawing(lambda tokens: drafter(tokens[len(prompt) :]), numbers)
        outcomes = play_rounds(sequence, proposer, fake, rule, numbers)
        n_replays += sum(outcome.rollback == "replay" for outcome in outcomes)
        return tuple(sampler.seen)

    emitted = integrated(play, parts={Stream.DRAFT: 4})  # a position may be drafted again after other tokens
    assert emitted == continued({(): Fraction(1)}, target, n_vocab, n_tokens, ends=False)
    assert (n_replays > 0) == (kind is RollbackKind.WHOLE)


class Constrained(DistributionTable):
    """A sampler under a grammar that allows what has a probability."""

    def legal_prefix(self, tokens: SequenceOf[int]) -> int:
        prefixes = ((*self.seen, *tokens[:i]) for i in range(len(tokens)))
        legal = [token in supported(self._of(prefix)).tokens for prefix, token in zip(prefixes, tokens, strict=True)]
        return [*legal, False].index(False)

    def forced(self) -> list[int]:
        return []


def test_cutting_drafts_to_what_is_legal_changes_no_distribution() -> None:
    """Token 1 is illegal at first and behind itself, but drafted there half of the time."""
    n_tokens = 3
    drafter = Weighted((1, 2, 1))
    n_cut = 0

    def target(tokens: Tokens) -> Weighted:
        return Weighted((2, 1, 1)) if tokens and tokens[-1] != 1 else Weighted((2, 0, 1))

    def play(numbers: Given) -> Tokens:
        nonlocal n_cut
        sampler = Constrained(lambda tokens: target(tokens).candidates, numbers)
        sequence = Sequence(0, [], 1, sampler, Ending(max_tokens=n_tokens))
        fake, proposer = FakeTarget(HashLogits(1, 3), 3), Drawing(lambda _: drafter, numbers)
        outcomes = play_rounds(sequence, proposer, fake, RejectionRule(numbers), numbers)
        n_cut += len(outcomes[0].proposal.draft.tokens) == 1
        return tuple(sampler.seen)

    emitted = integrated(play, parts={Stream.DRAFT: 4})
    assert emitted == continued({(): Fraction(1)}, target, 3, n_tokens, ends=False)
    assert n_cut > 0


# Coupled


def given_noise(noise: Numbers, _seed: int, _position: int, tokens: npt.NDArray[np.int32]) -> Numbers:
    of_tokens: Numbers = noise[tokens]
    return of_tokens


@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (3, 1), (5, 1)])
def test_coupled_draws_between_two_tokens_are_exact(weights: tuple[int, int]) -> None:
    """With u for token 1, token 0 wins above u ** (w0 / w1): a polynomial, which Gauss-Legendre integrates exactly."""
    target = Weighted(weights)
    nodes, gauss = np.polynomial.legendre.leggauss(4)
    total = 0.0
    for node, weight in zip((nodes + 1) / 2, gauss / 2, strict=True):
        low, high = 0.0, 1.0
        while low < (middle := (low + high) / 2) < high:
            noise = -np.log(-np.log([middle, node]))
            token = coupled_token(target.candidates, 0, 0, functools.partial(given_noise, noise))
            low, high = (low, middle) if token == 0 else (middle, high)
        total += weight * (1.0 - high)
    assert total == pytest.approx(float(target[0]), abs=1e-12)


def test_coupled_output_depends_on_seed_position_and_row_only() -> None:
    for seed, n_vocab in itertools.product(range(10), (2, 3, 4)):
        target = distributions(seed, n_vocab, holes=True)

        def says(draft: Draft, said: Tokens, *, of: Distributions = target, seed: int = seed) -> Tokens:
            sampler = DistributionTable(lambda tokens: of(tokens).candidates, uniform)
            sampler.seen[:] = said
            sequence = Sequence(0, [0] * len(said), 0, sampler, Ending(max_tokens=100), seed=seed)
            return CoupledRule().accept(draft, None, sequence).emitted  # type: ignore[arg-type]

        alone: Tokens = ()
        for _ in range(6):
            alone += says(Draft(), alone)
        for n_said, n_drafted in itertools.product(range(4), range(3)):
            for path in itertools.product(range(n_vocab), repeat=n_drafted):
                for probs in (None, [distributions(5, n_vocab)(path).candidates] * n_drafted):
                    emitted = says(Draft(path, probs), alone[:n_said])
                    n_right = next((i for i in range(n_drafted) if path[i] != alone[n_said + i]), n_drafted)
                    assert emitted == alone[n_said : n_said + n_right + 1]


# At the size of a real vocabulary

N_VOCAB = 49_152


def large_distributions() -> tuple[Candidates, Candidates]:
    """Return a target over the whole vocabulary, and the ten best of a draft model that resembles it."""
    rng = np.random.default_rng(5)
    logits = -1.3 * np.log(np.arange(1.0, N_VOCAB + 1)) + rng.normal(0.0, 0.3, N_VOCAB)
    order = rng.permutation(N_VOCAB).astype(np.int32)
    target = Candidates(order, np.exp(logits) / np.exp(logits).sum())
    other = logits + rng.normal(0.0, 0.7, N_VOCAB)
    best = np.argsort(-other)[:10]
    return target, Candidates(order[best], np.exp(other[best]) / np.exp(other[best]).sum())


def surprise(tokens: list[int], target: Candidates) -> float:
    """Return how far counted tokens are from a distribution; see ``chi_square``."""
    n_alone, n_groups = 40, 20
    rank = np.empty(N_VOCAB, np.int64)
    best_first = np.argsort(-target.probs, kind="stable")
    rank[target.tokens[best_first]] = np.arange(N_VOCAB)
    bins = np.where(rank < n_alone, rank, n_alone + rank % n_groups)  # the best alone, the others in groups
    expected = np.bincount(bins[target.tokens], target.probs).astype(np.float64) * len(tokens)
    return chi_square(np.bincount(bins[tokens], minlength=len(expected)), expected)


@pytest.mark.parametrize("truncated", [True, False])
def test_rejection_with_a_large_vocabulary(truncated: bool) -> None:  # noqa: FBT001
    target, drafter = large_distributions()
    if not truncated:
        flatter = np.sqrt(target.probs[::-1])
        drafter = Candidates(target.tokens[::-1], flatter / flatter.sum())
    emitted = []
    rows: Any = None
    for position in range(1, 1501):
        history: Any = range(position - 1)
        sampler = DistributionTable(lambda _: target, uniform)
        sequence = Sequence(0, history, 0, sampler, Ending(max_tokens=9), seed=9)
        draft = Draft((drafter.draw(uniform(9, position, Stream.DRAFT)),), [drafter])
        emitted.append(RejectionRule().accept(draft, rows, sequence).emitted[0])
    assert abs(surprise(emitted, target)) < 3.0


def test_coupled_with_a_large_vocabulary() -> None:
    target, _drafter = large_distributions()
    emitted = [coupled_token(target, 9, position, gumbel) for position in range(1000)]
    assert abs(surprise(emitted, target)) < 3.0
