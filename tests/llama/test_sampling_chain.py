"""Every transform of the sampler against its definition, by the distribution that is left to draw from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec import SamplerChain, SamplingConfig
from tests import sampling
from tests.llama.conftest import Place
from tests.sampling import OPEN, N, Probs, Row, configs, fill, histories, one_of


def dense(chain: SamplerChain, rows: pyspec.Rows, mask: Any = None) -> Probs:
    """Return the chain's distribution over all tokens, [N]."""
    tokens, probs = chain.distribution(rows, 0, mask)
    assert str(tokens.dtype) == "int32"
    assert str(probs.dtype) == "float64"
    assert len(set(tokens.tolist())) == len(tokens) == len(probs)
    assert np.all(probs > 0)
    assert probs.sum() == pytest.approx(1, abs=1e-12)
    found: Probs = np.zeros(N)
    found[tokens] = probs
    return found


@settings(deadline=None, max_examples=300)  # machines are shared
@given(
    config=configs(),
    history=histories(),
    seed=st.integers(0, 2**20),
    spread=one_of(0.5, 3.0, 30.0),
    masked=st.booleans(),
)
def test_the_distribution_is_that_of_the_definitions(
    place: Place, config: SamplingConfig, history: list[int], seed: int, spread: float, *, masked: bool
) -> None:
    rows, row = place
    fill(row, seed, spread)
    allowed = np.random.default_rng(seed + 1).random(N) < 0.3 if masked else None
    chain = SamplerChain(config, N)
    for token in history:
        chain.accept(token)
    expected = sampling.distribution(row, config, history=history, allowed=allowed)
    mask = None if allowed is None else sampling.words(allowed)
    np.testing.assert_allclose(dense(chain, rows, mask), expected, rtol=1e-9, atol=1e-13)


@settings(deadline=None)  # machines are shared
@given(configs(), histories(), st.integers(0, 2**32 - 2))
def test_a_sample_is_one_number_s_draw_from_the_distribution(
    place: Place, config: SamplingConfig, history: list[int], seed: int
) -> None:
    rows, row = place
    config = dataclasses.replace(config, seed=seed)
    chain = SamplerChain(config, N)
    for token in history:
        chain.accept(token)
    for i, number in enumerate(sampling.numbers(seed, 12)):
        fill(row, i, 3.0)
        tokens, probs = chain.distribution(rows, 0)
        expected = tokens[min(int(np.searchsorted(probs.cumsum(), number, side="right")), len(tokens) - 1)]
        assert chain.sample(rows, 0) == expected
        history = [*history, int(expected)]
        np.testing.assert_allclose(
            dense(chain, rows), sampling.distribution(row, config, history=history), rtol=1e-9, atol=1e-13
        )


def support(rows: pyspec.Rows, *history: int, **options: Any) -> Probs:
    chain = SamplerChain(SamplingConfig(**{**OPEN, **options}), N)
    for token in history:
        chain.accept(token)
    return dense(chain, rows)


def test_filters_leave_fewer_and_the_best_ones(place: Place) -> None:
    rows, row = place
    fill(row, 5, 3.0)
    assert np.all(support(rows) > 0)
    for name, weak, strong in (("top_k", 50, 5), ("top_p", 0.9, 0.3), ("min_p", 0.01, 0.2), ("top_n_sigma", 2, 1)):
        many, few = support(rows, **{name: weak}), support(rows, **{name: strong})
        assert 1 < np.count_nonzero(few) < np.count_nonzero(many) < N, name
        assert row[few > 0].min() > row[few == 0].max(), name
        assert few.max() > many.max(), name


def test_typical_drops_the_likeliest_where_it_is_too_likely(place: Place) -> None:
    rows, row = place
    row[:] = 0
    row[7] = math.log(N / 4)  # a fifth of the probability, far above the usual
    left = support(rows, typical_p=0.5)
    assert left[7] == 0
    assert np.count_nonzero(left) > N / 2


