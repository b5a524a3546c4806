"""Generation under a grammar, with and without speculation, on the zoo and on a real model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec import Grammar, SamplingConfig, Speculation
from pyspec.errors import ConfigError, GrammarError, UnsupportedError

OpenZoo = Callable[[str], pyspec.Model]
PROMPT = [1, 60, 75, 112, 264, 300, 91, 130]
PATTERN = r"([a-z ]{3,9}[;:]){2,6}!"
PAIRS = [
    ("none", "target-llama", None),
    ("ngram-simple", "target-llama", None),
    ("draft-simple", "target-llama", "draft-llama"),
    ("draft-eagle3", "target-llama", "draft-eagle3"),
    ("draft-dspark", "target-llama", "draft-dspark"),
    ("draft-mtp", "target-mtp", None),
    ("draft-simple", "target-mamba", "draft-mamba"),
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["small", "large"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


def engine(open_zoo: OpenZoo, types: str, target: str, draft: str | None, **settings: Any) -> pyspec.Engine:
    """Return an engine with exact memory, so that rows differ in their last bits only."""
    options = {"ngram-simple": {"size_n": 2, "size_m": 4}} if types == "ngram-simple" else {}
    speculation = Speculation(types, open_zoo(draft) if draft else None, options, self_check=False, **settings)
    config = pyspec.ContextConfig(n_ctx=256, n_ubatch=16, n_batch=64, n_threads=1, flash_attn="off")
    return pyspec.Engine(open_zoo(target), speculation=speculation, context=config)


def plain(open_zoo: OpenZoo, target: str, **request: Any) -> pyspec.Result:
    with engine(open_zoo, "none", target, None) as one:
        return one.generate(PROMPT, **request)


@pytest.mark.parametrize(("types", "target", "draft"), PAIRS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_speculation_changes_nothing_under_a_grammar(
    open_zoo: OpenZoo, types: str, target: str, draft: str | None, temperature: float
) -> None:
    sampling = SamplingConfig(temperature=temperature, seed=5, repeat_penalty=1.1)
    request: dict[str, Any] = {"grammar": Grammar.regex(PATTERN), "sampling": sampling, "max_tokens": 60}
    expected = plain(open_zoo, target, **request)
    with engine(open_zoo, types, target, draft) as one:
        for _request in range(2):
            result = one.generate(PROMPT, **request)
            assert (result.tokens, result.text, result.finish) == (expected.tokens, expected.text, expected.finish)
    assert re.fullmatch(PATTERN, expected.text) or expected.finish is pyspec.Finish.LENGTH


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
@pytest.mark.parametrize("seed", range(6))
def test_output_is_grammatical_under_every_rule(open_zoo: OpenZoo, rule: str, seed: int) -> None:
    sampling = SamplingConfig(temperature=1.0, seed=seed, top_k=0, top_p=1.0, min_p=0.0)
    with engine(open_zoo, "draft-simple", "target-llama", "draft-llama", rule=rule) as one:
        result = one.generate(PROMPT, grammar=Grammar.regex(PATTERN), sampling=sampling, max_tokens=90)
    assert re.fullmatch(PATTERN, result.text)
    assert result.finish is pyspec.Finish.EOG
    assert result.stats.n_drafted > 0


def test_forced_tokens_are_drafted_for_nothing(open_zoo: OpenZoo) -> None:
    grammar = Grammar.regex("a certain text that leaves no choice")
    with engine(open_zoo, "ngram-simple", "target-llama", None) as one:
        result = one.generate(PROMPT, grammar=grammar, max_tokens=60)
    assert result.text == "a certain text that leaves no choice"
    assert "draft:grammar" in result.sources
    assert result.stats.n_rounds < len(result.tokens)


def test_json_by_a_real_model(smollm2: Path) -> None:
    config = pyspec.ContextConfig(n_ctx=256, n_threads=1)
    with pyspec.Model(smollm2) as model, pyspec.Engine(model, context=config) as one:
        expected = one.generate("A box in JSON: ", grammar=Grammar.json_schema(SCHEMA), max_tokens=60)
        with pyspec.Engine(model, speculation=Speculation("ngram-simple"), context=config) as other:
            result = other.generate("A box in JSON: ", grammar=Grammar.json_schema(SCHEMA), max_tokens=60)
    assert result.tokens == expected.tokens
    found = json.loads(result.text)
    assert found["kind"] in ("small", "large")
    assert "draft:grammar" in result.sources, "names of properties are forced"


def test_a_wrong_grammar_is_refused_when_it_is_submitted(open_zoo: OpenZoo) -> None:
    with engine(open_zoo, "none", "target-llama", None) as one:
        with pytest.raises(GrammarError):
            one.stream(PROMPT, grammar=Grammar.regex("(a"))
        with pytest.raises(ConfigError, match="must be a Grammar"):
            one.stream(PROMPT, grammar="(a)")  # type: ignore[arg-type]
        assert one.generate(PROMPT, max_tokens=3).tokens


def test_mirostat_goes_with_match_only(open_zoo: OpenZoo) -> None:
    sampling = SamplingConfig(temperature=0.8, mirostat=2, seed=3)
    expected = plain(open_zoo, "target-llama", sampling=sampling, max_tokens=40)
    with engine(open_zoo, "draft-simple", "target-llama", "draft-llama") as one:
        assert one.generate(PROMPT, sampling=sampling, max_tokens=40).tokens == expected.tokens
        with pytest.raises(UnsupportedError, match="mirostat"):
            one.stream(PROMPT, sampling=sampling, rule="rejection")


@pytest.mark.parametrize(("types", "target", "draft"), PAIRS[1:])
def test_log_probabilities_are_those_of_plain_decoding(
    open_zoo: OpenZoo, types: str, target: str, draft: str | None
) -> None:
    expected = plain(open_zoo, target, max_tokens=40, logprobs=True)
    with engine(open_zoo, types, target, draft) as one:
        result = one.generate(PROMPT, max_tokens=40, logprobs=True)
    assert result.tokens == expected.tokens
    assert len(result.logprobs) == 40
    assert result.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert all(value < 0.0 for value in result.logprobs)
