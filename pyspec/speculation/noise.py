"""Random numbers that depend on seed, position and purpose only, so that how rounds are cut changes nothing.

The generators are counter-based: SplitMix64 (Steele, Lea and Flood, 2014) applied to its counter. Nothing is
remembered between two numbers, so nothing can be rewound, used twice for two decisions, or spent on a round that is
undone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Stream(enum.IntEnum):
    """What a number decides; numbers of different streams are independent."""

    CHOICE = 0  # the token that the target says where it is asked alone
    ACCEPT = 1  # whether a draft token stands
    RESIDUAL = 2  # the token in place of a rejected one
    GUMBEL = 3  # the noise that target and drafter share
    DRAFT = 0x85EBCA6B  # a drawn draft token


Uniform = Callable[[int, int, int], float]
"""Seed, position and stream to a number in [0, 1)."""

Gumbel = Callable[[int, int, npt.NDArray[np.int32]], npt.NDArray[np.float64]]
"""Seed, position and tokens, [k], to their noise, [k]."""


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """Return a number in [0, 1) that belongs to a position.

    Args:
        seed: Any integer.
        position: Position of the token that is drawn.
        stream: Numbers of different streams are independent.
    """
    return (_bits(seed, position, stream) >> 11) * 2.0**-53


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise, [k], that belongs to a position and to each token.

    A token's noise does not depend on which others are asked for.

    Args:
        seed: Any integer.
        position: Position of the token that is drawn.
        tokens: Ids, [k].
    """
    bits = tokens.astype(np.uint64) * np.uint64(_STEP) + np.uint64(_bits(seed, position, Stream.GUMBEL))
    _mix(bits)
    return _gumbel_of(bits)


def _gumbel_of(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return the noise that random bits mean, [k]; always finite."""
    # 52 bits and a half: neither 0 nor 1, whose noise would be infinite, can come out.
    numbers = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: npt.NDArray[np.float64] = -np.log(-np.log(numbers))
    return noise


def _bits(seed: int, position: int, stream: int) -> int:
    """Return the 64 bits that belong to a position."""
    return _mixed(_mixed(_mixed(seed & _MASK) ^ stream) + position * _STEP)


def _mixed(value: int) -> int:
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _mix(values: npt.NDArray[np.uint64]) -> None:
    """Do in place what ``_mixed`` does; the arithmetic of arrays wraps around by itself."""
    values += np.uint64(_STEP)
    values ^= values >> np.uint64(30)
    values *= np.uint64(_FIRST)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_SECOND)
    values ^= values >> np.uint64(31)
