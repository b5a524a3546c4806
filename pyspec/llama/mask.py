"""Masks: which tokens may be chosen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyspec.errors import ConfigError

TokenMask = npt.NDArray[np.uint32]
"""One bit per token, lowest bit first, 1 where it is allowed, [ceil(n_vocab / 32)]; int32 will do as well."""

_WORDS = (np.dtype(np.uint32), np.dtype(np.int32))


def checked_mask(mask: object, n_vocab: int) -> TokenMask:
    """Return a mask as contiguous uint32 words.

    Args:
        mask: See ``TokenMask``; bits from ``n_vocab`` on are not looked at.
        n_vocab: Size of the vocabulary.

    Raises:
        ConfigError: It is not a mask for this vocabulary.
    """
    n_words = (n_vocab + 31) // 32
    if not isinstance(mask, np.ndarray) or mask.dtype not in _WORDS or mask.shape != (n_words,):
        found = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, np.ndarray) else type(mask).__name__
        msg = f"mask must be an array of uint32 [{n_words}], one bit for each of {n_vocab} tokens, not {found}."
        raise ConfigError(msg)
    return np.ascontiguousarray(mask).view(np.uint32)


def allows(mask: TokenMask, token: int) -> bool:
    """Return whether a mask lets a token through."""
    return bool(int(mask[token // 32]) >> (token % 32) & 1)
