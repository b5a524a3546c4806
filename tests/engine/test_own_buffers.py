"""Slots that each have a buffer of their own: what one of them drops is right, whoever is decoded beside it."""

from __future__ import annotations

import random

import pytest

from tests.engine.test_engine_native import same_or_tied
from tests.pairs import WITH_SNAPSHOTS, OpenZoo, Pair, sizes
from tests.pulled import PulledEngine

N_SLOTS = 6


@pytest.mark.parametrize("draft_model", ["draft-llama", "draft-mamba"])
@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_each_request_gives_what_it_gives_alone(name: str, draft_model: str, open_zoo: OpenZoo) -> None:
    speculation = Pair(name, "draft-simple", draft_model).speculation(open_zoo, n_snapshots=8)
    rng = random.Random(3)  # noqa: S311 - the same in each run
    requests = []
    for _ in range(14):
        phrase = [rng.randrange(60, 300) for _ in range(rng.randrange(2, 6))]
        requests.append(([1, *(phrase * rng.randrange(1, 6))], rng.randrange(2, 40)))
    with PulledEngine(open_zoo(name), speculation=speculation, context=sizes()) as engine:
        alone = [engine.generate(prompt, max_tokens=limit, n_top=1) for prompt, limit in requests]
    context = sizes(N_SLOTS, kv_unified=False)
    with PulledEngine(open_zoo(name), speculation=speculation, context=context, n_slots=N_SLOTS) as engine:
        streams = [engine.stream(prompt, max_tokens=limit, n_top=1) for prompt, limit in requests]
        for stream, expected in zip(streams, alone, strict=True):
            for _chunk in stream:
                pass
            same_or_tied(expected, stream.result)
        assert sum(stats.n_accepted for stream in streams for stats in stream.result.drafters.values()) > 20
