"""What goes wrong in one request stays there: the others say what they say alone, and the engine goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec.config import SamplingConfig
from pyspec.drafters import Chain
from pyspec.engine import Generation
from pyspec.errors import DrafterError, PyspecError
from pyspec.llama.batch import Batch
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import Finish, MatchRule
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch, Needs, TokenView
from tests.at_work import Held, idle, prompt
from tests.engine.conftest import Make
from tests.fakes import FakeTarget, Fuse, HashLogits, InjectedError
from tests.playing import DraftModelSpec, Machine, NgramSpec, Seat, Table
from tests.reference import Request, plain_decode
from tests.strategies import machines, prompts, requests, seeds
from tests.workplace import Place, generation_of, workplace

WAYS = ("sample", "sampled", "rule", "decode", "amid", "decoded", "draft model", "begin", "draft", "token", "accept")


@dataclass
class Fault:
    """Something that goes wrong for one request, from some pass on; if it passes away, then only once.

    Attributes:
        way: What goes wrong.
        after: Passes that are right.
        lasts: Whether each later pass is wrong too.
        n_passes: So far.
        happened: Whether anything went wrong.
    """

    way: str
    after: int
    lasts: bool = True
    n_passes: int = 0
    happened: bool = False
    is_bad: Callable[[int], bool] = field(default=lambda _seq_id: False)

    def strikes(self, way: str, seq_ids: Sequence[int]) -> bool:
        """Pass a point with these sequences."""
        if way != self.way or not any(map(self.is_bad, seq_ids)):
            return False
        self.n_passes += 1
        over = self.n_passes > self.after if self.lasts else self.n_passes == self.after + 1
        self.happened |= over
        return over

    def strike(self, way: str, seq_ids: Sequence[int]) -> None:
        if self.strikes(way, seq_ids):
            raise InjectedError(way)


class FaultyFuse(Fuse):
    """Fails for the sampler of one request."""

    def __init__(self, fault: Fault, seq_id: Callable[[], int]) -> None:
        super().__init__()
        self._fault, self._seq_id = fault, seq_id

    def burn(self, point: str) -> None:
        if point in ("sample", "sampled"):
            self._fault.strike(point, [self._seq_id()])


class FaultyRule(MatchRule):
    """Fails for one request."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def accept(self, draft: Any, rows: Any, sequence: Any) -> Any:
        self._fault.strike("rule", [sequence.seq_id])
        return super().accept(draft, rows, sequence)


class Faulty:
    """A drafter that is mostly wrong, and fails for one request."""

    name, n_max, needs = "faulty", 3, Needs.NOTHING

    def __init__(self, fault: Fault, n_vocab: int) -> None:
        self._fault, self._n_vocab = fault, n_vocab

    def begin(self, seq_id: int, tokens: TokenView) -> None:  # noqa: ARG002 - the interface
        self._fault.strike("begin", [seq_id])

    def observe(self, batch: EvaluatedBatch) -> None: ...

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._fault.strike("draft", [request.seq_id for request in requests])
        return [self._answer(request) for request in requests]

    def _answer(self, request: DraftRequest) -> Draft:
        if self._fault.strikes("token", [request.seq_id]):
            return Draft([self._n_vocab])
        return Draft([(request.pending + i) % self._n_vocab for i in range(request.position % 3)])

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:  # noqa: ARG002 - the interface
        self._fault.strike("accept", [seq_id])

    def save_state(self, seq_id: int) -> None: ...
    def load_state(self, seq_id: int, state: bytes) -> None: ...
    def close(self) -> None: ...


