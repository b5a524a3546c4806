"""What is no good value at all: always an error of this package, and one that can be read, whatever was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import Grammar, SamplingConfig, Speculation
from pyspec.config import as_list, shown
from pyspec.drafters import create
from pyspec.engine.saving import read
from pyspec.errors import PyspecError
from pyspec.files import require_path
from pyspec.llama.grammar import GrammarState
from pyspec.speculation.draft import Drafting
from pyspec.speculation.rules import make_rule
from pyspec.trace import TraceWriter, read_trace
from tests.conftest import ModelByName
from tests.helpers import make_context
from tests.llama.grammar_fakes import EOG, fake_vocab


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


class Mute:
    """Looks like a number and is none."""

    def __index__(self) -> int:
        raise TypeError

    def __float__(self) -> float:
        raise ValueError


ODD = {
    "a long number": 10**5000,
    "a long negative number": -(10**5000),
    "unprintable": Unprintable(),
    "mute": Mute(),
    "long text": "x" * 100_000,
    "half a character": "\ud800",
    "a long list": [None] * 100_000,
    "an array": np.zeros((3, 3)),
    "a structure": {1: object()},
    "a type": int,
}


def check_error(call: Callable[[Any], object], value: object) -> None:
    with pytest.raises(PyspecError) as caught:
        call(value)
    assert len(str(caught.value)) < 600
    str(caught.value).encode()  # can be shown


def test_values_are_shown_in_short() -> None:
    assert shown("a") == "'a'"
    assert shown("x" * 1000) == "'" + "x" * 199 + "..."
    assert shown(10**5000) == "a value of the type int"
    assert shown(Unprintable()) == "a value of the type Unprintable"


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, frozenset([3])])
def test_what_has_no_order_is_no_list(value: object, context: pyspec.Context) -> None:
    assert as_list(value) is None
    check_error(context.model.vocab.check, value)
    check_error(lambda given: pyspec.Batch().extend(given, 0), value)


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest) -> object:
    return ODD[request.param]


NUMBERS = sorted({*SamplingConfig.__dataclass_fields__} - {"logit_bias", "dry_sequence_breakers"})


def test_odd_values_in_settings(odd: object) -> None:
    for name in NUMBERS:
        check_error(lambda value, name=name: SamplingConfig(**{name: value}), odd)  # type: ignore[misc]
    calls: list[Callable[[Any], object]] = [
        lambda value: SamplingConfig(logit_bias=value),
        lambda value: SamplingConfig(logit_bias={1: value}),
        lambda value: SamplingConfig(dry_sequence_breakers=value),
        lambda value: SamplingConfig(dry_sequence_breakers=(value,)),
        lambda value: pyspec.ContextConfig(n_ctx=value),
        lambda value: pyspec.ContextConfig(flash_attn=value),
        lambda value: pyspec.ContextConfig(type_k=value),
        lambda value: pyspec.ContextConfig(swa_full=value),
        lambda value: Speculation("ngram-simple", rule=value),
        lambda value: Speculation("ngram-simple", options=value),
        lambda value: Drafting(n_max=value),
        make_rule,
        lambda value: make_rule("synthetic", n_max=4, rates=value),
        lambda value: make_rule("synthetic", n_max=4, length=value),
        lambda value: make_rule("synthetic", n_max=2, rates=(0.5, value)),
    ]
    for call in calls:
        check_error(call, odd)


def test_odd_values_in_place_of_a_file(odd: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[Callable[[Any], object]] = [
        pyspec.Model,
        pyspec.hub.resolve,
        read_trace,
        TraceWriter,
        lambda value: read(require_path("path", value)),
        lambda value: create("suffix", file=value),
        lambda value: create("ngram-cache", static=value),
    ]
    for call in calls:
        check_error(call, odd)


@pytest.fixture
def state() -> GrammarState:
    return Grammar.regex("ab").compile(fake_vocab("a", "b", EOG)).start()


def test_odd_values_for_a_grammar(odd: object, state: GrammarState) -> None:
    for call in (state.accept, state.rollback, state.restore):
        check_error(call, odd)
    if type(odd) is not int:  # a number is a token that this vocabulary does not have
        check_error(lambda value: state.legal_prefix([0, value]), odd)
    check_error(state.legal_prefix, odd if type(odd) is not dict else [odd])
    if isinstance(odd, str):
        check_error(lambda value: Grammar.json_schema({"const": value}).compile(fake_vocab("a", EOG)), odd + "\ud800")
    else:
        for make in (Grammar.regex, Grammar.lark, Grammar.gbnf):
            check_error(make, odd)
    check_error(Grammar.regex("ab").compile, odd)
    assert state.legal_prefix([0, 1, 2]) == 3
    assert state.legal_prefix([*np.array([0, 1, 7])]) == 2


@pytest.fixture(scope="module")
def context(open_zoo: ModelByName) -> Iterator[pyspec.Context]:
    with make_context(open_zoo("target-llama")) as made:
        yield made


def test_odd_values_for_a_model(odd: object, context: pyspec.Context) -> None:
    batch = pyspec.Batch()
    batch.add(1, 0, 0, output=True)
    context.memory.clear(0)
    rows = context.decode(batch)
    sampler = pyspec.SamplerChain(SamplingConfig(temperature=1.0), context.n_vocab)
    calls: list[Callable[[Any], object]] = [
        lambda value: context.model.vocab.check([value]),
        lambda value: pyspec.Batch().add(1, 0, value) or context.decode(batch),  # type: ignore[func-returns-value]
        context.memory.length,
        context.memory.clear,
        lambda value: context.memory.trim(0, value),
        rows.logits,
        rows.argmax,
        lambda value: rows.logprobs(0, [value]),
        lambda value: rows.top_k(0, value),
        rows.__getitem__,
        sampler.accept,
        sampler.restore,
        lambda value: sampler.sample(rows, value),
        lambda value: sampler.sample(value, 0),
        lambda value: sampler.sample(rows, 0, value),
        lambda value: sampler.distribution(value, 0),
    ]
    for call in calls:
        check_error(call, odd)
    sampler.close()


def test_odd_values_for_an_engine(odd: object, open_zoo: ModelByName) -> None:
    target = open_zoo("target-llama")
    with pyspec.Engine(target, context=pyspec.ContextConfig(n_ctx=64)) as engine:
        calls: list[Callable[[Any], object]] = [
            lambda value: engine.embed([1, 60], pooling=value),
            lambda value: engine.close(finish=value),
            lambda value: engine.save_slot(value, "slot"),
            lambda value: engine.save_slot(0, value),
            engine.restore_slot,
            engine.call if not callable(odd) else lambda _value: engine.call(None),  # type: ignore[arg-type]
            lambda value: engine.generate([1, value]),
            lambda value: pyspec.Engine(target, n_queue=value),
            lambda value: pyspec.Engine(target, context=value),
            lambda value: pyspec.Engine(target, speculation=value),
        ]
        names = ("max_tokens", "sampling", "rule", "n_top", "logprobs", "observer", "grammar", "drafting")
        calls += [lambda value, name=name: engine.generate([1, 60], **{name: value}) for name in names]  # type: ignore[misc]
        for call in calls:
            check_error(call, odd)
        assert engine.generate([1, 60], max_tokens=3).tokens
