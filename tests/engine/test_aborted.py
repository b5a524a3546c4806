"""A computation that is stopped midway changes nothing that anybody says, in its own slots or in those beside them."""

from __future__ import annotations

import random
from typing import Any

import pytest

import pyspec
from tests.engine.test_engine_native import same_or_tied
from tests.pairs import CHAIN_PAIRS, LONG, MEDIUM, SHORT, OpenZoo, Pair, sizes
from tests.pulled import PulledEngine

# Those that end early leave holes between the states of those that go on.
REQUESTS = [(SHORT, 14), ([1, 264, 300], 3), (MEDIUM, 24), (LONG, 8), ([5, 60, 75], 1), ([1, 75, 60], 20)]
N_SLOTS = 4
SHARE = 0.15


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
    streams = [engine.stream(prompt, max_tokens=limit, n_top=1) for prompt, limit in REQUESTS]
    while engine.place.busy:
        engine.place.scheduler.step()
    for stream in streams:
        for _chunk in stream:
            pass
    results = [stream.result for stream in streams]
    following = [[*prompt, *result.tokens] for (prompt, _), result in zip(REQUESTS, results, strict=True)]
    return [*results, *(engine.generate(prompt, max_tokens=4, n_top=1) for prompt in following)]


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
