"""Rules over whole generations on all kinds of memory, and their own small cases."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.drafters.choosing import Sampling
from pyspec.errors import ConfigError, DrafterError, UnsupportedError
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import AcceptRule, Candidates, Draft, Ending, Finish, Sequence
from pyspec.speculation.coupled import CoupledRule
from pyspec.speculation.noise import Stream, gumbel, uniform
from pyspec.speculation.rejection import RejectionRule, acceptance, residual
from pyspec.speculation.rules import RULES, make_rule
from pyspec.speculation.synthetic import SyntheticRule, rates_of_length
from tests.chances import DistributionTable
from tests.fake_sampling import distribution
from tests.fakes import Fuse, HashLogits, InjectedError
from tests.playing import DraftModelSpec, Machine, RuleSpec, Table
from tests.reference import Request, plain_decode
from tests.strategies import Setting, chains, request_groups, requests, seeds, table_settings

Tokens = tuple[int, ...]


def shares(request: Request, tokens: Tokens) -> dict[int, float]:
    """Return the probability of each token that can follow these."""
    row, greedy = request.logits(tokens), request.seed is None
    found = distribution(row, list(tokens), greedy=greedy, penalty=request.penalty, banned=request.banned)
    return {token: prob for token, prob in zip(found.tokens.tolist(), found.probs.tolist(), strict=True) if prob > 0.0}


def drawn(request: Request, tokens: Tokens) -> int:
    """The token on which the position's number falls."""
    number = uniform(request.seed or 0, len(tokens), Stream.CHOICE)
    last = -1
    for token, prob in shares(request, tokens).items():
        last = token
        number -= prob
        if number < 0.0:
            break
    return last


def with_most_noise(request: Request, tokens: Tokens) -> int:
    """The token with the largest log probability + noise."""

    def score(each: tuple[int, float]) -> float:
        return float(np.log(each[1]) + gumbel(request.seed or 0, len(tokens), np.array([each[0]], np.int32))[0])

    return max(shares(request, tokens).items(), key=score)[0]


def likely(request: Request, tokens: Tokens) -> int:
    """A guess."""
    return max(shares(request, tokens).items(), key=lambda each: each[1])[0]


REJECTION = RuleSpec(RejectionRule(), drawn)
DRAWN = RuleSpec(RejectionRule(), drawn, free=True)  # with drafts that were drawn
COUPLED = RuleSpec(CoupledRule(), with_most_noise)
SYNTHETIC = RuleSpec(SyntheticRule(rates_of_length(4.0, 8)), likely, free=True)
ALL = {"rejection": REJECTION, "rejection of drawn drafts": DRAWN, "coupled": COUPLED, "synthetic": SYNTHETIC}


@st.composite
def settings_for(draw: st.DrawFn, rule: RuleSpec) -> Setting:
    """As ``table_settings``, with draft models that draw unless that would change what is expected."""
    setting = draw(table_settings())
    drawing: list[Sampling] = ["probabilistic", "coupled"]
    sampling: Sampling = "greedy" if rule is REJECTION else draw(st.sampled_from(drawing))
    return replace(
        setting,
        drafters=tuple(
            replace(spec, sampling=sampling) if isinstance(spec, DraftModelSpec) else spec for spec in setting.drafters
        ),
    )


def table_of(setting: Setting, rule: RuleSpec, fuse: Fuse | None = None) -> Table:
    return Table(
        setting.requests, setting.drafters, machine=setting.machine, seq_ids=setting.seq_ids, fuse=fuse, rule=rule
    )


