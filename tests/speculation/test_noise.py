"""The random numbers are uniform or Gumbel, independent of each other, and functions of their arguments alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from pyspec.speculation.noise import Stream, _gumbel_of, gumbel, uniform
from tests.chances import chi_square

Numbers = npt.NDArray[np.float64]
N = 20_000
N_BINS = 50
STREAMS = [int(stream) for stream in Stream]


def uniformity(numbers: Numbers) -> float:
    counts = np.bincount((numbers * N_BINS).astype(int), minlength=N_BINS)
    return chi_square(counts, np.full(N_BINS, len(numbers) / N_BINS))


def correlation(a: Numbers, b: Numbers) -> float:
    """Return how many standard deviations the correlation lies from 0."""
    return abs(float(np.corrcoef(a, b)[0, 1])) * math.sqrt(len(a))


def by_position(seed: int = 1, first: int = 0, stream: int = 0, n: int = N) -> Numbers:
    return np.array([uniform(seed, position, stream) for position in range(first, first + n)])


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_numbers_are_uniform_over_positions(seed: int, stream: int) -> None:
    numbers = by_position(seed, stream=stream)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert uniformity(numbers) < 4.0


@pytest.mark.parametrize(
    "number",
    [
        lambda i: uniform(i, 7, Stream.ACCEPT),  # neighbouring seeds
        lambda i: uniform(1, 7, i),  # neighbouring streams
        lambda i: uniform(1, i << 20, Stream.ACCEPT),  # few changing bits
        lambda i: uniform(i << 32, 7, Stream.ACCEPT),
    ],
)
def test_numbers_are_uniform_over_everything_else(number: Callable[[int], float]) -> None:
    assert uniformity(np.array([number(i) for i in range(N)])) < 4.0


def test_streams_seeds_and_positions_are_independent() -> None:
    rows = [by_position(seed, stream=stream) for seed in (1, 2) for stream in STREAMS]
    rows += [by_position(first=first) for first in (1, 2, 100)]
    for a, b in itertools.combinations(rows, 2):
        assert correlation(a, b) < 4.5
        joint = np.bincount((a * 8).astype(int) * 8 + (b * 8).astype(int), minlength=64)
        assert chi_square(joint, np.full(64, N / 64)) < 4.5


def test_each_bit_of_seed_and_position_changes_half_of_the_number() -> None:
    def bits(seed: int, position: int) -> npt.NDArray[np.bool_]:
        whole = int(uniform(seed, position, Stream.DRAFT) * 2**53)
        return np.array([whole >> bit & 1 for bit in range(53)], bool)

    for bit in range(32):
        flips = np.mean(
            [bits(seed, 5) != bits(seed ^ 1 << bit, 5) for seed in range(200)]
            + [bits(9, position) != bits(9, position ^ 1 << bit) for position in range(200)],
            axis=0,
        )
        assert abs(flips.mean() - 0.5) < 0.02
        assert np.all(abs(flips - 0.5) < 0.15)


def test_a_seed_of_any_size_will_do() -> None:
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)
    assert len({uniform(seed, 3) for seed in (-1, 0, 1, 2**40, 2**63)}) == 5


# Gumbel noise


def defined(seed: int, position: int, token: int) -> float:
    """The definition, in integers of any size: SplitMix64 over seed and stream, position, and token."""

    def mixed(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        return value ^ value >> 31

    key = mixed(mixed(mixed(seed % 2**64) ^ Stream.GUMBEL) + position * 0x9E3779B97F4A7C15)
    bits = mixed(key + token * 0x9E3779B97F4A7C15)
    return -math.log(-math.log(((bits >> 12) + 0.5) / 2**52))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 1), (2**32 - 1, 131071), (12345, 77)])
def test_the_vectorised_noise_is_the_scalar_definition(seed: int, position: int) -> None:
    tokens = np.array([0, 1, 2, 49151, 262143, 2**31 - 1, *range(1000, 1100)], np.int32)
    expected = [defined(seed, position, int(token)) for token in tokens]
    np.testing.assert_allclose(gumbel(seed, position, tokens), expected, rtol=1e-12, atol=1e-14)


def test_a_tokens_noise_does_not_depend_on_its_company() -> None:
    vocabulary = np.arange(49_152, dtype=np.int32)
    noise = gumbel(3, 5, vocabulary)
    for some in (vocabulary[7:8], vocabulary[::-1], vocabulary[[40_000, 3, 12]], vocabulary[:0]):
        np.testing.assert_allclose(gumbel(3, 5, some), noise[some], rtol=1e-14)
    assert np.isfinite(noise).all()


def test_noise_is_finite_whatever_the_bits() -> None:
    least, most = _gumbel_of(np.array([0, 2**64 - 1], np.uint64))
    assert least == pytest.approx(-math.log(53 * math.log(2)))
    assert most == pytest.approx(53 * math.log(2))


def spread(noise: Numbers) -> Numbers:
    """Return where noise falls on the standard Gumbel distribution, in [0, 1)."""
    return np.exp(-np.exp(-noise))


def test_noise_is_gumbel_over_tokens_positions_and_seeds() -> None:
    token = np.array([17], np.int32)
    assert uniformity(spread(gumbel(1, 2, np.arange(N, dtype=np.int32)))) < 4.0
    assert uniformity(spread(np.concatenate([gumbel(1, position, token) for position in range(N)]))) < 4.0
    assert uniformity(spread(np.concatenate([gumbel(seed, 2, token) for seed in range(N)]))) < 4.0


def test_noise_of_other_tokens_positions_seeds_and_purposes_is_independent() -> None:
    tokens = np.arange(N, dtype=np.int32)
    rows = [spread(gumbel(seed, position, tokens)) for seed, position in [(1, 0), (1, 1), (2, 0), (2, 1)]]
    rows += [spread(gumbel(1, 0, tokens + shift)) for shift in (1, 2)]
    rows += [by_position(1, stream=stream) for stream in STREAMS]
    for a, b in itertools.combinations(rows, 2):
        assert correlation(a, b) < 4.5
