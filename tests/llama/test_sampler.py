"""Samplers: reproducible, exact, undoable."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec import GreedySampler, SamplerChain, SamplingConfig
from pyspec.errors import ConfigError, LifetimeError, TokenError
from pyspec.llama import make_sampler
from tests.helpers import PROMPT, decode
from tests.llama.conftest import Place
from tests.sampling import N, configs, fill, histories


def draws(sampler: Any, rows: pyspec.Rows, n: int = 40) -> list[int]:
    return [sampler.sample(rows, i % len(rows)) for i in range(n)]


@pytest.fixture
def rows(context: pyspec.Context) -> pyspec.Rows:
    return decode(context, PROMPT)


def test_a_seed_repeats_its_draws(rows: pyspec.Rows) -> None:
    config = SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    first = draws(SamplerChain(config, N), rows)
    assert draws(SamplerChain(config, N), rows) == first
    assert len(set(first)) > 3
    assert draws(SamplerChain(SamplingConfig(temperature=1.0, seed=8), N), rows) != first


def test_without_a_seed_a_fresh_one_is_taken_and_told(rows: pyspec.Rows) -> None:
    config = SamplingConfig(temperature=1.0)
    one, other = SamplerChain(config, N), SamplerChain(config, N)
    assert one.seed != other.seed
    again = SamplerChain(SamplingConfig(temperature=1.0, seed=one.seed), N)
    assert draws(again, rows) == draws(one, rows)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_outermost_seeds_are_seeds(rows: pyspec.Rows, seed: int) -> None:
    config = SamplingConfig(temperature=1.0, seed=seed)
    assert draws(SamplerChain(config, N), rows) == draws(SamplerChain(config, N), rows)


@settings(deadline=None)  # machines are shared
@given(configs(), histories(), st.integers(0, 2), st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_a_round_can_be_undone(
    place: Place, config: SamplingConfig, history: list[int], mirostat: int, lengths: list[int]
) -> None:
    rows, row = place
    config = dataclasses.replace(config, mirostat=mirostat)
    sampler = SamplerChain(config, N)
    plain = SamplerChain(config, N)

    def play(chain: SamplerChain, first: int, n: int) -> list[int]:
        found = []
        for i in range(first, first + n):
            fill(row, i)
            found.append(chain.sample(rows, 0))
            if i % 3 == 0:
                chain.accept(60 + i % 4)  # a token that another rule decided
        return found

    for token in history:
        sampler.accept(token)
        plain.accept(token)
    first = 0
    for n in lengths:
        saved = sampler.save()
        tokens = play(sampler, first, n)
        for _ in range(2):
            play(sampler, first + n, 3)  # further, then back
            sampler.restore(saved)
            assert play(sampler, first, n) == tokens
        assert play(plain, first, n) == tokens
        first += n


def test_only_the_state_that_was_saved_last_can_be_restored(rows: pyspec.Rows) -> None:
    sampler = SamplerChain(SamplingConfig(temperature=1.0, seed=1), N)
    former = sampler.save()
    draws(sampler, rows, 3)
    last = sampler.save()
    for wrong in (former, None, 1, True, object(), np.zeros(3)):
        with pytest.raises(ConfigError, match="last"):
            sampler.restore(wrong)
    expected = draws(sampler, rows, 5)
    sampler.restore(last)
    assert draws(sampler, rows, 5) == expected


def test_a_chain_without_state_saves_nothing(rows: pyspec.Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspec._native import samplers

    monkeypatch.setattr(samplers, "save", None)
    sampler = SamplerChain(SamplingConfig(logit_bias={5: 1.0}), N)
    saved = sampler.save()
    assert saved is None
    assert sampler.sample(rows, 0) == sampler.sample(rows, 0)
    sampler.restore(saved)
    with pytest.raises(ConfigError):
        sampler.restore(0)


def test_greedy_takes_the_lowest_of_the_best(rows: pyspec.Rows) -> None:
    for i in range(len(rows)):
        best = int(np.argmax(rows.logits(i)))
        assert GreedySampler().sample(rows, i) == best
        assert SamplerChain(SamplingConfig(logit_bias={0: -math.inf}), N).sample(rows, i) == best


def test_a_tie_is_broken_alike_in_every_chain(rows: pyspec.Rows) -> None:
    ring = [token for token in range(N) if rows.logits(0)[token] != rows.logits(0)[0]]
    only_equals = dict.fromkeys(ring, -math.inf)
    lowest = int(min(set(range(N)) - set(ring)))
    assert SamplerChain(SamplingConfig(logit_bias=only_equals), N).sample(rows, 0) == lowest


def test_the_cheapest_sampler_is_made() -> None:
    assert isinstance(make_sampler(SamplingConfig(), N), GreedySampler)
    assert isinstance(make_sampler(SamplingConfig(temperature=0.5), N), SamplerChain)
    assert isinstance(make_sampler(SamplingConfig(logit_bias={1: 1.0}), N), SamplerChain)
    assert isinstance(make_sampler(SamplingConfig(presence_penalty=1.0), N), SamplerChain)


def test_penalties_are_those_of_their_definition(rows: pyspec.Rows) -> None:
    repeat, frequency, presence, last_n = 1.7, 2.4, 1.9, 24
    config = SamplingConfig(
        repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence, repeat_last_n=last_n
    )
    sampler = SamplerChain(config, N)
    history: list[int] = []
    for i in range(40):
        expected = rows.logits(i % 8).astype(np.float32).copy()
        for token, count in Counter(history[-last_n:]).items():
            value = float(expected[token])
            value = value * repeat if value <= 0 else value / repeat
            expected[token] = value - count * frequency - presence
        token = sampler.sample(rows, i % 8)
        assert token == int(np.argmax(expected))
        history.append(token)
    assert history != [rows.argmax(i % 8) for i in range(40)], "the penalties must have mattered"


def test_accepted_tokens_are_penalised(rows: pyspec.Rows) -> None:
    best = rows.argmax(0)
    sampler = SamplerChain(SamplingConfig(presence_penalty=50.0), N)
    sampler.accept(best)
    assert sampler.sample(rows, 0) != best


def test_accepted_tokens_are_repetitions(rows: pyspec.Rows) -> None:
    best = rows.argmax(0)
    other = best - 1
    for repeated in (False, True):
        config = SamplingConfig(dry_multiplier=50.0, dry_allowed_length=1, dry_sequence_breakers=())
        sampler = SamplerChain(config, N)
        for token in (other, best, other if repeated else best + 1):
            sampler.accept(token)
        assert (sampler.sample(rows, 0) != best) == repeated


def test_a_sampler_is_for_one_size_of_vocabulary(rows: pyspec.Rows) -> None:
    sampler = SamplerChain(SamplingConfig(temperature=1.0), 100)
    for choose in (sampler.sample, sampler.distribution):
        with pytest.raises(ConfigError, match="size of vocabulary"):
            choose(rows, 0)


def test_bias_bans_and_forces(rows: pyspec.Rows) -> None:
    best = rows.argmax(0)
    ban = SamplerChain(SamplingConfig(logit_bias={best: -math.inf}), N)
    assert ban.sample(rows, 0) == int(np.argsort(-rows.logits(0), kind="stable")[1])
    force = SamplerChain(SamplingConfig(temperature=1.0, logit_bias={5: 1000.0}, seed=1), N)
    assert draws(force, rows) == [5] * 40
    hot = SamplingConfig(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias={best: -math.inf}, seed=1)
    assert best not in draws(SamplerChain(hot, N), rows, 400)


def test_filters_leave_only_what_they_should(rows: pyspec.Rows) -> None:
    order = np.argsort(-rows.logits(0), kind="stable")
    open_ended = {"temperature": 100.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}

    def seen(**options: Any) -> set[int]:
        sampler = SamplerChain(SamplingConfig(**{**open_ended, **options}), N)
        return {sampler.sample(rows, 0) for _ in range(600)}

    assert seen(top_k=3) == set(order[:3].tolist())
    probs = np.exp(rows.logits(0) - rows.logits(0).max())
    probs /= probs.sum()
    assert seen(min_p=0.5) == set(np.flatnonzero(probs >= 0.5 * probs.max()).tolist())
    n_kept = int(np.searchsorted(np.cumsum(probs[order]), 0.6)) + 1
    assert seen(top_p=0.6) == set(order[:n_kept].tolist())
    assert len(seen()) > 50


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1e6])
def test_extreme_temperatures_still_choose_a_token(rows: pyspec.Rows, temperature: float) -> None:
    sampler = SamplerChain(SamplingConfig(temperature=temperature, seed=1), N)
    found = draws(sampler, rows, 16)
    assert all(0 <= token < N for token in found)
    if temperature < 1:
        assert found[:8] == [rows.argmax(i) for i in range(8)]


@pytest.mark.parametrize("temperature", [1e-45, 1e-7, -1.0, math.nan, math.inf])
def test_temperatures_that_cannot_be_computed_are_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        SamplingConfig(temperature=temperature)


def test_stale_rows_are_refused(context: pyspec.Context) -> None:
    rows = decode(context, PROMPT)
    decode(context, [60])
    for sampler in (GreedySampler(), SamplerChain(SamplingConfig(temperature=1.0), N)):
        for choose in (sampler.sample, sampler.distribution):
            with pytest.raises(LifetimeError):
                choose(rows, 0)


def test_a_closed_sampler_is_refused(rows: pyspec.Rows) -> None:
    sampler = SamplerChain(SamplingConfig(temperature=1.0), N)
    sampler.save()
    saved = sampler.save()
    sampler.close()
    sampler.close()
    calls = (
        lambda: sampler.sample(rows, 0),
        lambda: sampler.distribution(rows, 0),
        lambda: sampler.accept(5),
        sampler.save,
        lambda: sampler.restore(saved),
    )
    for call in calls:
        with pytest.raises(pyspec.errors.ClosedError):
            call()


def test_a_distribution_stays(rows: pyspec.Rows) -> None:
    sampler = SamplerChain(SamplingConfig(temperature=1.0), N)
    tokens, probs = sampler.distribution(rows, 0)
    copies = tokens.copy(), probs.copy()
    sampler.distribution(rows, 1)
    sampler.close()
    np.testing.assert_array_equal(tokens, copies[0])
    np.testing.assert_array_equal(probs, copies[1])


@pytest.mark.parametrize("token", [-1, N, 1.0, "1", None, True])
def test_a_wrong_token_is_not_accepted(token: Any) -> None:
    with pytest.raises(TokenError):
        SamplerChain(SamplingConfig(temperature=1.0), N).accept(token)


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(TokenError, match="token 384"):
        SamplerChain(SamplingConfig(logit_bias={384: 1.0}), N)


@pytest.mark.parametrize("config", [None, 5, {"temperature": 1.0}])
def test_settings_of_another_type_are_refused(config: Any) -> None:
    for make in (SamplerChain, make_sampler):
        with pytest.raises(ConfigError):
            make(config, N)
