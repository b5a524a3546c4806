"""Masks: what is not allowed does not exist."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pyspec import GreedySampler, SamplerChain, SamplingConfig
from pyspec.errors import ConfigError, DecodeError
from pyspec.llama.mask import allows, checked_mask
from tests import sampling
from tests.llama.conftest import Place
from tests.sampling import N, fill, words

NONE = words(np.zeros(N, np.bool_))
CHAINS: dict[str, dict[str, Any]] = {
    "greedy chain": {"logit_bias": {0: 1.0}},
    "drawing": {"temperature": 1.0},
    "open": {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "sigma": {"temperature": 1.0, "top_n_sigma": 1.0},
    "mirostat": {"temperature": 1.0, "mirostat": 2},
}


def only(*tokens: int) -> Any:
    allowed = np.zeros(N, np.bool_)
    allowed[list(tokens)] = True
    return words(allowed)


@pytest.mark.parametrize("chain", CHAINS)
def test_only_allowed_tokens_come_out(place: Place, chain: str) -> None:
    rows, row = place
    sampler = SamplerChain(SamplingConfig(seed=1, **CHAINS[chain]), N)
    for i in range(60):
        fill(row, i)
        allowed = np.random.default_rng(i).choice(N, 3, replace=False)
        row[allowed] -= 20.0  # without the mask they had no chance
        assert sampler.sample(rows, 0, only(*allowed)) in allowed
        assert sampler.sample(rows, 0) not in allowed


def test_what_is_left_is_normalised_before_the_filters(place: Place) -> None:
    rows, row = place
    fill(row, 1)
    allowed = np.arange(N) % 5 == 0
    sampler = SamplerChain(SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0), N)
    tokens, probs = sampler.distribution(rows, 0, words(allowed))
    assert tokens.tolist() == np.flatnonzero(allowed).tolist()
    np.testing.assert_allclose(probs, sampling.softmax(row[allowed]), rtol=1e-12)
    top = SamplerChain(SamplingConfig(temperature=1.0, top_k=7), N).distribution(rows, 0, words(allowed))[0]
    assert set(top.tolist()) <= set(np.flatnonzero(allowed)[np.argsort(-row[allowed])[:7]].tolist())


def test_a_mask_of_everything_changes_nothing(place: Place) -> None:
    rows, row = place
    fill(row, 2)
    every = words(np.ones(N, np.bool_))
    for options in CHAINS.values():
        one, other = (SamplerChain(SamplingConfig(**options, seed=3), N) for _ in range(2))
        assert [one.sample(rows, 0, every) for _ in range(20)] == [other.sample(rows, 0) for _ in range(20)]


def test_a_greedy_sampler_takes_the_best_that_is_allowed(place: Place) -> None:
    rows, _ = place
    order = np.lexsort((np.arange(N), -rows.logits(1)))
    sampler = GreedySampler()
    for n_banned in (0, 1, 2, 100, N - 1):
        allowed = np.ones(N, np.bool_)
        allowed[order[:n_banned]] = False
        assert sampler.sample(rows, 1, words(allowed)) == order[n_banned]
        assert rows.argmax(1, words(allowed)) == order[n_banned]
        assert sampler.distribution(rows, 1, words(allowed))[0].tolist() == [order[n_banned]]
    with pytest.raises(DecodeError, match="banned"):
        sampler.sample(rows, 1, NONE)


@pytest.mark.parametrize("chain", CHAINS)
def test_nothing_allowed_is_an_error_that_spends_nothing(place: Place, chain: str) -> None:
    rows, row = place
    fill(row, 3)
    sampler, other = (SamplerChain(SamplingConfig(seed=1, **CHAINS[chain]), N) for _ in range(2))
    with pytest.raises(DecodeError, match="every token of this row is banned"):
        sampler.sample(rows, 0, NONE)
    if sampler.exact_per_row:
        with pytest.raises(DecodeError, match="every token of this row is banned"):
            sampler.distribution(rows, 0, NONE)
    assert [sampler.sample(rows, 0) for _ in range(20)] == [other.sample(rows, 0) for _ in range(20)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_that_bans_what_is_left_is_an_error(place: Place, temperature: float) -> None:
    rows, row = place
    fill(row, 3)
    all_but_5 = {token: -math.inf for token in range(N) if token != 5}
    sampler = SamplerChain(SamplingConfig(temperature=temperature, logit_bias=all_but_5), N)
    assert sampler.sample(rows, 0) == 5
    assert sampler.sample(rows, 0, only(5, 6)) == 5
    with pytest.raises(DecodeError, match="banned"):
        sampler.sample(rows, 0, only(6, 7))
    everything = SamplerChain(SamplingConfig(temperature=temperature, logit_bias={**all_but_5, 5: -math.inf}), N)
    with pytest.raises(DecodeError, match="logit_bias"):
        everything.sample(rows, 0)


def test_a_penalty_does_not_ban_the_only_one_allowed(place: Place) -> None:
    rows, row = place
    fill(row, 3)
    options = {"repeat_penalty": 1e6, "presence_penalty": 1e6, "dry_multiplier": 1e6, "dry_base": 1e6}
    sampler = SamplerChain(SamplingConfig(temperature=1.0, dry_sequence_breakers=(), **options), N)  # type: ignore[arg-type]
    for _ in range(60):
        assert sampler.sample(rows, 0, only(9)) == 9


@pytest.mark.parametrize(
    "mask",
    [
        5,
        "mask",
        [0xFFFFFFFF] * 12,
        np.zeros(11, np.uint32),
        np.zeros(13, np.uint32),
        np.zeros((1, 12), np.uint32),
        np.zeros(12, np.uint64),
        np.zeros(12, np.float32),
        np.zeros(12, ">u4"),
        np.zeros(N, np.bool_),
    ],
)
def test_other_masks_are_refused(place: Place, mask: Any) -> None:
    rows, _ = place
    with pytest.raises(ConfigError, match=r"uint32 \[12\]"):
        SamplerChain(SamplingConfig(temperature=1.0), N).sample(rows, 0, mask)
    with pytest.raises(ConfigError, match=r"uint32 \[12\]"):
        GreedySampler().sample(rows, 1, mask)


def test_masks_in_other_layouts_are_read_right(place: Place) -> None:
    rows, row = place
    fill(row, 4)
    sampler = SamplerChain(SamplingConfig(temperature=1.0), N)
    signed = only(31, 63).view(np.int32)
    strided = np.repeat(only(40), 2)[::2]
    assert sampler.sample(rows, 0, signed) in (31, 63)
    assert sampler.sample(rows, 0, strided) == 40


def test_bits_behind_the_vocabulary_do_not_count() -> None:
    mask = checked_mask(np.array([0, 0xFFFFFFFF], np.uint32), 33)
    assert [allows(mask, token) for token in (0, 31, 32)] == [False, False, True]
    with pytest.raises(ConfigError, match=r"uint32 \[1\].* 32 tokens"):
        checked_mask(mask, 32)
