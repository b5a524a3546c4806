"""Every recorded history of the n-gram drafters, chains included: who drafted what, and how much of it stood."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspec.drafters import Chain, create, sorted_by_priority
from pyspec.speculation.draft import DraftRequest, Proposal

CASES = sorted((Path(__file__).parent.parent / "data" / "golden" / "ngram").glob("*.json"))
NO_CAP = 1 << 20


def chain_of(case: dict[str, Any]) -> Chain:
    return Chain([create(name, **options_of(name, case["params"])) for name in sorted_by_priority(case["types"])])


def options_of(name: str, params: dict[str, int]) -> dict[str, Any]:
    if name == "ngram-mod":
        return {key.removeprefix("mod_"): value for key, value in params.items() if key.startswith("mod_")}
    options: dict[str, Any] = {key: value for key, value in params.items() if key.startswith("size_")}
    if name == "ngram-map-k4v":
        options["value"] = "latest"
        options["min_hits"] = params.get("min_hits", 1)
    return options


def played(case: dict[str, Any]) -> Iterator[tuple[int, Proposal, int]]:
    """Play a history: yield position, proposal and number of accepted tokens per round."""
    tokens, position = case["tokens"], case["prompt_len"] - 1
    budget = case["n_draft_max"] if case["n_draft_max"] >= 0 else NO_CAP
    history = tokens[:position]
    chain = chain_of(case)
    chain.begin(0, history)
    while position < len(tokens) - 1:
        proposal = chain.propose([DraftRequest(0, history, tokens[position], position, budget)])[0]
        n_accepted = common_prefix(proposal.draft.tokens, tokens[position + 1 : -1])
        yield position, proposal, n_accepted
        if proposal.draft.tokens:
            chain.accept(0, proposal, n_accepted)
        history += tokens[position : position + n_accepted + 1]
        position += n_accepted + 1


def common_prefix(ours: Any, theirs: Any) -> int:
    n = 0
    while n < min(len(ours), len(theirs)) and ours[n] == theirs[n]:
        n += 1
    return n


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_recorded_history(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    case = json.loads(path.read_text(encoding="utf-8"))
    rounds = [
        [position, proposal.drafter or "", list(proposal.draft.tokens), n_accepted]
        for position, proposal, n_accepted in played(case)
    ]
    assert rounds == case["rounds"]


def test_all_recorded_histories_are_here() -> None:
    assert len(CASES) == 40
