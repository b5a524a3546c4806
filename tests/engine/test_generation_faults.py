"""What fails in a generation, and who watches it: nothing is lost, and the next request is whole."""

from __future__ import annotations

import math

import pytest

from pyspec.config import SamplingConfig
from pyspec.engine import Generation, RunInfo
from pyspec.engine.generation import Reply
from pyspec.engine.request import Ended
from pyspec.engine.request import Request as EngineRequest
from pyspec.engine.status import engine_status
from pyspec.errors import SpeculationError
from pyspec.speculation import Finish, Outcome
from tests.engine.test_generation import Recorder, busy_table, check_equals, check_settled
from tests.fakes import Fuse, HashLogits, InjectedError
from tests.playing import NgramSpec, ScriptedSpec, Seat, Table
from tests.reference import Request
from tests.scripted import Move
from tests.workplace import generation, workplace


@pytest.mark.parametrize(
    ("error", "heard"),
    [(InjectedError, InjectedError), (KeyboardInterrupt, SpeculationError), (SystemExit, SpeculationError)],
)
@pytest.mark.parametrize(
    ("point", "at"), [("decode", 0), ("decoded", 3), ("trim", 1), ("scripted-0.begin", 0), ("scripted-0.draft", 2)]
)
def test_after_an_error_the_result_says_so_and_the_next_request_is_whole(
    point: str, at: int, error: type[BaseException], heard: type[Exception]
) -> None:
    request = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=20)
    table = Table([request], [ScriptedSpec((Move(), Move(2, (0,)), Move(3)))], fuse=Fuse(point, at, error))
    place, seen = workplace(table), Recorder()
    running = generation(place, request, observer=seen)
    with pytest.raises(heard) as caught:
        list(running)
    assert isinstance(caught.value, error) or isinstance(caught.value.__cause__, error)
    assert running.result.finish is Finish.ERROR
    assert seen.ends == [Finish.ERROR]
    place.settle()
    plain = table.seats[0].plain.tokens
    assert tuple(running.result.tokens) == plain[: len(running.result.tokens)]
    assert table.target.memory.length(0) == 0
    again = generation(place, request)
    check_equals(list(again), again.result, table.seats[0].plain)


def test_learning_from_a_request_takes_nothing_away_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=20)
    table = Table([request], [NgramSpec(2, 3)])
    place, ends = workplace(table), list[tuple[int, list[int]]]()

    def fail(seq_id: int, tokens: list[int]) -> None:
        ends.append((seq_id, list(tokens)))
        raise InjectedError

    monkeypatch.setattr(place.scheduler.chain, "end", fail)
    plain = table.seats[0].plain
    for _ in range(2):
        running = generation(place, request)
        check_equals(list(running), running.result, plain)
    assert ends == [(0, [1, 2, 3, *plain.tokens[:-1]])] * 2
    assert "could not learn" in caplog.text


@pytest.mark.parametrize("wants", [False, True])
def test_what_is_not_known_of_tokens_has_its_place(wants: bool) -> None:  # noqa: FBT001
    seat = Seat(Request(HashLogits(3, 8), 8, (1, 2), max_tokens=4), 0, Fuse())
    seat.sequence.wants_logprobs, seat.sequence.n_top = wants, int(wants)
    request = EngineRequest(seat.sequence, [1, 2], SamplingConfig(), tell=lambda _event: None)
    reply = Reply(request, RunInfo("m", None, {}, {}, [1, 2]), lambda _token: b"x", None)
    reply.take(Ended(Finish.CANCELLED, rest=(5, 6), text=b"xx"))
    result = reply.result
    assert (result.tokens, result.sources, result.text) == ([5, 6], ["unknown"] * 2, "xx")
    assert result.top == [()] * (2 * wants)
    assert result.to_dict()["logprobs"] == [None] * (2 * wants)
    assert all(map(math.isnan, result.logprobs))


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_counts_are_those_of_one_moment(every: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a round counts, others see what there was before it, or some time ago; at the end everything is there."""
    monkeypatch.setattr("pyspec.engine.scheduler._SHOWN_EVERY", every)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        status = engine_status(place.scheduler)
        scripted = status.drafters["scripted-0"]
        assert status.n_emitted_tokens == status.n_rounds + scripted.n_accepted
        seen.append((scripted.n_asked, table.chain.stats["scripted-0"].n_asked))

    table = Table([Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=20)], [ScriptedSpec((Move(2),))])
    place = workplace(table, news=look)
    running = generation(place, table.seats[0].request)
    for _chunk in running:
        n_emitted = len(running.result.tokens)
        assert engine_status(place.scheduler).n_emitted_tokens == (0 if every and n_emitted < 20 else n_emitted)
    assert len(seen) > 3
    assert all(known == (0 if every else counted - 1) for known, counted in seen)


@pytest.mark.parametrize("error", [InjectedError, SystemExit])
def test_a_drafter_that_fails_when_the_context_is_shifted(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=40, n_ctx=16)
    table = Table([request], [NgramSpec(1, 2)])
    place = workplace(table, n_keep=2)

    def rebegin(*_arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(table.chain, "rebegin", rebegin)
        running = generation(place, request)
        with pytest.raises((InjectedError, SpeculationError)):
            list(running)
    assert running.result.finish is Finish.ERROR
    again = generation(place, request)
    list(again)
    assert again.result.finish is Finish.LENGTH


@pytest.mark.parametrize("at", [0, 5, 9])
def test_an_error_of_the_sampler_is_undone(at: int) -> None:
    table = busy_table()
    place, request = workplace(table), table.seats[0].request
    running = generation(place, request, fuse=Fuse("sampled", at))
    with pytest.raises(InjectedError):
        list(running)
    plain = table.seats[0].plain.tokens
    assert tuple(running.result.tokens) == plain[: len(running.result.tokens)]
    assert table.target.memory.length(0) == 0, "what an error leaves is in doubt"
    again = generation(place, request)
    check_equals(list(again), again.result, table.seats[0].plain)


def test_observers_hear_of_every_round() -> None:
    table = busy_table()
    seen = Recorder()
    running: Generation = generation(workplace(table), table.seats[0].request, observer=seen)
    list(running)
    (info,) = seen.infos
    assert (info.model, info.draft_model, info.prompt_tokens) == ("target.gguf", None, [1, 2, 3])
    assert info.speculation["drafters"] == ["scripted-0", "draft-simple"]
    assert info.sampling["seed"] is None
    assert [token for outcome in seen.rounds for token in outcome.emitted] == running.result.tokens
    assert seen.ends == [Finish.LENGTH]


def test_an_observer_that_raises_ends_the_generation() -> None:
    class Broken(Recorder):
        def round(self, outcome: Outcome) -> None:
            super().round(outcome)
            if len(self.rounds) == 2:
                raise InjectedError

    table = busy_table()
    place, seen = workplace(table), Broken()
    running = generation(place, table.seats[0].request, observer=seen)
    with pytest.raises(InjectedError):
        list(running)
    assert seen.ends == [Finish.ERROR]
    place.settle()
    check_settled(table, running.result)
