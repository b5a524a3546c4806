"""What must hold of every request, on every kind of real memory, whatever is drafted, left or raised.

Tests beside each other are of the same property: here, and over fakes, where all is exact (``tests/speculation`` unless
another folder is named).

== ======================================================= ====================================================
 1 at temperature 0 the output is that of no drafter, of    test_the_output_is_that_of_plain_decoding_alone;
   any slot, and of no neighbours                           test_losslessness, test_properties
 2 with a seed too, under "match" with one draw a token,    test_the_output_is_that_of_plain_decoding_alone;
   and "coupled" from seed, position and row alone          test_losslessness, test_rules, test_exactness
 3 everything ends at the committed length                  test_a_round_that_raises_is_undone,
                                                            test_a_request_that_is_left_leaves_nothing;
                                                            test_rollback, test_properties, engine/test_generation
 4 each round commits a token; a replay decides nothing     RealTable.round in every test here, and ``n_calls`` in
                                                            test_the_output_is_that_of_plain_decoding_alone;
                                                            test_rollback, test_rules, test_properties
 5 how tokens are grouped into rounds changes nothing       test_text_and_end_do_not_depend_on_the_rounds;
                                                            test_round, engine/test_generation
 6 what a token is chosen from is what it is in plain       ``chosen_from`` in two tests here;
   decoding, with penalties, bias and grammar               test_properties, test_losslessness, engine/test_grammar
 7 so are log-probabilities                                 test_the_output_is_that_of_plain_decoding_alone;
                                                            test_properties
 8 counters add up                                          test_the_output_is_that_of_plain_decoding_alone;
                                                            test_losslessness, test_properties
 9 a request leaves nothing to the next one                 test_a_request_that_is_left_leaves_nothing;
                                                            test_properties, engine/test_generation
10 limits cut the draft before it is decoded                test_limits_cut_the_draft;
                                                            test_losslessness, test_round, test_properties
== ======================================================= ====================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pyspec
from pyspec import Finish, SamplingConfig
from pyspec.drafters import Chain, Resources, create
from pyspec.speculation import GenerationStats, Outcome
from pyspec.speculation.draft import Drafter
from tests.fakes import Fuse, InjectedError
from tests.pairs import OpenZoo, check_statistics
from tests.pulled import PulledEngine
from tests.real_memories import (
    MEMORIES,
    NEVER_SAID,
    RULES,
    Asked,
    RealMemory,
    RealSeat,
    RealTable,
    Recorder,
    at_context,
    failing,
    played,
    scripted,
)
from tests.scripted import Move, Scripted

Place = tuple[RealMemory, pyspec.Context]
MakeEngine = Callable[..., PulledEngine]
MakeDrafter = Callable[[pyspec.Context], Drafter]

N_CTX, N_OUTPUTS, N_SEQUENCES, NO_LIMIT = 64, 15, 3, 2**31 - 1
END = 2  # </s>
PLACES = {
    "trim": MEMORIES["trim"]._replace(target="target-llama-eog"),
    "window": MEMORIES["window"],
    "whole": MEMORIES["whole"],
    "hybrid": MEMORIES["hybrid"],
    "bounded": MEMORIES["bounded"]._replace(settings={"n_rs_seq": 4}),
}
DRAWN = {"temperature": 2.0, "top_k": 0, "top_p": 1.0}
PENALISED: dict[str, Any] = {
    "repeat_penalty": 1.2,
    "frequency_penalty": 0.4,
    "dry_multiplier": 0.8,
    "dry_sequence_breakers": (),
    "logit_bias": {75: 3.0, 112: -np.inf},
}
SAMPLINGS: list[dict[str, Any]] = [{}, DRAWN, PENALISED, {**DRAWN, **PENALISED}, {**DRAWN, "min_p": 0.05}]
POINTS = ("decode", "half-decoded", "decoded", "sample", "sampled", "scripted.draft", "scripted.accept")

few = settings(max_examples=16, deadline=None, derandomize=True)
tokens = st.one_of(st.integers(56, 330), st.sampled_from((60, 75, 112, 264)))


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, open_zoo: OpenZoo) -> Iterator[Place]:
    """A kind of memory, and a small context of it for all tests here."""
    memory = PLACES[request.param]
    small = {"n_ctx": N_CTX * N_SEQUENCES, "n_batch": 32, "n_outputs_max": N_OUTPUTS}
    with memory.open(open_zoo, N_SEQUENCES, **small) as context:
        yield memory, context


@pytest.fixture(scope="module")
def engine(place: Place, open_zoo: OpenZoo) -> MakeEngine:
    """Open an engine on that kind of memory, as large as a sequence's part of it."""
    memory, _context = place

    def make(*drafters: Drafter) -> PulledEngine:
        return memory.engine(open_zoo, *drafters, n_ctx=N_CTX, n_batch=32, n_outputs_max=N_OUTPUTS)

    return make


