"""The engine's own loop over fakes: how tokens are grouped into rounds changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.config import SamplingConfig
from pyspec.engine import Chunk, Generation, Result, RunInfo
from pyspec.engine.generation import Reply
from pyspec.engine.request import Ended
from pyspec.engine.request import Request as EngineRequest
from pyspec.engine.status import engine_status
from pyspec.errors import SpeculationError
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import Finish, Outcome
from tests.fakes import Decoded, Fuse, HashLogits, InjectedError, cycle_logits
from tests.playing import (
    DrafterSpec,
    DraftModelSpec,
    NgramSpec,
    ScriptedSpec,
    Seat,
    Table,
    generation,
    generation_of,
    workplace,
)
from tests.reference import Plain, Request, plain_decode
from tests.scripted import Move
from tests.strategies import chains, machines, prompts, requests


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.infos: list[RunInfo] = []
        self.rounds: list[Outcome] = []
        self.ends: list[Finish | None] = []

    def begin(self, info: RunInfo) -> None:
        self.infos.append(info)

    def round(self, outcome: Outcome) -> None:
        self.rounds.append(outcome)

    def end(self, result: Result) -> None:
        self.ends.append(result.finish)


def check_equals(chunks: list[Chunk], result: Result, plain: Plain) -> None:
    assert result.finish is not None
    assert (tuple(result.tokens), result.text, result.finish.value) == (plain.tokens, plain.text, plain.finish)
    assert "".join(chunk.text for chunk in chunks) == plain.text
    assert tuple(token for chunk in chunks for token in chunk.tokens) == plain.tokens
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + [result.finish]
    assert [source for chunk in chunks for source in chunk.sources] == result.sources
    assert len(result.sources) == len(plain.tokens)
    assert sum(source.startswith("draft:") for source in result.sources) == result.stats.n_accepted
    assert result.stats.n_emitted == len(plain.tokens) == result.stats.n_accepted + result.stats.n_rounds
    assert result.stats.n_prompt == len(result.prompt_tokens)


def check_settled(table: Table, result: Result) -> None:
    """Memory ends at the committed length, or at a checkpoint before it, wherever the generation was left."""
    said = [*result.prompt_tokens, *result.tokens]
    held = table.target.memory.tokens(0)
    assert held == tuple(said[: len(held)])
    assert len(held) == len(said) - 1 or (len(held) < len(said) - 1 and table.target.kind is not RollbackKind.TRIM)
    if table.draft_target is not None:
        held = table.draft_target.memory.tokens(0)
        assert held == tuple(said[: len(held)])
        assert len(held) <= len(said) - 1


@settings(max_examples=150)
@given(request=requests(), data=st.data())
def test_text_tokens_and_finish_are_those_of_plain_decoding(request: Request, data: st.DataObject) -> None:
    specs = data.draw(chains(request.n_vocab, request.n_ctx))
    table = Table([request], specs, machine=data.draw(machines(1, 1)))
    running = generation(workplace(table), request)
    check_equals(list(running), running.result, table.seats[0].plain)
    check_settled(table, running.result)


@settings(max_examples=60)
@given(request=requests(), data=st.data())
def test_a_request_leaves_nothing_to_the_next_one(request: Request, data: st.DataObject) -> None:
    following = replace(
        request,
        prompt=data.draw(prompts(request.n_vocab, request.n_ctx)),
        max_tokens=data.draw(st.integers(0, 20)),
        seed=data.draw(st.one_of(st.none(), st.integers(0, 99))),
    )
    specs = data.draw(chains(request.n_vocab, request.n_ctx))
    fresh = Table([following], specs)
    alone = Recorder()
    list(generation(workplace(fresh), following, observer=alone))

    table = Table([request], specs)
    place = workplace(table)
    with generation(place, request) as first:
        n_chunks = data.draw(st.integers(0, 8))
        for _, _chunk in zip(range(n_chunks), first, strict=False):
            pass
    place.settle()
    table.futures[0] = plain_decode(following).history
    after = Recorder()
    second = generation(place, following, observer=after)
    check_equals(list(second), second.result, fresh.seats[0].plain)
    # The moves of scripts go round and round, and some drafters are asked to remember.
    if not any(isinstance(spec, ScriptedSpec) or getattr(spec, "share", False) for spec in specs):
        assert [drafted(outcome) for outcome in after.rounds] == [drafted(outcome) for outcome in alone.rounds]


def drafted(outcome: Outcome) -> tuple[object, ...]:
    return outcome.position, outcome.proposal, outcome.n_accepted, outcome.emitted


PIECES = {0: b"a", 1: b"b", 2: b"\xf0\x9f", 3: b"\x98\x80", 4: b"c", 5: "é".encode(), 6: b"\xc3", 7: b""}


def talk(*, max_tokens: int = 24, stops: tuple[bytes, ...] = (), n_ctx: int = 64) -> Request:
    """Text whose characters and stop strings span tokens."""
    logits = cycle_logits([0, 2, 3, 1, 6, 4, 5, 7], 8)
    return Request(logits, 8, (7,) * 8, max_tokens=max_tokens, n_ctx=n_ctx, stops=stops, pieces=PIECES)


def streamed(request: Request, specs: list[DrafterSpec]) -> tuple[list[Chunk], Result]:
    table = Table([request], specs)
    running = generation(workplace(table), request)
    chunks = list(running)
    check_equals(chunks, running.result, table.seats[0].plain)
    return chunks, running.result


@pytest.mark.parametrize("n_right", [0, 1, 2, 3, 4, 5])
def test_a_character_may_span_tokens_and_rounds(n_right: int) -> None:
    chunks, result = streamed(talk(), [ScriptedSpec((Move(n_right),))])
    assert result.text.count("😀") == 3
    assert "\ufffd" in result.text  # a lone \xc3 is no character
    assert all(chunk.text in result.text for chunk in chunks)


def test_text_waits_until_it_is_final() -> None:
    chunks, result = streamed(talk(stops=(b"ba",)), [])
    texts = dict(zip([chunk.tokens[0] for chunk in chunks], [chunk.text for chunk in chunks], strict=False))
    assert texts[2] == ""
    assert texts[3] == "😀"
    assert texts[1] == ""  # "b" may become "ba"
    assert result.finish is Finish.LENGTH
    assert chunks[0].pieces == (b"a",)


@pytest.mark.parametrize("specs", [[], [ScriptedSpec((Move(3),))]])
def test_held_text_comes_with_the_last_chunk_when_the_context_is_full(specs: list[DrafterSpec]) -> None:
    request = talk(max_tokens=1000, stops=("é!".encode(),), n_ctx=14)
    chunks, result = streamed(request, specs)
    assert result.finish is Finish.CONTEXT
    assert chunks[-1].text == "é"
    assert (chunks[-1].tokens, chunks[-1].sources, chunks[-1].pieces) == ((), (), ())


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_few_tokens(max_tokens: int) -> None:
    chunks, result = streamed(talk(max_tokens=max_tokens), [ScriptedSpec((Move(4),))])
    assert result.finish is Finish.LENGTH
    assert len(result.tokens) == max_tokens
    assert chunks[-1].finish is Finish.LENGTH


def test_the_prompt_is_read_in_the_same_pieces_with_and_without_drafters() -> None:
    request = Request(HashLogits(1, 8), 8, tuple(i % 8 for i in range(30)), max_tokens=5)

    def pieces(*specs: DrafterSpec) -> list[Decoded]:
        table = Table([request], specs)
        list(generation(workplace(table), request))
        return table.target.decodes[:4]

    plain = pieces()
    assert [(len(decoded.tokens), decoded.n_outputs) for decoded in plain] == [(8, 0), (8, 0), (8, 0), (6, 1)]
    for drafted in (pieces(NgramSpec(1, 3)), pieces(DraftModelSpec(None))):
        assert drafted[:3] == plain[:3]
        assert drafted[3].tokens[:6] == plain[3].tokens


@pytest.mark.parametrize(("penalty", "heard"), [(0.0, []), (1.0, [1, 2])])
def test_only_penalties_make_the_sampler_hear_of_the_prompt(penalty: float, heard: list[int]) -> None:
    request = Request(HashLogits(1, 8), 8, (1, 2), max_tokens=3)
    table = Table([request])
    running = generation_of(workplace(table), table.seats[0], SamplingConfig(frequency_penalty=penalty))
    list(running)
    assert table.seats[0].sampler.seen == heard + running.result.tokens


def test_top_tokens_are_reported_per_emitted_token() -> None:
    request = Request(HashLogits(1, 8), 8, (1,), max_tokens=9)
    table = Table([request], [ScriptedSpec((Move(2),))])
    running = generation(workplace(table), request, n_top=2)
    list(running)
    assert len(running.result.top) == 9
    assert [row[0][0] for row in running.result.top] == running.result.tokens


# Leaving early


def busy_table() -> Table:
    request = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3), max_tokens=20)
    specs: list[DrafterSpec] = [
        ScriptedSpec((Move(), Move(2, (0,)), Move(3))),
        DraftModelSpec(HashLogits(4, 8, order=2)),
    ]
    return Table([request], specs)


def test_closing_after_any_chunk_leaves_the_committed_length() -> None:
    table = busy_table()
    n_all = len(list(generation(workplace(table), table.seats[0].request)))
    assert n_all > 5
    for n_chunks in range(1, n_all):
        close_after(n_chunks)


def close_after(n_chunks: int) -> None:
    table = busy_table()
    request, plain, place, seen = table.seats[0].request, table.seats[0].plain, workplace(table), Recorder()
    running = generation(place, request, observer=seen)
    for _ in range(n_chunks):
        next(running)
    assert place.busy
    running.close()
    running.close()
    assert not place.busy
    assert running.result.finish is Finish.CANCELLED
    assert seen.ends == [Finish.CANCELLED]
    assert len(seen.rounds) == n_chunks
    assert tuple(running.result.tokens) == plain.tokens[: len(running.result.tokens)]
    check_settled(table, running.result)
    assert list(running) == []
    again = generation(place, request)
    check_equals(list(again), again.result, plain)


def test_closing_before_the_first_chunk_is_a_cancellation_too() -> None:
    table = busy_table()
    place = workplace(table)
    running = generation(place, table.seats[0].request)
    running.close()
    assert running.result.finish is Finish.CANCELLED
    assert not place.busy
    assert table.target.decodes == []


def test_closing_after_the_end_changes_nothing() -> None:
    table = busy_table()
    running = generation(workplace(table), table.seats[0].request)
    list(running)
    running.close()
    assert running.result.finish is Finish.LENGTH


def test_forgetting_a_generation_ends_it() -> None:
    table = busy_table()
    place, seen = workplace(table), Recorder()
    running = generation(place, table.seats[0].request, observer=seen)
    next(running)
    result = running.result
    del running
    place.scheduler.step()
    assert not place.busy
    assert seen.ends == [Finish.CANCELLED]
    check_settled(table, result)


def test_the_next_one_waits_for_its_turn() -> None:
    table = busy_table()
    place, request = workplace(table), table.seats[0].request
    with generation(place, request) as running:
        next(running)
        waiting = generation(place, request)
        assert place.scheduler.n_waiting == 1
        rest = list(running)
    assert rest
    assert tuple(running.result.tokens) == table.seats[0].plain.tokens
    check_equals(list(waiting), waiting.result, table.seats[0].plain)


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
