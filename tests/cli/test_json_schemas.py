"""A small real model answers in JSON that fits a schema, with and without drafters.

Most answers come through the Python API, from two engines that are made once, some through the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

import pyspec
from pyspec import Grammar, Speculation
from tests.cli.conftest import Run

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("json_schemas.json").read_text(encoding="utf-8"))
MAX_TOKENS = 150  # no answer is cut


class Engines(NamedTuple):
    """One that decodes plainly, and one with drafters."""

    plain: pyspec.Engine
    drafting: pyspec.Engine


@pytest.fixture(scope="module")
def engines(smollm2: Path) -> Iterator[Engines]:
    # With one thread and a short context the rows of a batch are those of single tokens, bit for bit.
    config = pyspec.ContextConfig(n_ctx=512, n_batch=64, n_ubatch=64, n_threads=1)
    speculation = Speculation("ngram-simple,ngram-cache", options={"ngram-simple": {"size_n": 2, "size_m": 6}})
    with (
        pyspec.Model(smollm2) as model,
        pyspec.Engine(model, speculation=pyspec.Speculation("none"), context=config) as plain,
        pyspec.Engine(model, context=config, speculation=speculation) as drafting,
    ):
        yield Engines(plain, drafting)


def check_answer(text: str, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator, format_checker=formats)


def test_there_are_twenty_different_schemas() -> None:
    assert len({json.dumps(case["schema"]) for case in CASES.values()}) == len(CASES) >= 20


@pytest.mark.parametrize("name", CASES)
def test_the_answer_fits_the_schema(engines: Engines, name: str) -> None:
    prompt, schema = CASES[name]["prompt"], CASES[name]["schema"]
    grammar = Grammar.json_schema(schema)
    plain, drafted = (engine.generate(prompt, grammar=grammar, max_tokens=MAX_TOKENS) for engine in engines)
    check_answer(plain.text, schema)
    assert plain.finish is pyspec.Finish.EOG
    assert (drafted.tokens, drafted.text, drafted.finish) == (plain.tokens, plain.text, plain.finish)
    assert plain.stats.n_forced == 0, "plain decoding drafts nothing"
    assert drafted.stats.n_forced == drafted.sources.count("draft:grammar")
    if "required" in schema:  # names that must come
        assert drafted.stats.n_forced > 0
    proposed = sum(stats.n_accepted for stats in drafted.drafters.values())
    assert drafted.stats.n_accepted == drafted.stats.n_forced + proposed


@pytest.mark.parametrize(
    ("name", "drafters"),
    [("constant", ["ngram-simple"]), ("other letters", ["draft-simple"]), ("tagged alternatives", [])],
)
def test_generate_reports_what_was_forced(
    run: Run, engines: Engines, tmp_path: Path, name: str, drafters: list[str]
) -> None:
    prompt, schema, path = CASES[name]["prompt"], CASES[name]["schema"], tmp_path / "schema.json"
    path.write_text(json.dumps(schema), encoding="utf-8")
    model = engines.plain.model.path
    flags = ["-m", model, "-t", 1, "-c", 512, "-p", prompt, "-n", MAX_TOKENS, "--json-schema", path]
    flags += ["--spec-type", ",".join(drafters) or "none"] + ["-md", model, "-td", 1] * ("draft-simple" in drafters)
    shown, reported = run("generate", *flags), run("generate", *flags, "--json")
    assert (shown.code, reported.code) == (0, 0), shown.err + reported.err
    result = json.loads(reported.out)
    plain = engines.plain.generate(prompt, grammar=Grammar.json_schema(schema), max_tokens=MAX_TOKENS)
    assert shown.out == result["text"] == plain.text
    stats = result["stats"]
    assert stats["n_forced"] == result["sources"].count("draft:grammar")
    assert (stats["n_forced"] > 0) is bool(drafters)
    counted = f"({stats['n_accepted']} of {stats['n_drafted']} draft tokens, the grammar forced {stats['n_forced']})"
    assert (counted in shown.err) is bool(drafters)
    assert ("forced" in shown.err) is bool(drafters)
