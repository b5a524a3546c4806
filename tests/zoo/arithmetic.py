"""Exact, portable arithmetic: every machine computes the same bits.

Numbers come from integer arithmetic, from ``decimal`` or from single float64 operations, and are then snapped to a
dyadic grid. No BLAS, no summation whose order may vary.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_PI = Decimal("3.14159265358979323846264338327950288419716939937511")
_DIGITS = 50
_GRID = 65536.0


def snap(values: npt.ArrayLike, bits: int = 16) -> Array:
    """Round to multiples of 2**-bits (exact in float32 for magnitudes below 128)."""
    scale = float(1 << bits)
    snapped: Array = np.rint(np.asarray(values, dtype=np.float64) * scale) / scale
    return snapped


def matmul(left: Array, right: Array) -> Array:
    """Multiply matrices in integers."""
    left_int = np.rint(np.asarray(left, np.float64) * _GRID).astype(np.int64)
    right_int = np.rint(np.asarray(right, np.float64) * _GRID).astype(np.int64)
    return snap((left_int @ right_int).astype(np.float64) / (_GRID * _GRID))


def _raw64(name: str, n: int) -> npt.NDArray[np.uint64]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    raw: npt.NDArray[np.uint64] = np.random.PCG64(seed).random_raw(n)
    return raw


def gauss(name: str, *shape: int) -> Array:
    """Return unit-variance bell-shaped noise (a sum of four 16-bit uniforms), seeded by name."""
    n = int(np.prod(shape))
    raw = _raw64(name, n)
    total = np.zeros(n, np.int64)
    for k in range(4):
        total += ((raw >> np.uint64(16 * k)) & np.uint64(0xFFFF)).astype(np.int64)
    return snap((total - 131070) / 37837.0).reshape(shape)


def permutation(name: str, n: int) -> npt.NDArray[np.intp]:
    """Return an order of n things, seeded by name."""
    return np.argsort(_raw64(name, n), kind="stable")


def cosine(angle: Decimal) -> float:
    """Return the cosine by its power series."""
    with localcontext() as context:
        context.prec = _DIGITS
        x = angle % (2 * _PI)
        term = total = Decimal(1)
        n = 0
        while abs(term) > Decimal(10) ** -30:
            n += 2
            term = -term * x * x / (n * (n - 1))
            total += term
        return float(total)


def sine(angle: Decimal) -> float:
    """Return the sine, from ``cosine``."""
    with localcontext() as context:
        context.prec = _DIGITS
        return cosine(angle - _PI / 2)


def part_of_turn(k: int, n: int) -> Decimal:
    """Return the angle of k nths of a turn."""
    with localcontext() as context:
        context.prec = _DIGITS
        return 2 * _PI * k / n


def rope_angle(base: float, pair: int, n_rotated: int, offset: int = 1) -> Decimal:
    """Return the angle by which RoPE turns a pair of dimensions over ``offset`` positions."""
    with localcontext() as context:
        context.prec = _DIGITS
        return Decimal(int(base)) ** (Decimal(-2 * pair) / n_rotated) * offset