def test_xtc_takes_from_all_choices_but_the_last(place: Place) -> None:
    rows, row = place
    row[:] = -40
    row[[3, 4, 5, 6]] = np.log([0.4, 0.3, 0.2, 0.1])
    half = support(rows, xtc_probability=0.5, xtc_threshold=0.15)
    np.testing.assert_allclose(half[[3, 4]], [0.2, 0.15], rtol=1e-6)
    np.testing.assert_allclose(half[[5, 6]], [0.1 + 0.5 * 2 / 3, 0.05 + 0.5 / 3], rtol=1e-6)
    assert support(rows, xtc_probability=1.0, xtc_threshold=0.15)[3] == 0
    np.testing.assert_array_equal(support(rows, xtc_probability=1.0, xtc_threshold=0.35), support(rows))
    row[[3, 4, 5, 6]] = [0.0, 0.0, -40.0, -40.0]  # the most that can be: two with a half each
    assert support(rows, xtc_probability=1.0, xtc_threshold=0.5)[3] == 0
    assert support(rows, xtc_probability=1.0, xtc_threshold=0.51)[3] == pytest.approx(0.5)


def test_xtc_is_drawn_as_often_as_asked(place: Place) -> None:
    rows, row = place
    row[:] = -40
    row[[3, 4]] = [1.0, 0.0]
    chain = SamplerChain(SamplingConfig(**{**OPEN, "temperature": 0.01, "xtc_probability": 0.3}), N)
    n_excluded = [chain.sample(rows, 0) for _ in range(4000)].count(4)
    assert abs(n_excluded / 4000 - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 4000)


def test_temperature_spreads_and_follows_the_entropy(place: Place) -> None:
    rows, row = place
    fill(row, 5, 3.0)
    peaks = [support(rows, temperature=temperature).max() for temperature in (0.3, 1.0, 3.0)]
    assert peaks == sorted(peaks, reverse=True)
    for spread, direction in ((0.1, 1), (30.0, -1)):  # nearly even: hotter; one token stands out: colder
        fill(row, 5, spread)
        moved = sampling.entropy(support(rows, dynatemp_range=0.9))
        assert (moved - sampling.entropy(support(rows))) * direction > 0
        assert sampling.entropy(support(rows, dynatemp_range=0.9, dynatemp_exponent=4.0)) < moved


def test_penalties_take_from_tokens_that_were_there(place: Place) -> None:
    rows, row = place
    fill(row, 5, 1.0)
    plain = support(rows)
    for options in ({"repeat_penalty": 1.5}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}):
        assert support(rows, 9, **options)[9] < plain[9]
    assert support(rows, 9, 9, frequency_penalty=1.0)[9] < support(rows, 9, frequency_penalty=1.0)[9]
    assert support(rows, 9, 9, presence_penalty=1.0)[9] == support(rows, 9, presence_penalty=1.0)[9]
    gone = support(rows, 9, 8, 8, presence_penalty=1.0, repeat_last_n=2)
    assert gone[9] > plain[9], "out of the window, and another token has less"


def test_temperature_0_is_one_token(place: Place) -> None:
    rows, row = place
    fill(row, 5, 3.0)
    best = int(np.argmax(row))
    greedy = pyspec.GreedySampler().distribution(rows[1:], 0)
    assert [array.tolist() for array in greedy] == [[rows.argmax(1)], [1.0]]
    tokens, probs = SamplerChain(SamplingConfig(logit_bias={best: -math.inf}, mirostat=2), N).distribution(rows, 0)
    assert (tokens.tolist(), probs.tolist()) == ([int(np.argsort(-row)[1])], [1.0])


