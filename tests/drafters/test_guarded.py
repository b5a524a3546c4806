"""What a drafter is shown stays as it is, and what it said of itself at first holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pyspec.drafters import Chain, Draft, DraftRequest, EvaluatedBatch, ModelFreeDrafter, Needs, registry
from pyspec.drafters.guarded import guarded
from pyspec.drafters.suffix import Suffix
from pyspec.errors import DrafterError
from pyspec.llama.memory import RollbackKind
from tests.fakes import HashLogits
from tests.playing import Machine, ScriptedSpec, Table, TimedController
from tests.reference import Request, plain_decode
from tests.scripted import Move
from tests.speculation.test_view import CHANGES
from tests.workplace import generation, workplace

changes = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


class Meddler(ModelFreeDrafter):
    """Does something to what it is shown in one of its methods, once; proposes nothing."""

    name, n_max = "meddler", 4

    def __init__(self, call: str, do: Callable[[Any], object], *, needs: Needs = Needs.PROMPT) -> None:
        self.needs = needs
        self._call, self._do = call, do
        self.n_done = 0

    def _meddle(self, call: str, things: Any) -> None:
        if call == self._call and not self.n_done:
            self.n_done += 1
            self._do(things)

    def begin(self, seq_id: int, tokens: Any) -> None:  # noqa: ARG002 - the interface
        self._meddle("begin", tokens)

    def rewind(self, seq_id: int, tokens: Any, length: int, n_same: int) -> None:  # noqa: ARG002 - the interface
        self._meddle("rewind", tokens)

    def embed(self, seq_id: int, rows: Any) -> None:  # noqa: ARG002 - the interface
        self._meddle("embed", rows)

    def observe(self, batch: EvaluatedBatch) -> None:
        for name in ("tokens", "positions", "seq_ids"):
            self._meddle(f"observe {name}", getattr(batch, name))

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._meddle("draft", requests[0].tokens)
        self._meddle("requests", requests)
        return [Draft()] * len(requests)


@changes
@pytest.mark.parametrize("call", ["begin", "draft", "observe tokens", "observe positions", "observe seq_ids"])
@pytest.mark.parametrize("kind", [RollbackKind.TRIM, RollbackKind.WHOLE])
def test_a_drafter_that_changes_what_it_is_shown_fails_and_nothing_else(
    kind: RollbackKind, call: str, change: Callable[[Any], object]
) -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3, 1), max_tokens=12)
    table = Table([request], [ScriptedSpec((Move(2),))], machine=Machine(kind=kind))
    table.futures[0] = plain_decode(request).history
    meddler = Meddler(call, change)
    table.chain = Chain([meddler, *table.chain.drafters])
    place = workplace(table)
    failing = generation(place, request)
    method = call.partition(" ")[0]
    with pytest.raises(DrafterError, match=rf"The drafter meddler failed in {method}\(\): \w+Error: "):
        list(failing)
    assert meddler.n_done == 1
    said = failing.result.tokens
    assert tuple(said) == plain_decode(request).tokens[: len(said)]
    following = generation(place, request)
    list(following)
    assert tuple(following.result.tokens) == plain_decode(request).tokens


@changes
@pytest.mark.parametrize("call", ["begin", "rebegin", "rewind", "load_state"])
def test_the_history_is_shown_read_only_whenever_it_begins(call: str, change: Callable[[Any], object]) -> None:
    tokens = [5, 6, 7, 6]
    chain = Chain([Meddler("rewind" if call == "rewind" else "begin", change)])
    more: dict[str, tuple[Any, ...]] = {"rewind": (1, 1), "load_state": ({},)}
    with pytest.raises(DrafterError, match=r"The drafter meddler failed in (begin|load_state)"):
        getattr(chain, call)(0, tokens, *more.get(call, ()))
    assert tokens == [5, 6, 7, 6]


def test_requests_are_a_list_of_the_drafters_own() -> None:
    requests = [DraftRequest(0, [1, 2], 3, 2, 8)]
    chain = Chain([Meddler("requests", lambda requests: requests.__setitem__(0, None))])
    assert [list(proposal.draft.tokens) for proposal in chain.propose(requests)] == [[]]
    assert requests == [DraftRequest(0, [1, 2], 3, 2, 8)]


@pytest.mark.parametrize(
    "change", [lambda rows: rows.clear(), lambda rows: rows.__setitem__(0, None), lambda rows: rows[1].fill(7)]
)
def test_embeddings_are_shown_read_only(change: Callable[[Any], object]) -> None:
    rows = {1: np.zeros(3, np.float32)}
    with pytest.raises(DrafterError, match="The drafter meddler failed in begin"):
        Chain([Meddler("embed", change)]).begin(0, [5, -1], rows)
    assert [*rows] == [1]
    assert not rows[1].any()
    assert rows[1].flags.writeable


@pytest.mark.parametrize("costs", [None, {1: 1.0, 8: 1.1}])
@pytest.mark.parametrize("call", ["begin", "draft", "accept"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", value) for value in (None, "", 5, "other", "scripted-0")),
        *(("n_max", value) for value in (None, -1, 0, 1 << 20, float("nan"), "x")),
        *(("needs", value) for value in (None, Needs.PROMPT, "x")),
    ],
)
def test_a_drafter_is_what_it_was_at_first(field: str, value: Any, call: str, costs: Any) -> None:
    class Turncoat(Meddler):
        def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            super().draft(requests)
            return [Draft((1,), signals=(1.0,)) for _ in requests]

        def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:  # noqa: ARG002 - the interface
            self._meddle("accept", None)

    turncoat: Any = Turncoat(call, lambda _things: setattr(turncoat, field, value), needs=Needs.NOTHING)
    request = Request(HashLogits(3, 8), 8, (1, 2, 3, 1), max_tokens=12)
    table = Table([request], [ScriptedSpec((Move(1), Move()))])
    drafters = [*table.chain.drafters, turncoat]
    table.chain = Chain(drafters) if costs is None else TimedController(drafters, table.target, costs)
    table.begin()
    table.play()
    table.check_end()
    assert turncoat.n_done == 1
    assert getattr(turncoat, field) is value
    assert (table.chain.n_max, table.chain.needs) == (64, Needs.NOTHING)
    assert [*table.chain.stats] == ["scripted-0", "meddler"]
    assert table.chain.stats["meddler"].n_asked > 1


def test_who_promises_to_read_only_is_called_directly() -> None:
    own = [point.load() for point in registry._registered().values() if point.value.startswith("pyspec.drafters.")]
    assert len(own) >= 11
    assert [each for each in own if vars(each).get("reads_only") is not True] == []
    suffix = Suffix()
    assert guarded(suffix) is suffix


def test_the_promise_is_not_inherited() -> None:
    class Mine(Suffix):
        """Somebody's variant of ours."""

    class AlsoMine(ModelFreeDrafter):
        """Somebody's own."""

        name, n_max = "mine", 4

        def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return [Draft()] * len(requests)

    for drafter in (Mine(), AlsoMine()):
        assert guarded(drafter) is not drafter


def test_a_chain_shows_the_drafters_that_it_was_given() -> None:
    meddler = Meddler("", lambda _things: None)
    assert Chain([meddler]).drafters == (meddler,)