# Over random targets, requests, drafters, slots, limits and kinds of memory


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_everything_ends_at_the_committed_length_and_where_it_should(name: str, data: st.DataObject) -> None:
    """And, unless drafts may change it, the output is what the rule's definition says, whoever drafts."""
    rule = ALL[name]
    table = table_of(data.draw(settings_for(rule)), rule)
    table.begin()
    table.play()  # which checks after each round
    table.check_end()
    for seat in table.seats:
        n_rows = 0
        for outcome in seat.outcomes:
            n_accepted = len(outcome.emitted) - 1
            assert outcome.n_accepted == n_accepted <= len(outcome.proposal.draft.tokens)
            assert outcome.emitted[:n_accepted] == outcome.proposal.draft.tokens[:n_accepted]
            n_rows += len(outcome.emitted)
        assert n_rows == seat.n_emitted
        assert not rule.rule.valid or seat.sampler.n_calls == n_rows  # a row is looked at once, when it decides


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_round_that_raises_is_undone_and_decides_the_same_again(name: str, data: st.DataObject) -> None:
    rule = ALL[name]
    setting = data.draw(settings_for(rule))
    passes = table_of(setting, rule)
    passes.begin()
    passes.play()
    points = sorted(passes.fuse.counts.items())
    point, count = data.draw(st.sampled_from(points)) if points else ("decode", 1)
    table = table_of(setting, rule, Fuse(point, data.draw(st.integers(0, count - 1))))
    table.begin()
    with contextlib.suppress(InjectedError):
        table.play()
    table.check()
    table.play()
    for seat, other in zip(table.seats, passes.seats, strict=True):
        assert seat.emitted == seat.plain.tokens
        assert rule.free or seat.emitted == other.emitted


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_coupled_neighbours_and_slots_change_nothing(data: st.DataObject) -> None:
    group = data.draw(request_groups())
    specs = data.draw(chains(group[0].n_vocab, group[0].n_ctx))
    together = Table(group, specs, machine=Machine(n_seq_max=4), rule=COUPLED)
    together.begin()
    together.play()
    for i, request in enumerate(group):
        alone = Table([request], (), machine=Machine(n_seq_max=4), seq_ids=[3 - i], rule=COUPLED)
        alone.begin()
        alone.play()
        assert alone.seats[0].emitted == together.seats[i].emitted


@pytest.mark.parametrize("rule", [DRAWN, COUPLED], ids=["rejection", "coupled"])
@settings(max_examples=40, deadline=None)
@given(request=requests(seeded=False), data=st.data())
def test_without_temperature_every_rule_is_match(rule: RuleSpec, request: Request, data: st.DataObject) -> None:
    specs = data.draw(chains(request.n_vocab, request.n_ctx))
    table = Table([request], specs, rule=RuleSpec(rule.rule, likely))
    table.begin()
    table.play()
    assert table.seats[0].emitted == plain_decode(request).tokens


@settings(max_examples=60, deadline=None)
@given(request=requests(seeded=True), n_max=st.integers(1, 4), model_seed=seeds)
def test_every_random_number_is_used_for_one_decision(request: Request, n_max: int, model_seed: int) -> None:
    """Also when accepted tokens are decoded again after a restore: a replay decides nothing."""
    used: Counter[tuple[int, int]] = Counter()
    decided: list[int] = []

    def numbers(seed: int, position: int, stream: int) -> float:
        assert seed == request.seed
        used[position, stream] += 1
        if stream != Stream.RESIDUAL:
            decided.append(position)
        return uniform(seed, position, stream)

    drafter = DraftModelSpec(HashLogits(model_seed, request.n_vocab, order=1), n_max=n_max, sampling="probabilistic")
    table = Table(
        [request],
        [drafter],
        machine=Machine(kind=RollbackKind.WHOLE),
        rule=RuleSpec(RejectionRule(numbers), drawn, free=True),
    )
    table.begin()
    table.play()
    seat = table.seats[0]
    n_prompt = len(request.prompt)
    assert set(used.values()) <= {1}
    assert decided == list(range(n_prompt, n_prompt + seat.n_emitted))


def test_a_draft_model_that_is_the_target_is_accepted_whole_when_coupled() -> None:
    request = Request(HashLogits(8, 10), 10, (1,), max_tokens=60, n_ctx=64, seed=3)
    accepted = {}
    for sampling in ("greedy", "probabilistic", "coupled"):
        table = Table([request], [DraftModelSpec(None, n_max=4, sampling=sampling)], rule=COUPLED)
        table.begin()
        table.play()
        table.check_end()
        accepted[sampling] = table.chain.stats["draft-simple"].acceptance
    assert accepted["coupled"] == 1.0
    assert max(accepted["greedy"], accepted["probabilistic"]) < 0.8


# Small cases


def sequence(probs: list[float], *, eog: frozenset[int] = frozenset(), seed: int = 1, n_history: int = 0) -> Sequence:
    """Return a sequence whose target always has the same distribution."""
    of = Candidates(np.arange(len(probs), dtype=np.int32), np.array(probs))
    sampler = DistributionTable(lambda _: of, uniform, first=n_history + 1, seed=seed)
    return Sequence(0, [0] * n_history, 0, sampler, Ending(eog=eog, max_tokens=100), seed=seed)


def decide(rule: AcceptRule, draft: Draft, over: Sequence) -> Tokens:
    rows: Any = None
    return rule.accept(draft, rows, over).emitted