@pytest.fixture(scope="module")
def draft_model(open_zoo: OpenZoo) -> MakeDrafter:
    """Make a drafter with a model for all sequences of a context."""

    def make(context: pyspec.Context) -> Drafter:
        resources = Resources(context.model, context, open_zoo("draft-llama"), n_sequences=N_SEQUENCES)
        return create("draft-simple", resources=resources, n_max=3, n_threads=1)

    return make


@st.composite
def moves(draw: st.DrawFn) -> list[Move]:
    """Right, wrong, empty, too long, half right, and with tokens that end a generation."""
    tails = st.lists(st.sampled_from((NEVER_SAID, NEVER_SAID, END, 60, 75)), max_size=4).map(tuple)
    each = st.builds(Move, st.sampled_from((0, 0, 1, 2, 3, 5, 40)), tails)
    return draw(st.lists(each, min_size=1, max_size=6))


@st.composite
def requests(draw: st.DrawFn, most: int = NO_LIMIT) -> list[Asked]:
    """One to three requests of different lengths under one rule."""
    rule = draw(st.sampled_from(RULES))
    sampling = draw(st.sampled_from(SAMPLINGS))
    lengths = st.sampled_from([length for length in (0, 1, 2, 3, 9, 24, NO_LIMIT) if length <= most])
    return [
        Asked(
            (1, *draw(st.lists(tokens, max_size=20))),
            draw(lengths),
            rule,
            SamplingConfig(**sampling, seed=draw(st.integers(0, 99))),
        )
        for _ in range(draw(st.integers(1, N_SEQUENCES)))
    ]


def plainly(place: Place, asked: list[Asked]) -> list[RealSeat]:
    """Decode each request plainly and alone; requests whose most likely tokens are tied somewhere do not count."""
    memory, context = place
    plains = [played(context, one) for one in asked]
    for plain in plains:
        for outcome in plain.outcomes:
            best, second = outcome.top[0][:2]
            assume(best[1] - second[1] > memory.near)
    return plains


def check_chosen_from(memory: RealMemory, plain: RealSeat, seat: RealSeat) -> None:
    """Each token was chosen from the probabilities of plain decoding."""
    n_emitted = len(seat.emitted)
    ours, theirs = plain.sequence.sampler.chosen_from, seat.sequence.sampler.chosen_from
    assert len(theirs) == n_emitted
    np.testing.assert_allclose(theirs, ours[:n_emitted], atol=memory.near)


@few
@given(data=st.data())
def test_the_output_is_that_of_plain_decoding_alone(
    place: Place, draft_model: MakeDrafter, data: st.DataObject
) -> None:
    memory, context = place
    asked = data.draw(requests())
    plains = plainly(place, asked)
    drafters: list[Drafter] = [scripted(plains, data.draw(moves()))]
    if data.draw(st.booleans()):
        drafters.append(create("ngram-simple", size_n=1, size_m=5))
    if data.draw(st.booleans()):
        drafters.append(draft_model(context))
    with contextlib.closing(Chain(drafters)) as chain:
        table = RealTable(context, asked, chain)
        table.begin()
        table.play()
    counted = []
    for plain, seat in zip(plains, table.seats, strict=True):
        assert (seat.emitted, seat.finish, seat.text) == (plain.emitted, plain.finish, plain.text)
        assert seat.sequence.sampler.n_calls == len(seat.emitted), "one draw for each token, and none to replay"
        check_chosen_from(memory, plain, seat)
        np.testing.assert_allclose(seat.logprobs, plain.logprobs, atol=memory.near)
        counted.append(GenerationStats())
        for outcome in seat.outcomes:
            counted[-1].count(outcome)
    check_statistics(counted, chain.stats)


@few
@given(data=st.data())
def test_text_and_end_do_not_depend_on_the_rounds(place: Place, engine: MakeEngine, data: st.DataObject) -> None:
    """The engine's loop, with a stop string out of the text itself."""
    (asked, *_rest) = data.draw(requests(24))
    unstopped = plainly(place, [asked])[0].text.decode("utf-8", errors="replace")
    first = data.draw(st.integers(0, max(0, len(unstopped) - 1)))
    stop = unstopped[first : first + data.draw(st.integers(1, 4))] or "never"
    assume("\ufffd" not in stop)
    stopping = replace(asked, stops=(stop, "never said"))
    (plain,) = plainly(place, [stopping])
    with engine(scripted([plain], data.draw(moves()))) as one:
        stream = stopping.stream(one)
        chunks = list(stream)
    result = stream.result
    assert (result.tokens, str(result.finish)) == (plain.emitted, plain.finish)
    assert result.text == plain.text.decode("utf-8", errors="replace") == "".join(chunk.text for chunk in chunks)
    assert (str(result.finish) == "stop") == (stop in unstopped)
    assert [source for chunk in chunks for source in chunk.sources] == result.sources
    assert len(result.sources) == len(result.tokens)


