"""Samplers: reproducible, exact, undoable."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import GreedySampler, SamplerChain, SamplingConfig
from pyspec.errors import ConfigError, LifetimeError, TokenError
from pyspec.llama import make_sampler
from tests.helpers import PROMPT, decode

N = 384


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


@pytest.mark.parametrize(
    "settings", [{"temperature": 1.0}, {"repeat_penalty": 1.5}, {"temperature": 2.0, "presence_penalty": 1.0}]
)
def test_a_round_can_be_undone(rows: pyspec.Rows, settings: dict[str, float]) -> None:
    sampler = SamplerChain(SamplingConfig(seed=3, **settings), N)  # type: ignore[arg-type]
    draws(sampler, rows, 5)
    saved = sampler.save()
    first = draws(sampler, rows, 20)
    sampler.restore(saved)
    assert draws(sampler, rows, 20) == first
    saved = sampler.save()
    second = draws(sampler, rows, 20)
    sampler.restore(saved)
    assert draws(sampler, rows, 20) == second


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

    def seen(**settings: Any) -> set[int]:
        sampler = SamplerChain(SamplingConfig(**{**open_ended, **settings}), N)
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
        with pytest.raises(LifetimeError):
            sampler.sample(rows, 0)


def test_a_closed_sampler_is_refused(rows: pyspec.Rows) -> None:
    sampler = SamplerChain(SamplingConfig(temperature=1.0), N)
    sampler.save()
    sampler.close()
    sampler.close()
    with pytest.raises(pyspec.errors.ClosedError):
        sampler.sample(rows, 0)
    with pytest.raises(pyspec.errors.ClosedError):
        sampler.accept(5)


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
