"""Settings of the sampler: llama.cpp's defaults, and each value checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pyspec import SamplingConfig
from pyspec.errors import ConfigError

LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0, 1e6),
    "dynatemp_range": (0, 1e6),
    "dynatemp_exponent": (0, 100),
    "top_n_sigma": (-1, 1e6),
    "typical_p": (0, 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "repeat_penalty": (1e-6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
    "presence_penalty": (-1e6, 1e6),
    "dry_multiplier": (0, 1e6),
    "dry_base": (1, 1e6),
    "mirostat_ent": (0, 100),
    "mirostat_lr": (0, 100),
    "top_k": (0, 2**31 - 1),
    "repeat_last_n": (0, 2**20),
    "dry_allowed_length": (0, 2**31 - 1),
    "dry_penalty_last_n": (0, 2**20),
    "mirostat": (0, 2),
    "seed": (0, 2**32 - 1),
}
WHOLE = {"top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "seed"}


def config(**options: Any) -> SamplingConfig:
    return SamplingConfig(**options)


def test_the_defaults_are_llama_cpp_s_but_for_the_temperature() -> None:
    assert config() == config(
        temperature=0.0,
        dynatemp_range=0.0,
        dynatemp_exponent=1.0,
        top_k=40,
        top_p=0.95,
        min_p=0.05,
        typical_p=1.0,
        top_n_sigma=-1.0,
        xtc_probability=0.0,
        xtc_threshold=0.1,
        repeat_penalty=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repeat_last_n=64,
        dry_multiplier=0.0,
        dry_base=1.75,
        dry_allowed_length=2,
        dry_penalty_last_n=64,
        dry_sequence_breakers=("\n", ":", '"', "*"),
        mirostat=0,
        mirostat_lr=0.1,
        mirostat_ent=5.0,
        logit_bias={},
        seed=None,
    )


@pytest.mark.parametrize("name", LIMITS)
def test_each_number_has_its_limits(name: str) -> None:
    kind = int if name in WHOLE else float
    for limit, beyond in zip(LIMITS[name], (-1, 1), strict=True):
        kept = getattr(config(**{name: np.array([limit], np.int64 if name in WHOLE else np.float64)[0]}), name)
        assert kept == limit
        assert type(kept) is kind
        with pytest.raises(ConfigError, match=name):
            config(**{name: limit + beyond * (1 if name in WHOLE else 0.001)})
    for wrong in (math.nan, math.inf, "1", None if name != "seed" else "0", True, [1], 1j):
        with pytest.raises(ConfigError, match=name):
            config(**{name: wrong})
    if name in WHOLE:
        with pytest.raises(ConfigError, match=name):
            config(**{name: 0.5})


@pytest.mark.parametrize("wrong", ["ab", 5, None, [1], [b"a"], [""], ["a", ""], ["x" * 41], ["é" * 21], ["\ud800"]])
def test_wrong_sequence_breakers(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="dry_sequence_breakers"):
        config(dry_sequence_breakers=wrong)


def test_sequence_breakers_may_come_in_any_list() -> None:
    assert config(dry_sequence_breakers=["é" * 20, "\n"]).dry_sequence_breakers == ("é" * 20, "\n")
    assert config(dry_sequence_breakers=[]).dry_sequence_breakers == ()


@pytest.mark.parametrize("wrong", [None, [5], {5: math.nan}, {5: math.inf}, {5: 2e9}, {-1: 1.0}, {"5": 1.0}, {5: "1"}])
def test_wrong_biases(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="logit_bias"):
        config(logit_bias=wrong)


def test_what_looks_back_says_so() -> None:
    for options in ({"repeat_penalty": 1.1}, {"frequency_penalty": 0.1}, {"presence_penalty": -0.1}):
        assert config(**options).has_penalties
        assert not config(**options).has_dry
        assert not config(**options, repeat_last_n=0).has_penalties
    assert config(dry_multiplier=0.1).has_penalties
    assert config(dry_multiplier=0.1).has_dry
    assert not config(dry_multiplier=0.1, dry_penalty_last_n=0).has_penalties
    assert not config(temperature=1.0, mirostat=2, xtc_probability=0.5).has_penalties
