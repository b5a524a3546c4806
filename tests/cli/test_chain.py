"""A chain of drafters on a real model, from the command line to the trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

PROMPT = Path(__file__).parents[2] / "examples/prompts/code-editing.txt"


@pytest.mark.slow
def test_rounds_of_one_generation_are_served_by_different_drafters(run: Run, smollm2: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    flags = ["-m", str(smollm2), "-f", str(PROMPT), "-n", "96", "-t", "1", "--json"]
    lookups = ["--spec-ngram-mod-n-match", "8", "--spec-ngram-mod-n-min", "2", "--spec-ngram-simple-size-n", "16"]
    types = ["--spec-type", "ngram-simple,ngram-mod,draft-simple", "-md", str(smollm2), "--trace", str(trace)]
    chained = json.loads(run("generate", *flags, *lookups, *types).out)
    plain = json.loads(run("generate", *flags).out)
    assert chained["text"] == plain["text"]
    rounds = [line for line in map(json.loads, trace.read_text().splitlines()) if line["type"] == "round"]
    served = {line["drafter"] for line in rounds if line["accepted"]}
    assert served >= {"ngram-mod", "draft-simple"}
    for name in served:
        stats = chained["drafters"][name]
        assert stats["n_accepted"] == sum(line["accepted"] for line in rounds if line["drafter"] == name)
