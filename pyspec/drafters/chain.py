"""Several drafters, asked one after the other."""

from __future__ import annotations

import functools
import itertools
import operator
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec.errors import DrafterError, PyspecError
from pyspec.llama.batch import NO_TOKEN
from pyspec.speculation.draft import (
    NO_DRAFT,
    Candidates,
    Draft,
    Drafter,
    DraftRequest,
    EvaluatedBatch,
    Needs,
    Proposal,
    TokenView,
)
from pyspec.speculation.rollback import run_all
from pyspec.speculation.stats import DrafterStats

Rows = Mapping[int, npt.NDArray[np.float32]]


class Chain:
    """Asks its drafters in order, per sequence; the first draft that is not empty wins.

    The others hear ``accept(own=False)``. A chain of none is plain decoding.

    Args:
        drafters: In the order to ask; the chain owns and closes them.

    Attributes:
        n_max: The longest draft that any of them may return; 0 for plain decoding.
        needs: What any of them reads from the target.
        stats: Per drafter name, since ``new_stats`` was called last.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        for drafter in drafters:
            _require_contract(drafter)
        self.drafters = tuple(drafter for drafter in drafters if drafter.n_max > 0)
        self._closing = tuple(drafters)
        self.n_max = max((drafter.n_max for drafter in self.drafters), default=0)
        self.needs = functools.reduce(operator.or_, (drafter.needs for drafter in self.drafters), Needs.NOTHING)
        self.stats: dict[str, DrafterStats] = {}
        self._rows: dict[int, Rows] = {}
        self._n_model_tokens: dict[str, int] = {}  # before the counting began
        if len(self.new_stats()) != len(self.drafters):
            names = ", ".join(drafter.name for drafter in self.drafters)
            msg = f"A chain cannot hold two drafters of the same name: {names}."
            raise DrafterError(msg)

    def new_stats(self) -> dict[str, DrafterStats]:
        """Count from zero again, and return the new counters."""
        self.stats = {drafter.name: DrafterStats() for drafter in self.drafters}
        self._n_model_tokens = {drafter.name: _n_model_tokens(drafter) for drafter in self.drafters}
        return self.stats

    def begin(self, seq_id: int, tokens: TokenView, rows: Rows | None = None) -> None:
        """A new request starts.

        Args:
            seq_id: The sequence.
            tokens: Its history without the pending token.
            rows: Position to the row of floats that stands there in place of a token.
        """
        self._rows[seq_id] = rows or {}
        for drafter in self.drafters:
            stats = self.stats[drafter.name]
            began = time.perf_counter()
            with _blamed(drafter, "begin"):
                if rows and hasattr(drafter, "embed"):
                    drafter.embed(seq_id, rows)
                drafter.begin(seq_id, tokens)
            stats.n_begin += 1
            stats.n_stepped_aside += bool(rows) and drafter.needs is not Needs.NOTHING
            stats.seconds["begin"] += time.perf_counter() - began

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this."""
        for drafter in self.drafters:
            if drafter.needs is not Needs.NOTHING:
                began = time.perf_counter()
                with _blamed(drafter, "observe"):
                    drafter.observe(batch)
                self.stats[drafter.name].seconds["observe"] += time.perf_counter() - began

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return the first draft that is not empty, per request."""
        proposals = [NO_DRAFT] * len(requests)
        waiting = list(range(len(requests)))
        for drafter in self.drafters:
            if not waiting:
                break
            drafts = self._ask(drafter, [requests[i] for i in waiting])
            for i, draft in zip(waiting, drafts, strict=True):
                checked = _checked(draft, drafter.name, requests[i].budget)
                if self._rows.get(requests[i].seq_id):
                    checked = _without_rows(checked)
                if checked.tokens:
                    proposals[i] = Proposal(checked, drafter.name)
            waiting = [i for i in waiting if proposals[i] is NO_DRAFT]
        return proposals

    def accept(self, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        """Tell every drafter about a decision, also when one of them raises, and count it."""
        tell = functools.partial(self._tell, seq_id=seq_id, proposal=proposal, n_accepted=n_accepted)
        run_all(functools.partial(tell, drafter) for drafter in self.drafters)

    def discard(self, seq_id: int) -> None:
        """Tell the drafters that care that the round was undone."""
        hooks: list[Any] = [getattr(drafter, "discard", None) for drafter in self.drafters]
        run_all(functools.partial(hook, seq_id) for hook in hooks if hook is not None)

    def save_state(self, seq_id: int) -> dict[str, bytes]:
        """Return the states of the drafters that have one, by name."""
        states = {}
        for drafter in self.drafters:
            with _blamed(drafter, "save_state"):
                state = drafter.save_state(seq_id) if hasattr(drafter, "save_state") else None
            if state is not None:
                states[drafter.name] = state
        return states

    def load_state(self, seq_id: int, tokens: TokenView, states: Mapping[str, bytes]) -> None:
        """Go on with a sequence; a drafter without a state reads its history, as when a request begins.

        Raises:
            StateError: A state is damaged or of another draft model.
        """
        self._rows[seq_id] = {}
        for drafter in self.drafters:
            state = states.get(drafter.name)
            with _blamed(drafter, "load_state"):
                if state is None:
                    drafter.begin(seq_id, tokens)
                else:
                    drafter.load_state(seq_id, state)

    def close(self) -> None:
        """Close the drafters. May be called again."""
        run_all(drafter.close for drafter in self._closing)

    def _tell(self, drafter: Drafter, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        own = drafter.name == proposal.drafter
        stats = self.stats[drafter.name]
        if own:
            stats.count(len(proposal.draft.tokens), n_accepted)
        began = time.perf_counter()
        with _blamed(drafter, "accept"):
            drafter.accept(seq_id, n_accepted, own=own)
        stats.seconds["accept"] += time.perf_counter() - began

    def _ask(self, drafter: Drafter, requests: list[DraftRequest]) -> Sequence[Draft]:
        stats = self.stats[drafter.name]
        began = time.perf_counter()
        with _blamed(drafter, "draft"):
            drafts = drafter.draft(requests)
        stats.seconds["draft"] += time.perf_counter() - began
        stats.n_asked += len(requests)
        stats.n_model_tokens = _n_model_tokens(drafter) - self._n_model_tokens.get(drafter.name, 0)
        n_drafts = len(drafts) if isinstance(drafts, Sequence) else type(drafts).__name__
        if n_drafts != len(requests):
            msg = f"The drafter {drafter.name} answered {len(requests)} requests with {n_drafts} drafts."
            raise DrafterError(msg)
        return drafts


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


def _require_contract(drafter: object) -> None:
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


class _blamed:  # noqa: N801 - used like a function
    """Say whose fault an exception inside the block is: ``DrafterError`` instead of any that is not pyspec's own."""

    __slots__ = ("_drafter", "_method")

    def __init__(self, drafter: Drafter, method: str) -> None:
        self._drafter = drafter
        self._method = method

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (Exception, GeneratorExit)) and not isinstance(error, PyspecError):
            msg = f"The drafter {self._drafter.name} failed in {self._method}(): {type(error).__name__}: {error}"
            raise DrafterError(msg) from error


def _n_model_tokens(drafter: Drafter) -> int:
    """Return how many tokens the drafter's model has evaluated; lookups have none."""
    return int(getattr(drafter, "n_model_tokens", 0))


def _without_rows(draft: Draft) -> Draft:
    """Cut a draft where it repeats a place of the history that has no token."""
    n_tokens = next((i for i, token in enumerate(draft.tokens) if token == NO_TOKEN), len(draft.tokens))
    return Draft(draft.tokens[:n_tokens], None if draft.probs is None else draft.probs[:n_tokens])


def _checked(draft: Draft, name: str, budget: int) -> Draft:
    """Return a draft within its budget, its tokens as plain integers.

    Raises:
        DrafterError: It is no draft, or a token is no integer.
    """
    try:
        tokens = tuple(operator.index(token) for token in itertools.islice(draft.tokens, budget))
    except (TypeError, AttributeError) as error:
        msg = f"The drafter {name} proposed what is not a draft of token ids: {error}."
        raise DrafterError(msg) from error
    return Draft(tokens, None if draft.probs is None else _checked_probs(draft.probs, len(tokens), name))


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