def mirostat_draws(row: Row, config: SamplingConfig, seed: int, n: int) -> list[int]:
    """Basu et al., 2021, in numpy; rows as ``fill`` makes them."""
    bound, drawn = 2 * config.mirostat_ent, []
    for i, number in enumerate(sampling.numbers(seed, n)):
        fill(row, i, 3.0)
        probs = sampling.softmax(row, config.temperature)
        order = sampling.best_first(row)
        if config.mirostat == 2:
            n_kept = int((-np.log2(probs) <= bound).sum())
        else:
            steps = np.log((np.arange(99) + 2) / (np.arange(99) + 1))
            falls = -np.diff(np.log(probs[order[:100]]))
            exponent = (steps * falls).sum() / (steps**2).sum()
            above = exponent - 1
            n_kept = int(min(N, (above * 2**bound / (1 - float(N) ** -above)) ** (1 / exponent)))
        kept = order[: max(1, n_kept)]
        left = probs[kept] / probs[kept].sum()
        at = int(np.searchsorted(left.cumsum(), number, side="right"))
        bound -= config.mirostat_lr * (-np.log2(left[at]) - config.mirostat_ent)
        drawn.append(int(kept[at]))
    return drawn


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("options", [{}, {"mirostat_ent": 1.5, "mirostat_lr": 0.7}, {"temperature": 2.0}])
def test_mirostat_draws_by_its_definition(place: Place, version: int, options: dict[str, float]) -> None:
    rows, row = place
    config = SamplingConfig(**{"temperature": 1.0, "mirostat": version, "seed": 11, **options})  # type: ignore[arg-type]
    expected = mirostat_draws(row, config, 11, 60)
    chain = SamplerChain(config, N)
    drawn = []
    for i in range(60):
        fill(row, i, 3.0)
        drawn.append(chain.sample(rows, 0))
    assert drawn == expected
    assert len(set(drawn)) > 10


def test_mirostat_comes_in_place_of_the_filters_and_behind_the_penalties(place: Place) -> None:
    rows, row = place

    def draws(**options: Any) -> list[int]:
        chain = SamplerChain(SamplingConfig(temperature=1.0, mirostat=2, seed=5, **options), N)
        found = []
        for i in range(40):
            fill(row, i, 3.0)
            found.append(chain.sample(rows, 0))
        return found

    assert draws(top_k=1, top_p=0.1, min_p=1.0, typical_p=0.1, top_n_sigma=0.1, xtc_probability=1.0) == draws()
    assert draws(logit_bias={draws()[0]: -math.inf}) != draws()
    assert draws(presence_penalty=20.0) != draws()


def test_mirostat_cannot_be_drawn_from_by_others(place: Place) -> None:
    rows, _ = place
    chain = SamplerChain(SamplingConfig(temperature=1.0, mirostat=1), N)
    assert not chain.exact_per_row
    with pytest.raises(pyspec.errors.UnsupportedError, match="mirostat"):
        chain.distribution(rows, 0)
    for temperature, version, xtc in ((1.0, 0, 0.5), (0.0, 1, 0.0), (1.0, 0, 0.0)):
        config = SamplingConfig(temperature=temperature, mirostat=version, xtc_probability=xtc)
        assert SamplerChain(config, N).exact_per_row
    assert pyspec.GreedySampler().exact_per_row


STRANGE = {
    "not numbers": [math.nan],
    "nothing": [-math.inf],
    "some not numbers": [math.nan, 1.0, 2.0, -math.inf],
    "everything": [math.inf, 1.0],
    "huge": [3e38, -3e38, 2.9e38, 0.0],
    "tiny": [1e-45, -1e-45, 0.0],
    "equal": [5.0],
}


@pytest.mark.parametrize("kind", STRANGE)
@settings(deadline=None)  # machines are shared
@given(config=configs(), history=histories(), mirostat=st.integers(0, 2), masked=st.booleans())
def test_strange_rows_choose_what_they_can(
    place: Place, kind: str, config: SamplingConfig, history: list[int], mirostat: int, *, masked: bool
) -> None:
    rows, row = place
    row[:] = np.resize(np.array(STRANGE[kind], np.float32), N)
    chain = SamplerChain(dataclasses.replace(config, mirostat=mirostat), N)
    for token in history:
        chain.accept(token)
    allowed = np.arange(N) % 3 > 0 if masked else np.ones(N, np.bool_)
    possible = [token for token in range(N) if row[token] > -math.inf and allowed[token]]
    if not possible:
        with pytest.raises(pyspec.errors.DecodeError, match="not numbers"):
            chain.sample(rows, 0)
        return
    token = chain.sample(rows, 0, sampling.words(allowed) if masked else None)
    assert token in possible
    assert config.logit_bias.get(token) != -math.inf
    if kind == "everything" and not masked and config.xtc_threshold > 0.0:  # at 0 even what has no chance is a choice
        assert row[token] == math.inf