class World:
    """A scheduler over fakes, one of whose requests meets a fault."""

    def __init__(self, group: Sequence[Request], fault: Fault, machine: Machine, *, with_model: bool) -> None:
        self.group, self.fault = group, fault
        model = DraftModelSpec(HashLogits(7, group[0].n_vocab, order=2)) if with_model else NgramSpec(1, 3)
        self.table = Table(group[:1], [model], machine=machine)
        self.table.chain = Chain([Faulty(fault, group[0].n_vocab), *self.table.chain.drafters])
        self._let_fail(self.table.target, "decode", "decoded")
        if self.table.draft_target is not None:
            self._let_fail(self.table.draft_target, "draft model", "")
        self.place: Place = workplace(self.table, n_prefill=3)
        self.running = [self._start(request, bad=i == 0) for i, request in enumerate(group)]
        bad = self.running[0]._request
        slots = self.place.scheduler.slots
        fault.is_bad = lambda seq_id: slots[seq_id].request is bad

    def _let_fail(self, target: FakeTarget, before: str, after: str) -> None:
        decode = target.decode

        def failing(batch: Batch) -> Any:
            seq_ids = [seq_id for each in batch.seq_ids for seq_id in each]
            self.fault.strike(before, seq_ids)
            if self.fault.strikes("amid", seq_ids):
                target.fuse = Fuse("half-decoded")
            rows = decode(batch)
            self.fault.strike(after, seq_ids)
            return rows

        target.decode = failing  # type: ignore[method-assign]

    def _start(self, request: Request, *, bad: bool) -> Generation:
        seat: Seat
        fuse = FaultyFuse(self.fault, lambda: seat.sequence.seq_id) if bad else Fuse()
        seat = Seat(request, 0, fuse)
        if bad and self.fault.way == "rule":
            seat.sequence.rule = FaultyRule(self.fault)
        return generation_of(self.place, seat, SamplingConfig(presence_penalty=1.0))

    def check(self) -> None:
        """All end; only the one with the fault may end with it."""
        for running, request in zip(self.running, self.group, strict=True):
            plain, result = plain_decode(request), running.result
            heard, failed = listen(running)
            assert not failed or (running is self.running[0] and self.fault.happened)
            assert heard == result.tokens[: len(heard)]
            if failed:
                assert result.finish is Finish.ERROR
                assert tuple(result.tokens) == plain.tokens[: len(result.tokens)]
                continue
            assert not (running is self.running[0] and self.fault.happened and self.fault.lasts)
            assert result.finish is not None
            assert (tuple(heard), result.text, result.finish.value) == (plain.tokens, plain.text, plain.finish)
            assert result.tokens == heard
        assert not self.place.busy
        assert all(slot.request is None for slot in self.place.scheduler.slots)

    def check_after(self) -> None:
        """The engine goes on: every slot is good."""
        self.fault.way = ""
        again = [self._start(request, bad=False) for request in self.group]
        for running, request in zip(again, self.group, strict=True):
            list(running)
            assert tuple(running.result.tokens) == plain_decode(request).tokens


def listen(running: Generation) -> tuple[list[int], bool]:
    """Return the tokens of all chunks, and whether an error came after them."""
    heard: list[int] = []
    try:
        for chunk in running:
            heard += chunk.tokens
    except PyspecError:
        return heard, True
    return heard, False


@settings(max_examples=150, deadline=None)
@given(first=requests(), data=st.data())
def test_a_fault_of_one_request_is_its_own(first: Request, data: st.DataObject) -> None:
    group = [first]
    for _ in range(data.draw(st.integers(1, 4))):
        prompt = data.draw(st.one_of(st.just(first.prompt), prompts(first.n_vocab, first.n_ctx)))
        limit, seed = data.draw(st.integers(1, 20)), data.draw(st.one_of(st.none(), seeds))
        group.append(replace(first, prompt=prompt, max_tokens=limit, seed=seed))
    n_slots = data.draw(st.integers(1, len(group)))
    fault = Fault(data.draw(st.sampled_from(WAYS)), data.draw(st.integers(0, 6)), lasts=data.draw(st.booleans()))
    machine = data.draw(machines(n_slots, n_slots))
    world = World(group, fault, machine, with_model=data.draw(st.booleans()))
    world.check()
    world.check_after()