def candidates(tokens: list[int], probs: list[float]) -> Candidates:
    return Candidates(np.array(tokens, np.int32), np.array(probs))


def test_a_token_that_the_target_forbids_never_stands() -> None:
    always = RejectionRule(lambda *_: 0.0)
    drafted = candidates([2], [1.0])
    over = sequence([0.5, 0.5, 0.0])
    assert decide(always, Draft((2,), [drafted]), over) == (0,)
    assert acceptance(candidates([0, 1], [0.5, 0.5]), drafted, 2) == 0.0
    for position in range(200):
        assert decide(RejectionRule(), Draft((2,), [drafted]), sequence([0.5, 0.5, 0.0], seed=position))[0] != 2
        assert decide(CoupledRule(), Draft((2,)), sequence([0.5, 0.5, 0.0], seed=position))[0] != 2


def test_rounding_never_chooses_what_has_no_probability() -> None:
    nearly_one = RejectionRule(lambda *_: 1.0 - 2.0**-53)
    probs = [0.1] * 10  # whose sum is less than 1
    assert sum(probs) < 1.0
    assert decide(nearly_one, Draft(), sequence([*probs, 0.0])) == (9,)


def test_equal_distributions_survive_rounding() -> None:
    same = candidates([0, 1], [0.3, 0.7])
    less = candidates([0, 1], [np.nextafter(0.3, 0.0), 0.7])
    assert residual(less, same) is less
    left = residual(candidates([5, 3, 9], [0.5, 0.3, 0.2]), candidates([3, 9, 70], [0.3, 0.1, 0.6]))
    assert dict(zip(left.tokens.tolist(), left.probs.tolist(), strict=True)) == pytest.approx({5: 5 / 6, 9: 1 / 6})


@pytest.mark.parametrize("rule", [RejectionRule(), CoupledRule()], ids=["rejection", "coupled"])
def test_nothing_behind_an_end_token_is_decided(rule: AcceptRule) -> None:
    over = sequence([0.0, 1.0, 0.0], eog=frozenset({1}))
    rows: Any = None
    verdict = rule.accept(Draft((1, 1), [candidates([1], [1.0])] * 2), rows, over)
    assert (verdict.emitted, verdict.finish) == ((1,), Finish.EOG)
    assert over.sampler.seen == [1]  # type: ignore[attr-defined]


def test_draft_probabilities_that_cannot_be_are_errors() -> None:
    with pytest.raises(DrafterError, match="proposed the token 1, to which its own draft probabilities give 0"):
        decide(RejectionRule(), Draft((1,), [candidates([0], [1.0])]), sequence([0.5, 0.5]))
    with pytest.raises(DrafterError, match="draft of 2 tokens came with draft probabilities for 1"):
        decide(RejectionRule(), Draft((1, 0), [candidates([1], [1.0])]), sequence([0.5, 0.5]))


@pytest.mark.parametrize("rule", [RejectionRule(), CoupledRule()], ids=["rejection", "coupled"])
def test_a_sampler_that_only_draws_is_refused(rule: AcceptRule) -> None:
    class Drawer:
        def sample(self, _rows: object, _i: int) -> int:
            raise AssertionError

    over = sequence([1.0])
    over.sampler = Drawer()  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match=r'The sampler Drawer has no distribution\(\); .* rule "match"'):
        decide(rule, Draft(), over)


# Synthetic


def test_synthetic_accepts_the_draft_and_the_target_goes_on() -> None:
    over = sequence([0.0, 0.0, 1.0])
    assert decide(SyntheticRule((1.0, 1.0, 0.0)), Draft((0, 1, 0, 1)), over) == (0, 1, 2)
    assert over.sampler.seen == [0, 1, 2]  # type: ignore[attr-defined]
    assert decide(SyntheticRule((1.0, 1.0)), Draft((0, 1)), sequence([0.0, 0.0, 1.0])) == (0, 1, 2)
    assert decide(SyntheticRule((1.0,)), Draft(), sequence([0.0, 0.0, 1.0])) == (2,)


def test_synthetic_refuses_also_what_the_target_would_have_said() -> None:
    never = SyntheticRule((0.0, 0.0), lambda *_: 0.0)
    assert decide(never, Draft((2, 2)), sequence([0.0, 0.0, 1.0])) == (2,)


def test_synthetic_never_accepts_an_end_token() -> None:
    over = sequence([0.0, 0.0, 1.0], eog=frozenset({1}))
    assert decide(SyntheticRule((1.0,) * 3), Draft((0, 1, 0)), over) == (0, 2)
    assert over.ending.n_tokens == 2


