"""The engine's own loop over fakes: how tokens are grouped into rounds changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.config import SamplingConfig
from pyspec.engine import Chunk, Result, RunInfo
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import Finish, Outcome
from tests.fakes import Decoded, HashLogits, cycle_logits
from tests.playing import DrafterSpec, DraftModelSpec, NgramSpec, ScriptedSpec, Table
from tests.reference import Plain, Request, plain_decode
from tests.scripted import Move
from tests.strategies import chains, machines, prompts, requests
from tests.workplace import generation, generation_of, workplace


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