def four(max_tokens: int = 12) -> list[Request]:
    first = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=max_tokens)
    return [replace(first, prompt=(1, 2, 3, i)) for i in range(4)]


@pytest.mark.parametrize("kind", [RollbackKind.TRIM, RollbackKind.WHOLE])
@pytest.mark.parametrize("after", [0, 2, 5])
@pytest.mark.parametrize("way", WAYS)
def test_each_fault_does_happen(way: str, after: int, kind: RollbackKind) -> None:
    machine = Machine(n_seq_max=4, kind=kind)
    world = World(four(), Fault(way, after if way != "begin" else 0), machine, with_model=True)
    world.check()
    assert world.fault.happened
    expected = {"token": DrafterError}.get(way, InjectedError)
    assert world.running[0].result.finish is Finish.ERROR
    again = World(four(), Fault(way, after if way != "begin" else 0), machine, with_model=True)
    with pytest.raises(expected):
        list(again.running[0])


@pytest.mark.parametrize("lasts", [True, False])
def test_what_was_decided_beside_a_drafter_that_fails_is_heard(*, lasts: bool) -> None:
    """The drafter fails when it hears of the second sequence's draft; the first one's is kept already."""
    group = four()
    world = World([group[1], group[0], group[2]], Fault("accept", 0, lasts), Machine(n_seq_max=3), with_model=False)
    bad = world.running[1]._request
    slots = world.place.scheduler.slots
    world.fault.is_bad = lambda seq_id: slots[seq_id].request is bad
    with pytest.raises(InjectedError):
        list(world.running[1])
    assert world.running[1].result.sources[-1:] == ["unknown"]  # committed, with no chunk
    for i, request in ((0, group[1]), (2, group[2])):
        heard = [token for chunk in world.running[i] for token in chunk.tokens]
        assert tuple(heard) == plain_decode(request).tokens


def test_settings_of_slots_are_their_own(make: Make) -> None:
    """Nothing that one request asks for reaches another one beside it."""
    kinds: list[dict[str, Any]] = [
        {},
        {"sampling": SamplingConfig(temperature=1.0, seed=5)},
        {"sampling": SamplingConfig(temperature=0.8, seed=6, repeat_penalty=1.4), "rule": "rejection"},
        {"logprobs": True, "n_top": 2},
        {"stop": "a"},
        {"drafting": pyspec.engine.Drafting("none")},
        {"drafting": pyspec.engine.Drafting("draft-simple", n_max=1)},
        {"drafting": pyspec.engine.Drafting(n_max=2, n_min=2)},
        {"drafting": pyspec.engine.Drafting(p_min=0.9)},
        {"grammar": pyspec.Grammar.regex("[a-z ]{5,40}")},
    ]
    alone, shared = make("ngram-simple,draft-simple", 1), make("ngram-simple,draft-simple", 4)
    expected = [alone.generate(prompt(3), max_tokens=24, **kind) for kind in kinds]
    with Held(shared):
        streams = [shared.stream(prompt(3), max_tokens=24, **kind) for kind in kinds]
    for stream, wanted, kind in zip(streams, expected, kinds, strict=True):
        with contextlib.closing(stream):
            list(stream)
        found = stream.result
        if kind.get("rule") != "rejection":  # whose draws depend on the drafts
            assert (found.tokens, found.text, found.finish) == (wanted.tokens, wanted.text, wanted.finish)
        assert (len(found.logprobs), len(found.top)) == (len(wanted.logprobs), len(wanted.top))
        drafting = kind.get("drafting", pyspec.engine.Drafting())
        for name, stats in found.drafters.items():
            assert drafting.allows(name) or stats.n_asked == 0
            assert drafting.n_max is None or len(stats.drafted_at) <= drafting.n_max
    assert idle(shared)