@few
@given(data=st.data())
def test_a_round_that_raises_is_undone(place: Place, draft_model: MakeDrafter, data: st.DataObject) -> None:
    """Wherever it raises: what was kept is kept, the rest is as before, and playing on gives plain output."""
    memory, context = place
    asked = data.draw(requests(24))
    plains = plainly(place, asked)
    script, error = data.draw(moves()), data.draw(st.sampled_from((InjectedError, KeyboardInterrupt)))
    for point in data.draw(st.lists(st.sampled_from(POINTS), min_size=1, max_size=3, unique=True)):
        fuse = Fuse(point, data.draw(st.integers(0, 5)), error)
        fuse.armed = False
        with contextlib.closing(Chain([scripted(plains, script, fuse), draft_model(context)])) as chain:
            table = RealTable(context, asked, chain, fuse)
            table.begin()
            fuse.armed = True
            for plain, seat in zip(plains, table.seats, strict=True):
                seat.n_most = len(plain.emitted)
            with failing(context, fuse):
                with contextlib.suppress(error):
                    table.play()
                table.check()
                table.play()
        for plain, seat in zip(plains, table.seats, strict=True):
            assert seat.emitted == plain.emitted
            check_chosen_from(memory, plain, seat)


class Raises(Recorder):
    """An observer that raises after so many rounds."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def round(self, outcome: Outcome) -> None:
        super().round(outcome)
        if len(self.outcomes) > self._at:
            raise InjectedError


def lookups() -> list[Drafter]:
    """Return drafters that remember."""
    return [create("ngram-simple", size_n=1, size_m=4), create("ngram-cache")]


def rounds(engine: PulledEngine, asked: Asked) -> list[Any]:
    """Return all that can be seen of the rounds of a generation."""
    recorder = Recorder()
    asked.generate(engine, recorder)
    return [(outcome.position, outcome.proposal, outcome.emitted, outcome.top) for outcome in recorder.outcomes]


@few
@given(data=st.data())
def test_a_request_that_is_left_leaves_nothing(place: Place, engine: MakeEngine, data: st.DataObject) -> None:
    """By closing it, or because an observer raises: the rounds of the next one are those that new drafters give."""
    (first, *_), (second, *_) = data.draw(requests(24)), data.draw(requests(24))
    plain, other = plainly(place, [first, second])
    n_rounds, closes = data.draw(st.integers(0, 6)), data.draw(st.booleans())
    observer = Raises(NO_LIMIT if closes else n_rounds)
    futures, script = {0: [*first.prompt, *plain.emitted]}, data.draw(moves())
    with engine(Scripted("scripted", futures, script), *lookups()) as one:
        with contextlib.suppress(InjectedError), first.stream(one, observer) as stream:
            for _, _chunk in zip(range(n_rounds if closes else NO_LIMIT), stream, strict=False):
                pass
        result = stream.result
        n_held = at_context(one, lambda context: context.memory.length(0))
        futures[0], script[:] = [*second.prompt, *other.emitted], [Move()]
        after = rounds(one, second)
    assert result.tokens == plain.emitted[: len(result.tokens)]
    if len(result.tokens) < len(plain.emitted):
        assert result.finish is (Finish.CANCELLED if closes else Finish.ERROR)
    if observer.outcomes:
        assert n_held <= len(first.prompt) + len(result.tokens) - 1
    with engine(*lookups()) as fresh:
        for ours, theirs in zip(after, rounds(fresh, second), strict=True):
            assert ours[:-1] == theirs[:-1]
            for row, other_row in zip(ours[-1], theirs[-1], strict=True):  # what is not read again rounds otherwise
                assert dict(row) == pytest.approx(dict(other_row), abs=place[0].near)
    assert [token for _position, _proposal, emitted, _top in after for token in emitted] == other.emitted


@few
@given(asked=requests())
def test_limits_cut_the_draft(place: Place, asked: list[Asked]) -> None:
    """A drafter that always proposes more than fits; the context refuses a batch that is over a limit."""
    _memory, context = place
    plains = plainly(place, asked)
    table = RealTable(context, asked, Chain([scripted(plains, [Move(40), Move(0, (NEVER_SAID,) * 40)])]))
    table.begin()
    recorder = Recorder()
    with recorder.watching(context):
        table.play()
    for plain, seat in zip(plains, table.seats, strict=True):
        assert (seat.emitted, seat.finish) == (plain.emitted, plain.finish)
        for outcome in seat.outcomes:
            n_drafted = len(outcome.proposal.draft.tokens)
            assert outcome.position + n_drafted < N_CTX
            assert outcome.position + 1 + n_drafted < len(seat.asked.prompt) + seat.asked.max_tokens
    assert all(decoded.n_entries <= context.n_batch and len(decoded.rows) <= N_OUTPUTS for decoded in recorder.decodes)
