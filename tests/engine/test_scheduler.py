"""Many requests on one target: each gives what it gives alone, whatever the others do, and whatever memory held."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.config import SamplingConfig
from pyspec.engine import Generation
from pyspec.speculation import Drafting
from tests.fakes import Fuse
from tests.playing import ScriptedSpec, Seat, Table
from tests.reference import Request, plain_decode
from tests.strategies import chains, machines, prompts, requests, seeds
from tests.workplace import generation_of, workplace


@dataclass
class Arrival:
    """A request that comes after some steps, and what becomes of it."""

    request: Request
    step: int
    leaves_after: int | None  # chunks
    plain: bool


@st.composite
def arrivals(draw: st.DrawFn, first: Request) -> list[Arrival]:
    made = []
    for _ in range(draw(st.integers(1, 6))):
        prompt = draw(st.one_of(st.just(first.prompt), prompts(first.n_vocab, first.n_ctx)))
        if draw(st.booleans()):  # one that begins alike
            prompt = (first.prompt[: draw(st.integers(1, len(first.prompt)))] + prompt)[: first.n_ctx]
        request = replace(
            first, prompt=prompt, max_tokens=draw(st.integers(0, 20)), seed=draw(st.one_of(st.none(), seeds))
        )
        leaves = draw(st.one_of(st.none(), st.integers(0, 6)))
        made.append(Arrival(request, draw(st.integers(0, 12)), leaves, draw(st.booleans())))
    return made


def check(running: Generation, request: Request) -> None:
    plain, result = plain_decode(request), running.result
    assert result.finish is not None
    assert (tuple(result.tokens), result.text, result.finish.value) == (plain.tokens, plain.text, plain.finish)


@settings(max_examples=200, deadline=None)
@given(first=requests(), data=st.data())
def test_each_request_gives_what_it_gives_alone(first: Request, data: st.DataObject) -> None:
    n_slots = data.draw(st.integers(1, 4))
    specs = [spec for spec in data.draw(chains(first.n_vocab, first.n_ctx)) if not isinstance(spec, ScriptedSpec)]
    table = Table([first], specs, machine=data.draw(machines(n_slots, n_slots)))
    place = workplace(table, n_prefill=data.draw(st.integers(1, 8)))
    waiting = data.draw(arrivals(first))
    running: list[tuple[Arrival, Generation]] = []
    step = 0
    while waiting or place.busy:
        for arrival in [arrival for arrival in waiting if arrival.step <= step]:
            waiting.remove(arrival)
            seat = Seat(arrival.request, 0, Fuse())
            seat.sequence.drafting = Drafting("none") if arrival.plain else Drafting()
            running.append((arrival, generation_of(place, seat, SamplingConfig(presence_penalty=1.0))))
        place.scheduler.step()
        for arrival, each in running:
            if arrival.leaves_after is not None and len(each.result.tokens) >= arrival.leaves_after:
                each.close()
        step += 1
    for arrival, each in running:
        if arrival.leaves_after is None:
            list(each)
            check(each, arrival.request)
        said = plain_decode(arrival.request).tokens
        assert tuple(each.result.tokens) == said[: len(each.result.tokens)]
    status = place.scheduler.totals
    assert status.n_requests == len(running)
    assert all(slot.request is None for slot in place.scheduler.slots)
