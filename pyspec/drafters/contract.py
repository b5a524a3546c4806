"""What a chain insists on: that a drafter is one, that its answers are drafts, and whose fault an exception is."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

from pyspec.errors import DrafterError
from pyspec.llama.batch import NO_TOKEN
from pyspec.speculation.draft import Candidates, Draft, Drafter, DraftRequest

_CONTRACT = {
    "name": "what users call it",
    "n_max": "the longest draft it may return",
    "needs": "what it reads from the target, such as Needs.NOTHING",
    "begin": "called when a request starts",
    "observe": "called with what the target evaluated",
    "draft": "called for drafts",
    "accept": "called when the target decided",
    "close": "called at the end",
}


def require_contract(drafter: object) -> None:
    """Refuse what is no drafter, before anything is computed.

    Raises:
        DrafterError: An attribute is missing; the message says which, and what it is for.
    """
    for attribute, purpose in _CONTRACT.items():
        if not hasattr(drafter, attribute):
            name = getattr(drafter, "name", type(drafter).__name__)
            msg = (
                f"The drafter {name} has no {attribute!r}: {purpose}. "
                f"pyspec.drafters.ModelFreeDrafter has defaults for all but name, n_max and draft."
            )
            raise DrafterError(msg)


def checked_drafts(drafts: Any, requests: Sequence[DraftRequest], drafter: Drafter) -> list[Draft]:
    """Return one draft per request, each within its budget, its tokens as plain integers.

    Raises:
        DrafterError: There are too many or too few, or one is no draft.
    """
    n_drafts = len(drafts) if isinstance(drafts, Sequence) else type(drafts).__name__
    if n_drafts != len(requests):
        msg = f"The drafter {drafter.name} answered {len(requests)} requests with {n_drafts} drafts."
        raise DrafterError(msg)
    return [_checked(draft, drafter.name, request.budget) for draft, request in zip(drafts, requests, strict=True)]


def without_rows(draft: Draft) -> Draft:
    """Cut a draft where it repeats a place of the history that has no token."""
    n_tokens = next((i for i, token in enumerate(draft.tokens) if token == NO_TOKEN), len(draft.tokens))
    return draft.cut(n_tokens)


def _checked(draft: Draft, name: str, budget: int) -> Draft:
    """Return a draft within its budget, its tokens as plain integers.

    Raises:
        DrafterError: It is no draft, or a token is no integer.
    """
    if isinstance(draft, Draft) and type(draft.tokens) is tuple and not draft.tokens:
        return draft
    try:
        tokens = tuple(map(operator.index, itertools.islice(draft.tokens, budget)))
    except (TypeError, AttributeError) as error:
        msg = f"The drafter {name} proposed what is not a draft of token ids: {error}."
        raise DrafterError(msg) from error
    signals = getattr(draft, "signals", None)
    return Draft(
        tokens,
        None if draft.probs is None else _checked_probs(draft.probs, len(tokens), name),
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
    found = list(itertools.islice(signals, n_tokens)) if isinstance(signals, Sequence) else []
    are_numbers = all(issubclass(kind, (int, float)) for kind in set(map(type, found)))
    if len(found) != n_tokens or not are_numbers or not all(map((0.0).__le__, found)):  # NaN is not, either
        msg = f"The drafter {name} gave signals that are not one number of 0 or more for each of its tokens."
        raise DrafterError(msg)
    return found
