"""A context that is full: half of it is forgotten, and the request goes on, the same with and without drafts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pyspec
from pyspec import Finish, SamplingConfig, Speculation
from pyspec.engine.saving import save
from pyspec.errors import ConfigError, UnsupportedError
from tests.fakes import HashLogits
from tests.pairs import LONG, Pair, sizes
from tests.playing import DrafterSpec, DraftModelSpec, Machine, NgramSpec, Table
from tests.pulled import PulledEngine
from tests.reference import Request
from tests.workplace import generation, workplace

OpenZoo = Callable[[str], pyspec.Model]
DRAFTERS: list[list[DrafterSpec]] = [[], [NgramSpec(1, 3)], [DraftModelSpec(None)], [DraftModelSpec(HashLogits(4, 8))]]


@pytest.mark.parametrize("n_keep", [0, 1, 5, 19, 100])
@pytest.mark.parametrize("seed", [None, 3])
def test_it_goes_on_the_same_with_every_drafter(n_keep: int, seed: int | None) -> None:
    request = Request(HashLogits(3, 8, order=2), 8, (1, 2, 3, 4, 5), max_tokens=90, n_ctx=20, seed=seed)

    def said(specs: list[DrafterSpec]) -> list[int]:
        table = Table([request], specs, machine=Machine())
        running = generation(workplace(table, n_keep=n_keep), request)
        list(running)
        assert running.result.finish is Finish.LENGTH
        assert table.target.memory.length(0) <= 20
        return running.result.tokens

    plain = said(DRAFTERS[0])
    assert len(plain) == 90
    assert all(said(specs) == plain for specs in DRAFTERS[1:])


@pytest.mark.parametrize(
    "pair", [Pair("target-llama", "ngram-simple"), Pair("target-llama", "draft-simple", "draft-llama")]
)
def test_real_memory(pair: Pair, open_zoo: OpenZoo) -> None:
    sampling = SamplingConfig(temperature=0.7, seed=2)
    for chosen in (None, sampling):
        found = []
        for speculation in (None, pair.speculation(open_zoo)):
            with pyspec.Engine(
                open_zoo(pair.target), speculation=speculation, context=sizes(2, n_ctx=512), n_slots=2, n_keep=4
            ) as engine:
                beside = engine.stream([1, 80, 81], max_tokens=400, sampling=chosen)
                found.append(engine.generate(LONG, max_tokens=400, sampling=chosen).tokens)
                beside.close()
        assert found[0] == found[1]
        assert len(found[0]) == 400


@pytest.mark.parametrize("target", ["target-mamba", "target-lfm2", "target-mtp"])
def test_memory_that_cannot_is_refused(target: str, open_zoo: OpenZoo) -> None:
    with pytest.raises(UnsupportedError, match=r"n_keep.*cannot forget positions"):
        pyspec.Engine(open_zoo(target), context=sizes(), n_keep=0)


def test_what_else_is_refused(open_zoo: OpenZoo) -> None:
    target = open_zoo("target-llama")
    with pytest.raises(UnsupportedError, match="kv_unified"):
        pyspec.Engine(target, context=sizes(2, kv_unified=True), n_slots=2, n_keep=0)
    with pytest.raises(UnsupportedError, match="same numbers"):
        pyspec.Engine(target, speculation=Speculation("ngram-simple", rule="coupled"), context=sizes(), n_keep=0)
    with pytest.raises(ConfigError, match="n_keep must be"):
        pyspec.Engine(target, context=sizes(), n_keep=-1)
    with (
        pyspec.Engine(target, context=sizes(), n_keep=0) as engine,
        pytest.raises(UnsupportedError, match="same numbers"),
    ):
        engine.generate(LONG, rule="rejection")


def test_what_has_shifted_is_neither_saved_nor_reused_beyond_the_first_gap(open_zoo: OpenZoo) -> None:
    target, prompt = open_zoo("target-llama"), LONG[:20]
    with PulledEngine(target, context=sizes(n_ctx=64), n_keep=4) as engine:
        stream = engine.stream(prompt, max_tokens=100)
        while len(stream.result.tokens) < 70:
            next(stream)
        slot = engine.place.scheduler.slots[0]
        with pytest.raises(UnsupportedError, match="forgotten"):
            save(slot, engine.context)
        stream.close()
        assert slot.n_held == 4 == engine.context.memory.length(0)
        again = engine.generate(prompt, max_tokens=30)
    assert again.stats.n_reused <= 4
    assert again.tokens == stream.result.tokens[:30]