def test_synthetic_rates_are_those_of_all_drafts() -> None:
    rates = (0.9, 0.45, 0.45, 0.09)
    limits = []
    for n_before in range(4):

        def numbers(_seed: int, position: int, _stream: int, *, at: int = n_before) -> float:
            return 0.0 if position < 7 + at else limit

        low, high = 0.0, 1.0
        while low < (limit := (low + high) / 2) < high:
            stands = (
                len(decide(SyntheticRule(rates, numbers), Draft((0,) * 4), sequence([0.0, 1.0], n_history=6)))
                > n_before + 1
            )
            low, high = (limit, high) if stands else (low, limit)
        limits.append(high)
    assert list(itertools.accumulate(limits, lambda a, b: a * b)) == pytest.approx(rates)


@pytest.mark.parametrize("n_max", [1, 3, 16])
def test_a_synthetic_length_is_the_sum_of_its_rates(n_max: int) -> None:
    for length in np.linspace(1.0, n_max + 1.0, 17):
        rates = rates_of_length(float(length), n_max)
        assert 1.0 + sum(rates) == pytest.approx(length, abs=1e-12)
        assert rates == pytest.approx([rates[0] ** (i + 1) for i in range(n_max)])


# By name


def test_rules_by_name() -> None:
    made = {name: make_rule(name, n_max=2, **({"length": 2.0} if name == "synthetic" else {})) for name in RULES}
    assert {name: rule.name for name, rule in made.items()} == {name: name for name in RULES}
    assert [name for name, rule in made.items() if not rule.valid] == ["synthetic"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("typical", {}, "rule must be one of match, rejection, coupled, synthetic, not 'typical'"),
        (None, {}, "rule must be one of match, rejection, coupled, synthetic, not None"),
        (["match"], {}, r"rule must be one of .*, not \['match'\]"),
        ("match", {"length": 2.0}, 'rates and length belong to the rule "synthetic", not to "match"'),
        ("rejection", {"rates": [0.5]}, 'belong to the rule "synthetic", not to "rejection"'),
        ("synthetic", {}, "needs rates or length, one of them; neither was given"),
        ("synthetic", {"rates": [0.5, 0.5, 0.5], "length": 2.0}, "needs rates or length, one of them; both were given"),
        ("synthetic", {"length": 1.0, "n_max": 0}, "no drafter is there to make them"),
        ("synthetic", {"length": 1.0, "n_max": "3"}, "n_max must be an integer, not '3'"),
        ("synthetic", {"rates": [0.5, 0.5]}, "one acceptance rate for each of the 3 draft positions, not 2 of them"),
        ("synthetic", {"rates": [0.5] * 4}, "one acceptance rate for each of the 3 draft positions, not 4 of them"),
        ("synthetic", {"rates": 0.5}, "one acceptance rate for each of the 3 draft positions, not 0.5"),
        ("synthetic", {"rates": "0.5,0.4,0.3"}, "one acceptance rate for each of the 3 draft positions, not '0.5"),
        ("synthetic", {"rates": [0.5, float("nan"), 0.1]}, r"rates\[1\] must be a number, not nan"),
        ("synthetic", {"rates": [float("inf"), 0.2, 0.1]}, r"rates\[0\] must be between 0 and 1, not inf"),
        ("synthetic", {"rates": [0.5, 0.2, -0.1]}, r"rates\[2\] must be between 0 and 1, not -0.1"),
        ("synthetic", {"rates": [0.5, 0.2, 0.3]}, r"must not increase.*rates\[2\] is 0.3, after 0.2"),
        ("synthetic", {"length": 0.9}, "length must be between 1 and 4, not 0.9"),
        ("synthetic", {"length": 4.1}, "length must be between 1 and 4, not 4.1"),
        ("synthetic", {"length": "long"}, "length must be a number, not 'long'"),
    ],
)
def test_wrong_rules_are_errors(name: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_rule(name, **{"n_max": 3, **options})


def test_drafters_of_a_table_really_draw() -> None:
    draft_model = DraftModelSpec(HashLogits(1, 6, order=1), sampling="probabilistic")
    table = Table([Request(HashLogits(2, 6), 6, (1,), max_tokens=20, seed=3)], [draft_model], rule=DRAWN)
    table.begin()
    table.play()
    assert all(outcome.proposal.draft.probs for outcome in table.seats[0].outcomes if outcome.proposal.draft.tokens)
    assert 0 < table.chain.stats["draft-simple"].n_accepted < table.chain.stats["draft-simple"].n_drafted
