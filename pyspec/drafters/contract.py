"""What a chain insists on: that a drafter is one, that its answers are drafts, and whose fault an exception is."""

from __future__ import annotations

import itertools
import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyspec.config import as_index, shown
from pyspec.errors import DrafterError, PyspecError
from pyspec.llama.batch import NO_TOKEN
from pyspec.speculation.draft import Candidates, Draft, Drafter, DraftRequest, Needs

_PLAIN_NUMBERS = {int, float, bool}
_CONTRACT = {
    "name": "the text that users call it",
    "n_max": "the longest draft it may return, an integer",
    "needs": "what it reads from the target, such as Needs.NOTHING",
    "begin": "a method, called when a request starts",
    "observe": "a method, called with what the target evaluated",
    "draft": "a method, called for drafts",
    "accept": "a method, called when the target decided",
    "close": "a method, called at the end",
}


def require_contract(drafter: object) -> None:
    """Refuse what is no drafter, before anything is computed.

    Raises:
        DrafterError: An attribute is missing or wrong; the message says which, and what it is for.
    """
    try:
        faults = (_fault(drafter, attribute) for attribute in _CONTRACT)
        fault = next(filter(None, faults), None)
    except Exception as error:
        raise failed(type(drafter).__name__, "when asked for its attributes", error) from error
    if fault is not None:
        raise DrafterError(fault)


def _fault(drafter: object, attribute: str) -> str | None:
    """Return what is wrong with an attribute of a drafter, or None."""
    name = getattr(drafter, "name", None)
    who = name if isinstance(name, str) and name else type(drafter).__name__
    if not hasattr(drafter, attribute):
        return (
            f"The drafter {who} has no {attribute!r}: {_CONTRACT[attribute]}. "
            f"pyspec.drafters.ModelFreeDrafter has defaults for all but name, n_max and draft."
        )
    value = getattr(drafter, attribute)
    if not _IS_RIGHT.get(attribute, callable)(value):
        return f"The drafter {who} has {shown(value)} as {attribute!r}, which must be {_CONTRACT[attribute]}."
    return None


_IS_RIGHT: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda name: isinstance(name, str) and name != "",
    "n_max": lambda n_max: as_index(n_max) is not None,
    "needs": lambda needs: isinstance(needs, Needs),
}
"""What tells that an attribute is what the contract wants; the others are called."""


def failed(name: str, where: str, error: BaseException) -> DrafterError:
    """Return the error that says whose fault an exception of unknown code is.

    Args:
        name: Of the drafter.
        where: What it did, such as "in draft()".
        error: What it raised.
    """
    return DrafterError(f"The drafter {name} failed {where}: {said(error)}")


def said(error: BaseException) -> str:
    """Return the kind and the text of an exception, also of one that has none to show."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - classes of others may raise anything
        return f"{type(error).__name__}, which cannot be shown as text"


def checked_drafts(drafts: Any, requests: Sequence[DraftRequest], drafter: Drafter) -> list[Draft]:
    """Return one draft per request, each within its budget, its tokens as plain integers.

    Raises:
        DrafterError: There are too many or too few, or one is no draft, or cannot be read.
    """
    try:
        n_drafts = len(drafts) if isinstance(drafts, Sequence) else type(drafts).__name__
        if n_drafts != len(requests):
            msg = f"The drafter {drafter.name} answered {len(requests)} requests with {n_drafts} drafts."
            raise DrafterError(msg)  # noqa: TRY301 - a function for it would be called in every round
        return [_checked(draft, drafter.name, request.budget) for draft, request in zip(drafts, requests, strict=True)]
    except PyspecError:
        raise
    except (Exception, GeneratorExit) as error:  # what it answers with may compute its tokens only now
        msg = f"The drafter {drafter.name} proposed what is not a draft of token ids: {said(error)}."
        raise DrafterError(msg) from error


def checked_state(state: Any, name: str) -> bytes:
    """Return what a drafter wants to be saved.

    Raises:
        DrafterError: It is not bytes.
    """
    if not isinstance(state, (bytes, bytearray, memoryview)):
        msg = f"The drafter {name} returned {shown(state)} from save_state(); it must be bytes, or None for nothing."
        raise DrafterError(msg)
    return bytes(state)


def without_rows(draft: Draft) -> Draft:
    """Cut a draft where it repeats a place of the history that has no token."""
    n_tokens = next((i for i, token in enumerate(draft.tokens) if token == NO_TOKEN), len(draft.tokens))
    return draft.cut(n_tokens)


def _checked(draft: Draft, name: str, budget: int) -> Draft:
    """Return a draft within its budget, its tokens as plain integers; what is none raises whatever it raises."""
    if type(draft) is Draft and type(draft.tokens) is tuple and not draft.tokens:
        return draft
    tokens = tuple(map(operator.index, itertools.islice(draft.tokens, budget)))
    probs, signals = draft.probs, getattr(draft, "signals", None)
    return Draft(
        tokens,
        None if probs is None else _checked_probs(probs, len(tokens), name),
        None if signals is None else _checked_signals(signals, len(tokens), name),
    )


def _checked_probs(probs: Any, n_tokens: int, name: str) -> Sequence[Candidates]:
    """Return the distributions of the first tokens.

    Raises:
        DrafterError: They are not one ``Candidates`` per token.
    """
    found = list(itertools.islice(probs, n_tokens)) if isinstance(probs, Sequence) else []
    if len(found) != n_tokens or not all(isinstance(each, Candidates) for each in found):
        msg = f"The drafter {name} gave draft probabilities that are not one Candidates for each of its tokens."
        raise DrafterError(msg)
    return found


def _checked_signals(signals: Any, n_tokens: int, name: str) -> Sequence[float]:
    """Return the signals of the first tokens.

    Raises:
        DrafterError: They are not one number per token, none of them negative.
    """
    if isinstance(signals, np.ndarray):
        signals = signals.tolist()
    found = list(itertools.islice(signals, n_tokens)) if isinstance(signals, Sequence) else None
    if found is None or len(found) != n_tokens:
        what = type(signals).__name__ if found is None else f"{len(found)} signals"
        msg = f"The drafter {name} gave {what} for {n_tokens} tokens; signals are a sequence of one number for each."
        raise DrafterError(msg)
    kinds = set(map(type, found))
    if not kinds <= _PLAIN_NUMBERS and all(issubclass(kind, numbers.Real) for kind in kinds):  # numpy's, for example
        found, kinds = list(map(float, found)), {float}
    if not kinds <= _PLAIN_NUMBERS or not all(map((0.0).__le__, found)):  # NaN is not
        i = next(i for i, each in enumerate(found) if not (isinstance(each, numbers.Real) and float(each) >= 0.0))
        msg = f"The drafter {name} gave token {i} of its draft the signal {shown(found[i])}; it must be 0 or more."
        raise DrafterError(msg)
    return found
