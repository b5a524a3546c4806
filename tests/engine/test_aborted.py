"""A computation that is stopped midway changes nothing that anybody says, in its own slots or in those beside them."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import pyspec
from pyspec import Finish
from pyspec.engine.worker import Workshop
from tests.at_work import Held, Slow
from tests.engine.conftest import Make
from tests.engine.test_engine_native import same_or_tied
from tests.helpers import PROMPT
from tests.pairs import CHAIN_PAIRS, LONG, MEDIUM, SHORT, OpenZoo, Pair, sizes
from tests.pulled import PulledEngine

# Those that end early leave holes between the states of those that go on.
REQUESTS = [(SHORT, 14), ([1, 264, 300], 3), (MEDIUM, 24), (LONG, 8), ([5, 60, 75], 1), ([1, 75, 60], 20)]
N_SLOTS = 4
SHARE = 0.15
PAGES = [1, *(20 + i % 90 for i in range(200))]


def let_stop(context: Any, rng: random.Random) -> None:
    """Stop some decodes of a context midway."""
    decode = context.decode

    def stopping(batch: pyspec.Batch) -> pyspec.Rows:
        context.request_abort(value=rng.random() < SHARE)
        try:
            rows: pyspec.Rows = decode(batch)
        finally:
            context.request_abort(value=False)
        return rows

    context.decode = stopping


def draft_contexts(engine: PulledEngine) -> list[Any]:
    """Return the draft models at work."""
    return [getattr(each, "_context") for each in engine.chain.drafters if hasattr(each, "_context")]  # noqa: B009


def play(engine: PulledEngine) -> list[pyspec.Result]:
    """Play the requests, and those that follow each of them."""
    streams = [engine.stream(prompt, max_tokens=limit, n_top=4) for prompt, limit in REQUESTS]
    while engine.place.busy:
        engine.place.scheduler.step()
    for stream in streams:
        for _chunk in stream:
            pass
    results = [stream.result for stream in streams]
    following = [[*prompt, *result.tokens] for (prompt, _), result in zip(REQUESTS, results, strict=True)]
    return [*results, *(engine.generate(prompt, max_tokens=4, n_top=4) for prompt in following)]


@pytest.mark.parametrize("pair", CHAIN_PAIRS, ids=str)
def test_decodes_that_are_stopped_change_no_token(pair: Pair, open_zoo: OpenZoo) -> None:
    speculation = pair.speculation(open_zoo)
    with PulledEngine(open_zoo(pair.target), speculation=speculation, context=sizes()) as engine:
        alone = play(engine)
    settings: dict[str, Any] = {"speculation": speculation, "context": sizes(N_SLOTS), "n_slots": N_SLOTS}
    for seed in range(5):
        for of_draft_models in (False, True):
            with PulledEngine(open_zoo(pair.target), **settings) as engine:
                for context in draft_contexts(engine) if of_draft_models else [engine.context]:
                    let_stop(context, random.Random(seed))  # noqa: S311 - the same in each run
                for expected, result in zip(alone, play(engine), strict=True):
                    same_or_tied(expected, result)


# Requests that are left


def test_closing_aborts_a_long_decode(make: Make) -> None:
    engine = make(n_slots=1)
    expected = engine.generate(PAGES, max_tokens=4).tokens
    engine.call(lambda workshop: workshop.scheduler.slots[0].forget())
    slow = Slow(engine)
    stream = engine.stream(PAGES)
    slow.begun.wait()
    stream.close()
    assert (stream.result.finish, stream.result.tokens) == (Finish.CANCELLED, [])
    assert (slow.n_decodes, slow.n_aborted) == (1, 1)
    assert engine.generate(PAGES, max_tokens=4).tokens == expected


def _context_of_drafter(workshop: Workshop) -> Any:
    drafter: Any = workshop.chain.drafters[0]
    return drafter._context


def test_closing_aborts_a_long_decode_of_a_draft_model(make: Make) -> None:
    engine, alone = make("draft-simple", 1), make("draft-simple", 1)
    slow = Slow(engine, _context_of_drafter)
    stream = engine.stream([1, 2, 3, *PAGES])
    slow.begun.wait()
    stream.close()
    assert (stream.result.finish, slow.n_decodes, slow.n_aborted) == (Finish.CANCELLED, 1, 1)
    result, expected = (each.generate(PAGES, max_tokens=30) for each in (engine, alone))
    assert (result.tokens, result.stats.n_accepted) == (expected.tokens, expected.stats.n_accepted)
    assert result.stats.n_accepted > 10


def test_closing_one_of_two_does_not_abort_the_other(make: Make) -> None:
    engine = make()
    expected = engine.generate(PROMPT, max_tokens=4).tokens
    slow = Slow(engine)
    with Held(engine):
        left, other = engine.stream(PAGES), engine.stream(PROMPT, max_tokens=4)
    slow.begun.wait()
    closer = threading.Thread(target=left.close)
    closer.start()
    while not left._request.cancelled:
        pass
    slow.go_on()
    closer.join()
    assert [token for chunk in other for token in chunk.tokens] == expected
    assert (left.result.finish, slow.n_asked, slow.n_aborted) == (Finish.CANCELLED, 0, 0)


def test_when_all_of_a_round_are_cancelled_it_is_aborted(make: Make) -> None:
    engine = make()
    slow = Slow(engine)
    first = engine.stream(PAGES)
    slow.begun.wait()
    waiting = engine.stream(PROMPT, max_tokens=3)
    first.close()
    assert slow.n_aborted == 1
    assert len(list(waiting)) == 3


@pytest.mark.parametrize("name", ["target-llama", "target-lfm2", "target-mamba"])
def test_a_slot_beside_one_that_is_left_keeps_its_tokens(make: Make, open_zoo: OpenZoo, name: str) -> None:
    """Recurrent states move in a decode, and all are lost when it is aborted; so an answer's is not, but a prompt's."""
    engine, trims = make(model=open_zoo(name)), name == "target-llama"
    expected = engine.generate(PROMPT, max_tokens=4).tokens
    stream = engine.stream(PAGES)
    next(stream)
    for reads in (False, True):
        slow = Slow(engine)
        stream = engine.stream(PAGES) if reads else stream
        slow.begun.wait()
        closer = threading.Thread(target=stream.close)
        closer.start()
        while not stream._request.cancelled:
            pass
        if not (reads or trims):
            slow.go_on()
        closer.join()
        assert (slow.n_asked, slow.n_aborted) == ((1, 1) if reads or trims else (0, 0))
        again = engine.generate(PROMPT, max_tokens=4)
        assert again.tokens == expected
        assert again.stats.n_reused == (len(PROMPT) - 1 if trims or not reads else 0)
