"""Slots share one buffer unless told otherwise, and each has its part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pyspec
from pyspec.config import ContextConfig
from pyspec.engine.plan import checked_speculation, sized
from tests.engine.test_engine_native import same_or_tied

OpenZoo = Callable[[str], pyspec.Model]
N_CTX = 256  # a multiple of what llama.cpp rounds up to, so that there is no room beside it


@pytest.mark.parametrize(
    ("n_slots", "given", "shifts", "shared", "part"),
    [
        (1, {}, False, False, N_CTX),
        (4, {}, False, True, 64),
        (4, {}, True, False, 64),
        (4, {"kv_unified": False}, False, False, 64),
        (4, {"kv_unified": True}, False, True, N_CTX),
        (4, {"kv_unified": True, "n_ctx_seq": 100}, False, True, 100),
        (4, {"n_ctx_seq": 30}, False, True, 30),
        (4, {"n_ctx_seq": 1000}, False, True, 64),
    ],
)
def test_who_shares(
    open_zoo: OpenZoo, n_slots: int, given: dict[str, Any], *, shifts: bool, shared: bool, part: int
) -> None:
    model = open_zoo("target-llama")
    config = sized(model, ContextConfig(n_ctx=N_CTX, **given), checked_speculation(None), n_slots, shifts=shifts)
    assert config.kv_unified is shared
    with pyspec.Context(model, config) as context:
        assert context.n_ctx_seq == part


@pytest.mark.parametrize("types", ["none", "ngram-simple", "auto"])
def test_each_slot_can_fill_its_part_while_all_do(open_zoo: OpenZoo, types: str) -> None:
    """And again with other prompts, while the slots still hold the former ones."""
    config = ContextConfig(n_ctx=N_CTX, n_batch=64, n_ubatch=16, n_threads=1)
    with pyspec.Engine(
        open_zoo("target-llama"), speculation=pyspec.Speculation(types), context=config, n_slots=4
    ) as engine:
        for first in (5, 40, 90):
            prompts = [[first + i, 7, 8, 9, 7, 8, 9, 7, 8] for i in range(8)]
            results = engine.generate_many(prompts, progress=False, max_tokens=1000, stop_tokens=(), min_tokens=1000)
            assert [len(result.tokens) for result in results] == [len(results[0].tokens)] * 8
            assert len(results[0].tokens) >= 64 - 9


def test_unequal_drafts_and_idle_slots_between_leave_the_output_as_it_is(open_zoo: OpenZoo) -> None:
    prompts = [[11 + i, *[7, 8, 9] * (1 + i % 3), 7, 8] for i in range(6)]
    lengths = [5, 40, 9, 33, 2, 21]
    model = open_zoo("target-llama")
    config = ContextConfig(n_ctx=6 * 64, n_batch=64, n_ubatch=16, n_threads=1)
    with pyspec.Engine(model, speculation=pyspec.Speculation("none"), context=config) as plain:
        expected = [plain.generate(p, max_tokens=n, n_top=2) for p, n in zip(prompts, lengths, strict=True)]
    with pyspec.Engine(model, speculation=pyspec.Speculation("ngram-simple"), context=config, n_slots=6) as engine:
        streams = [engine.stream(p, max_tokens=n, n_top=2) for p, n in zip(prompts, lengths, strict=True)]
        for stream, wanted in zip(streams, expected, strict=True):
            for _ in stream:
                pass
            same_or_tied(wanted, stream.result)
