from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pyspec.cli.probing import Timing
from pyspec.drafters.automatic import LOOKUPS
from tests.cli.conftest import Run


def probed(run: Run, *arguments: object) -> dict[str, Any]:
    ran = run("probe", *arguments, "-t", "1", "--json")
    assert (ran.code, ran.err) == (0, "")
    report: dict[str, Any] = json.loads(ran.out)
    return report


def verdicts(report: dict[str, Any]) -> dict[str, str | None]:
    return {entry["name"]: entry["reason"] for entry in report["drafters"]}


def test_a_model_alone(run: Run, target_path: Path) -> None:
    report = probed(run, target_path, "-c", "512", "--no-timing")
    target = report["target"]
    assert (target["rollback"], target["n_ctx"], "timing" in target) == ("trim", 512, False)
    # keys and values: 4 layers of 3 heads of 32 half floats, and some bytes for positions
    assert 4 * 2 * 3 * 32 * 2 <= target["memory"]["per_token"] < 4 * 2 * 3 * 32 * 2 * 1.05
    assert report["possible"]
    assert verdicts(report)["ngram-simple"] is None
    assert "-md" in str(verdicts(report)["draft-simple"])
    assert report["auto"] == list(LOOKUPS)


def test_a_draft_model_that_fits(run: Run, target_path: Path, zoo: Path) -> None:
    report = probed(run, target_path, "-md", zoo / "draft-llama.gguf", "-c", "256")
    assert report["vocabularies"] == {"fit": True, "difference": None}
    assert verdicts(report)["draft-simple"] is None
    assert report["auto"] == [*LOOKUPS, "draft-simple"]
    for model in (report["target"], report["draft_model"]):
        timing = model["timing"]
        assert len(timing["seconds"]) == 8
        assert timing["relative"][0] == 1.0
        assert timing["ceiling"]["speed_up"] >= 1.0
    assert report["draft_cost"] > 0


def test_a_draft_model_of_another_vocabulary(run: Run, target_path: Path, zoo: Path) -> None:
    report = probed(run, target_path, "-md", zoo / "draft-llama-othervocab.gguf", "--no-timing")
    assert not report["vocabularies"]["fit"]
    assert report["vocabularies"]["difference"] in str(verdicts(report)["draft-simple"])
    assert report["auto"] == list(LOOKUPS)
    assert verdicts(report)["ngram-simple"] is None


def test_a_recurrent_model(run: Run, zoo: Path) -> None:
    report = probed(run, zoo / "target-mamba.gguf", "--no-timing")
    assert report["target"]["rollback"] == "whole"
    assert report["target"]["memory"]["per_token"] < 1 < report["target"]["memory"]["fixed"]
    text = run("probe", zoo / "target-mamba.gguf", "--no-timing", "-t", "1").out
    assert "however long" in text


def test_the_text_says_the_same(run: Run, target_path: Path, zoo: Path) -> None:
    ran = run("probe", target_path, "-md", zoo / "draft-llama.gguf", "-c", "256", "-t", "1")
    assert (ran.code, ran.err) == (0, "")
    for words in (
        "Target\n",
        "Draft model\n",
        "they fit",
        "n/t(n)",
        "Ceiling: ",
        "a token takes",
        f"among {', '.join(LOOKUPS)}, draft-simple, plain decoding.\n",
    ):
        assert words in ran.out, words
    assert re.search(r"draft-simple +possible", ran.out)


def test_wrong_sizes_are_wrong_usage(run: Run, target_path: Path) -> None:
    assert "--ctx-size" in run("probe", target_path, "-c", "-1").usage_error
    assert "-ngld" in run("probe", target_path, "-ngld", "1").usage_error


def test_the_ceiling() -> None:
    timing = Timing((1.0, 1.5, 4.0), 1)
    assert timing.relative == (1.0, 1.5, 4.0)
    n, speed_up = timing.ceiling()
    assert (n, speed_up) == (2, 2 / 1.5)
    assert timing.ceiling(draft_cost=1.0) == (1, 1.0)
