"""Several drafters, asked one after the other."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyspec.drafters.contract import checked_drafts, checked_state, failed, require_contract, without_rows
from pyspec.drafters.guarded import guarded
from pyspec.errors import DrafterError, PyspecError
from pyspec.speculation.draft import (
    NO_DRAFT,
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

if TYPE_CHECKING:
    from pyspec.speculation.costs import Decoded
    from pyspec.speculation.round import Outcome

Rows = Mapping[int, npt.NDArray[np.float32]]


class Chain:
    """Asks its drafters in order, per sequence; the first draft that is not empty wins.

    The others hear ``accept(own=False)``. A chain of none is plain decoding.

    Args:
        drafters: In the order to ask; the chain owns and closes them. They get to read only what they are shown.

    Attributes:
        drafters: Those of them that may propose anything.
        n_max: The longest draft that any of them may return; 0 for plain decoding.
        needs: What any of them reads from the target.
        stats: Per drafter name, of all requests since ``new_stats`` was called last.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        for drafter in drafters:
            require_contract(drafter)
        self.drafters = tuple(drafter for drafter in drafters if drafter.n_max > 0)
        self._closing = tuple(guarded(drafter) for drafter in drafters)
        self._members = tuple(member for member in self._closing if member.n_max > 0)
        self.n_max = max((member.n_max for member in self._members), default=0)
        self.needs = functools.reduce(operator.or_, (member.needs for member in self._members), Needs.NOTHING)
        self.stats: dict[str, DrafterStats] = {}
        self._of: dict[int, dict[str, DrafterStats]] = {}  # the request of each sequence
        self._rows: dict[int, Rows] = {}
        if len(self.new_stats()) != len(self._members):
            names = ", ".join(member.name for member in self._members)
            msg = f"A chain cannot hold two drafters of the same name: {names}."
            raise DrafterError(msg)

    def new_stats(self) -> dict[str, DrafterStats]:
        """Count from zero again, and return the new counters."""
        self.stats = self._zeros()
        self._of.clear()
        return self.stats

    def stats_of(self, seq_id: int) -> dict[str, DrafterStats]:
        """Return the counters of the request that a sequence has now, per drafter name."""
        if seq_id not in self._of:
            self._of[seq_id] = self._zeros()
        return self._of[seq_id]

    def begin(self, seq_id: int, tokens: TokenView, rows: Rows | None = None) -> None:
        """A new request starts.

        Args:
            seq_id: The sequence.
            tokens: Its history without the pending token.
            rows: Position to the row of floats that stands there in place of a token.
        """
        self._open(seq_id, rows)
        for drafter in self._members:
            with self._call(drafter, "begin", [seq_id]):
                if rows and hasattr(drafter, "embed"):
                    drafter.embed(seq_id, rows)
                drafter.begin(seq_id, tokens)
            for stats in self._counters(drafter, seq_id):
                stats.n_stepped_aside += bool(rows) and drafter.needs is not Needs.NOTHING

    def rebegin(self, seq_id: int, tokens: TokenView) -> None:
        """The history of a request has become another one; it is counted as the same request."""
        for drafter in self._members:
            with self._call(drafter, "begin", [seq_id]):
                drafter.begin(seq_id, tokens)

    def rewind(self, seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:
        """A new request starts, whose beginning the sequence holds already; see ``Drafter.rewind``."""
        self._open(seq_id, None)
        for drafter in self._members:
            with self._call(drafter, "begin", [seq_id]):
                if hasattr(drafter, "rewind"):
                    drafter.rewind(seq_id, tokens, length, n_same)
                else:
                    drafter.begin(seq_id, tokens)

    def observe(self, batch: EvaluatedBatch) -> None:
        """The target has evaluated this."""
        sequences = sorted({seq_id for each in batch.seq_ids for seq_id in each})
        for drafter in self._members:
            if drafter.needs is not Needs.NOTHING:
                with self._call(drafter, "observe", sequences):
                    drafter.observe(batch)

    def rest(self, seq_ids: Sequence[int], n_entries: int) -> list[Proposal] | None:  # noqa: ARG002 - the interface
        """Return None: these drafters are asked in every round."""
        return None

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return the first draft that is not empty, per request."""
        proposals = [NO_DRAFT] * len(requests)
        waiting = list(range(len(requests)))
        for drafter in self._members:
            asked = [i for i in waiting if requests[i].drafting.allows(drafter.name)]
            if not asked:
                continue
            drafts = self._ask(drafter, [requests[i] for i in asked])
            for i, draft in zip(asked, drafts, strict=True):
                if draft.tokens:
                    proposals[i] = Proposal(draft, drafter.name)
            waiting = [i for i in waiting if proposals[i] is NO_DRAFT]
        return proposals

    def accept(self, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        """Tell every drafter about a decision, also when one of them raises, and count it."""
        tell = functools.partial(self._tell, seq_id=seq_id, proposal=proposal, n_accepted=n_accepted)
        run_all(functools.partial(tell, drafter) for drafter in self._members)

    def discard(self, seq_id: int) -> None:
        """Tell the drafters that care that the round was undone."""
        run_all(functools.partial(self._discard, drafter, seq_id) for drafter in self._members)

    def end(self, seq_id: int, tokens: TokenView) -> None:
        """A request is over; tell the drafters that learn from it, or go on with others meanwhile."""
        for drafter in self._members:
            if hasattr(drafter, "end"):
                with _blamed(drafter, "end"):
                    drafter.end(seq_id, tokens)

    def played(self, decodes: Sequence[Decoded], outcomes: Sequence[Outcome]) -> None:
        """A round is over. Nothing is chosen here by what it cost."""

    def save_state(self, seq_id: int) -> dict[str, bytes]:
        """Return the states of the drafters that have one, by name."""
        states = {}
        for drafter in self._members:
            with _blamed(drafter, "save_state"):
                state = drafter.save_state(seq_id) if hasattr(drafter, "save_state") else None
            if state is not None:
                states[drafter.name] = checked_state(state, drafter.name)
        return states

    def load_state(self, seq_id: int, tokens: TokenView, states: Mapping[str, bytes]) -> None:
        """Go on with a sequence; a drafter without a state reads its history, as when a request begins.

        Raises:
            StateError: A state is damaged or of another draft model.
        """
        self._rows[seq_id], self._of[seq_id] = {}, self._zeros()
        for drafter in self._members:
            state = states.get(drafter.name)
            with _blamed(drafter, "load_state"):
                if state is None:
                    drafter.begin(seq_id, tokens)
                else:
                    drafter.load_state(seq_id, state)

    def close(self) -> None:
        """Close the drafters. May be called again."""
        run_all(functools.partial(self._close, drafter) for drafter in self._closing)

    def _open(self, seq_id: int, rows: Rows | None) -> None:
        """Begin to count for a request."""
        self._rows[seq_id] = rows or {}
        self._of[seq_id] = self._zeros()
        for drafter in self._members:
            for stats in self._counters(drafter, seq_id):
                stats.n_begin += 1

    def _zeros(self) -> dict[str, DrafterStats]:
        return {drafter.name: DrafterStats() for drafter in self._members}

    def _counters(self, drafter: Drafter, seq_id: int) -> tuple[DrafterStats, DrafterStats]:
        """Return where to count for a sequence: its request's counters and those of all requests."""
        return self.stats_of(seq_id)[drafter.name], self.stats[drafter.name]

    def _close(self, drafter: Drafter) -> None:
        with _blamed(drafter, "close"):
            drafter.close()

    def _discard(self, drafter: Any, seq_id: int) -> None:
        if hasattr(drafter, "discard"):
            with _blamed(drafter, "discard"):
                drafter.discard(seq_id)

    def _tell(self, drafter: Drafter, seq_id: int, proposal: Proposal, n_accepted: int) -> None:
        own = drafter.name == proposal.drafter
        if own:
            for stats in self._counters(drafter, seq_id):
                stats.count(len(proposal.draft.tokens), n_accepted)
        with self._call(drafter, "accept", [seq_id]):
            drafter.accept(seq_id, n_accepted, own=own)

    def _ask(self, drafter: Drafter, requests: list[DraftRequest]) -> list[Draft]:
        counters = [stats for request in requests for stats in self._counters(drafter, request.seq_id)]
        for stats in counters:
            stats.n_asked += 1
        with _Call(drafter, "draft", counters):
            drafts = drafter.draft(requests)
        checked = checked_drafts(drafts, requests, drafter)
        if any(self._rows.get(request.seq_id) for request in requests):
            return [
                without_rows(draft) if self._rows.get(request.seq_id) else draft
                for draft, request in zip(checked, requests, strict=True)
            ]
        return checked

    def _call(self, drafter: Drafter, stage: str, sequences: Iterable[int]) -> _Call:
        counters = [counters for seq_id in sequences for counters in self._counters(drafter, seq_id)]
        return _Call(drafter, stage, counters)


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
            raise failed(self._drafter.name, f"in {self._method}()", error) from error


class _Call(_blamed):
    """Count what a call costs: seconds, and tokens of the draft model. Sequences that share a call share its cost.

    Args:
        drafter: Who is called.
        stage: What for.
        counters: Two for each sequence, of its request and of all requests; empty when nobody is to be charged.
    """

    __slots__ = ("_began", "_counters", "_n_before")

    def __init__(self, drafter: Drafter, stage: str, counters: Sequence[DrafterStats]) -> None:
        super().__init__(drafter, stage)
        self._counters = counters

    def __enter__(self) -> None:
        self._n_before = _n_model_tokens(self._drafter)
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        n_sharing = len(self._counters) // 2
        if n_sharing and error is None:
            seconds = (time.perf_counter() - self._began) / n_sharing
            n_tokens = _n_model_tokens(self._drafter) - self._n_before
            for i, stats in enumerate(self._counters):
                stats.seconds[self._method] += seconds
                stats.n_model_tokens += n_tokens // n_sharing + (i // 2 < n_tokens % n_sharing)
        super().__exit__(kind, error, trace)


def _n_model_tokens(drafter: Drafter) -> int:
    """Return how many tokens the drafter's model has evaluated; lookups have none."""
    n_tokens = getattr(drafter, "n_model_tokens", 0)
    try:
        return int(n_tokens)
    except Exception as error:
        raise failed(drafter.name, "when its 'n_model_tokens' were counted", error) from error
