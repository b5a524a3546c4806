"""What the probabilities that a draft was drawn from must be, so that a rule can judge by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec.config import shown
from pyspec.errors import DrafterError
from pyspec.speculation.draft import Candidates, Draft

_SLACK = 1e-3  # a softmax of a large vocabulary in single precision sums to 1 within less
_FIELDS = {"tokens": ("iu", "token ids"), "probs": ("f", "probabilities")}


def check_drawn(draft: Draft, n_vocab: int, drafter: str | None) -> None:
    """Refuse draft probabilities that no rule could judge by, whichever rule there is.

    Args:
        draft: With one ``Candidates`` per token, and with tokens of the target.
        n_vocab: Size of the target's vocabulary.
        drafter: Whose draft it is.

    Raises:
        DrafterError: A distribution is malformed, or its token cannot have been drawn from it.
    """
    probs = draft.probs or ()
    for i, each in enumerate(probs):
        if found := _misshapen(each):
            raise _fault(drafter, i, found)
    counts = np.array([len(each.tokens) for each in probs])
    starts = np.cumsum(counts) - counts
    tokens = np.concatenate([each.tokens for each in probs], dtype=np.int64)
    shares = np.concatenate([each.probs for each in probs], dtype=np.float64)
    places = np.repeat(np.arange(len(counts)), counts)
    if (bad := _first((tokens < 0) | (tokens >= n_vocab))) is not None:
        raise _fault(drafter, places[bad], f"has the token {tokens[bad]}; the target has 0 to {n_vocab - 1}")
    if (bad := _first(~((shares >= 0.0) & (shares <= 1.0 + _SLACK)))) is not None:  # NaN is neither
        raise _fault(drafter, places[bad], f"gives the token {tokens[bad]} the probability {shares[bad]:g}")
    keys = np.sort(places * n_vocab + tokens, kind="stable")  # ids of a whole vocabulary are in order already
    if (bad := _first(keys[1:] == keys[:-1])) is not None:
        raise _fault(drafter, keys[bad] // n_vocab, f"has the token {keys[bad] % n_vocab} more than once")
    sums = np.add.reduceat(shares, starts)
    if (bad := _first(np.abs(sums - 1.0) > _SLACK)) is not None:
        raise _fault(drafter, bad, f"sums to {sums[bad]:g}")
    own = np.add.reduceat(shares * (tokens == np.array(draft.tokens)[places]), starts)
    if (bad := _first(own <= 0.0)) is not None:
        raise _fault(drafter, bad, f"gives the drafted token {draft.tokens[bad]} no probability")


def _misshapen(candidates: Candidates) -> str | None:
    """Return what is wrong with the arrays of a distribution, or None."""
    for name, (kinds, what) in _FIELDS.items():
        array: Any = getattr(candidates, name)
        if not isinstance(array, np.ndarray):
            return f"has {name} that are no array of {what} but {shown(array)}"
        if array.dtype.kind not in kinds or array.ndim != 1:
            return f"has {name} that are no array of {what}, [k], but one of {array.dtype}, {list(array.shape)}"
    n_tokens, n_probs = len(candidates.tokens), len(candidates.probs)
    return f"has {n_tokens} tokens and {n_probs} probs" if n_tokens != n_probs or not n_tokens else None


def _first(mask: npt.NDArray[np.bool_]) -> int | None:
    """Return where a mask is true first."""
    found = np.flatnonzero(mask)
    return int(found[0]) if len(found) else None


def _fault(drafter: str | None, i: int, found: str) -> DrafterError:
    msg = (
        f"The drafter {drafter} gave draft probabilities that cannot be: distribution {i} of its draft, counted from "
        f"0, {found}. A Candidates has an array of one or more different token ids, the drafted one among them, and an "
        f"array of their probabilities, which sum to 1."
    )
    return DrafterError(msg)
