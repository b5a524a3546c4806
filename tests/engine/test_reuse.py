"""What a slot holds of former requests: it saves reading, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pyspec
from pyspec.llama.memory import RollbackKind
from tests.engine.test_engine_native import same_or_tied
from tests.pairs import LONG, MEDIUM, MODEL_PAIRS, SHORT, TARGETS, Drafts, Pair, sizes
from tests.pulled import PulledEngine

OpenZoo = Callable[[str], pyspec.Model]
N_TOKENS = 24


def turns(first: list[int], answer: list[int]) -> list[list[int]]:
    """A conversation that goes on, is answered again, is changed near its end, near its beginning, and forgotten."""
    following = [*first, *answer, 90, 91]
    return [following, following, first, [*first[:-3], 77, 78, 79], [*first[:4], 200, 201, 202], [1, 300, 301]]


def check_drafts(heard: dict[int, list[int]], alone: dict[int, list[int]], first: int) -> None:
    """At each position the same; but the first one may be empty, where the target's last row is not there yet."""
    shared = heard.keys() & alone.keys()
    if not heard[first] or not alone[first]:
        shared -= {first}
    assert {position: heard[position] for position in shared} == {position: alone[position] for position in shared}
    assert any(heard[position] for position in shared)


@pytest.mark.parametrize("pair", MODEL_PAIRS, ids=str)
def test_drafts_and_output_after_reuse_are_those_of_a_fresh_engine(pair: Pair, open_zoo: OpenZoo) -> None:
    settings: dict[str, Any] = {"speculation": pair.speculation(open_zoo), "context": sizes()}
    with (
        PulledEngine(open_zoo(pair.target), **settings) as used,
        PulledEngine(open_zoo(pair.target), **settings) as fresh,
    ):
        answer = used.generate(LONG, max_tokens=N_TOKENS).tokens
        n_reused = 0
        for prompt in turns(LONG, answer):
            heard, alone = Drafts(), Drafts()
            result = used.generate(prompt, max_tokens=N_TOKENS, observer=heard, n_top=1)
            fresh.place.scheduler.slots[0].forget()
            expected = fresh.generate(prompt, max_tokens=N_TOKENS, observer=alone, n_top=1)
            same_or_tied(expected, result)
            if result.tokens == expected.tokens:
                check_drafts(dict(heard.tokens), dict(alone.tokens), len(prompt) - 1)
            n_reused += result.stats.n_reused
    assert n_reused >= len(LONG)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_reused_is_not_read_again(target: str, open_zoo: OpenZoo) -> None:
    with PulledEngine(open_zoo(target), context=sizes()) as engine:
        trims = engine.context.memory.rollback is RollbackKind.TRIM
        answer = engine.generate(LONG, max_tokens=5).tokens
        longer = [*LONG, *answer, 90, 91]
        assert engine.generate(longer, max_tokens=3).stats.n_reused == len(LONG) + len(answer) - 1
        assert engine.generate(longer, max_tokens=3).stats.n_reused == len(longer) - 1
        changed = [*longer[:-1], 92]
        assert engine.generate(changed, max_tokens=3).stats.n_reused == (len(changed) - 1)
        early = engine.generate([*LONG[:20], 99, 98], max_tokens=3).stats.n_reused
        assert early == 20 if trims else early in (0, 16)  # where a piece of the prompt had ended
        assert engine.generate([2, 3], max_tokens=3).stats.n_reused == 0


def test_the_slot_that_holds_the_prompt_is_taken(open_zoo: OpenZoo) -> None:
    with pyspec.Engine(open_zoo("target-llama"), context=sizes(3), n_slots=3) as engine:
        prompts = [LONG, MEDIUM, SHORT]
        for prompt in prompts:
            engine.generate(prompt, max_tokens=2)
        n_before = engine.status().n_reused_tokens  # what they have in common
        for prompt in (MEDIUM, SHORT, LONG, LONG, MEDIUM):
            assert engine.generate(prompt, max_tokens=2).stats.n_reused == len(prompt) - 1
        status = engine.status()
    assert status.n_reused_tokens - n_before == sum(len(prompt) - 1 for prompt in (MEDIUM, SHORT, LONG, LONG, MEDIUM))
    assert sorted(slot.n_tokens for slot in status.slots) == sorted(len(prompt) + 1 for prompt in prompts)


@pytest.mark.parametrize("pair", [Pair(target, "ngram-simple") for target in TARGETS] + list(MODEL_PAIRS[::5]), ids=str)
def test_the_cache_gives_back_what_a_slot_lost(pair: Pair, open_zoo: OpenZoo) -> None:
    prompts = [[1, *range(first, first + 80)] for first in (40, 140, 240)]
    settings: dict[str, Any] = {"speculation": pair.speculation(open_zoo), "context": sizes()}
    with PulledEngine(open_zoo(pair.target), **settings) as plain:
        expected = [plain.generate(prompt, max_tokens=N_TOKENS, n_top=1) for prompt in prompts]
        longer = [[*prompt, *wanted.tokens] for prompt, wanted in zip(prompts, expected, strict=True)]
        following = [plain.generate(prompt, max_tokens=3, n_top=1) for prompt in longer]
    with PulledEngine(open_zoo(pair.target), cache_bytes=1 << 26, **settings) as engine:
        for prompt in prompts:
            engine.generate(prompt, max_tokens=N_TOKENS)
        for prompt, wanted in zip(longer, following, strict=True):
            result = engine.generate(prompt, max_tokens=3, n_top=1)
            same_or_tied(wanted, result)
            if pair.target not in ("target-swa", "target-mtp-chain", "target-gemma4"):  # their windows have moved on
                assert result.stats.n_reused == len(prompt) - 1


@pytest.mark.parametrize("types", ["none", "ngram-simple,draft-simple"])
def test_slots_that_begin_alike_share_cells(types: str, open_zoo: OpenZoo) -> None:
    """Eight requests of 60 tokens fit a buffer of 256, because their prompts of 50 tokens are there once."""
    target = open_zoo("target-llama")
    speculation = pyspec.Speculation(types, open_zoo("draft-llama") if "draft" in types else None)
    prompts = [[1, *range(60, 108), 200 + i] for i in range(8)]
    with pyspec.Engine(target, context=sizes()) as engine:
        expected = [engine.generate(prompt, max_tokens=10, n_top=1) for prompt in prompts]
    shared = sizes(8, n_ctx=256, kv_unified=True)
    with PulledEngine(target, speculation=speculation, context=shared, n_slots=8) as together:
        streams = [together.stream(prompts[0], max_tokens=10, n_top=1)]
        next(streams[0])
        streams += [together.stream(prompt, max_tokens=10, n_top=1) for prompt in prompts[1:]]
        for stream, alone in zip(streams, expected, strict=True):
            for _chunk in stream:
                pass
            same_or_tied(alone, stream.result)
        assert [stream.result.stats.n_reused for stream in streams] == [0] + [49] * 7
