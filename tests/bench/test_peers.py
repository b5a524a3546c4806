"""benchmarks/peers.py: what it counts. That it runs is seen where its peers are installed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["peers"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["peers"]


def run(seconds: float, text: str = "same", *, drafted: int = 0) -> dict[str, Any]:
    whole = {"all_tokens": 11, "all_seconds": seconds + 10.0}
    return {"texts": [text], "tokens": 10, "seconds": seconds, "drafted": drafted, "accepted": drafted // 2, **whole}


class FakeWorker:
    """Answers in scripted times, and notes what it is asked."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self.asked: list[tuple[str, Any]] = []

    def ask(self, order: str, given: Any) -> dict[str, Any]:
        self.asked.append((order, given))
        return run(self.seconds) if order == "run" else {}

    @property
    def orders(self) -> list[str]:
        return [order for order, _given in self.asked]

    @property
    def prompts(self) -> list[list[str]]:
        return [given["prompts"] for order, given in self.asked if order == "run"]


def arena(peers: Any, ours: FakeWorker, **given: Any) -> Any:
    made = object.__new__(peers.Arena)
    made.ours, made._prompts, made._longest = ours, ["a", "b"], 5
    made._given = argparse.Namespace(**{"pairs": 2, "tokens": 48, "threads": 1, "model": "m", "md": "d", **given})
    return made


def test_figures_of_a_match(peers: Any) -> None:
    match = peers.Match("peer", peers.PLAIN, 1)
    match.pairs = [
        ([run(1.0), run(1.0, "ours")], [run(2.0, drafted=4), run(4.0)]),
        ([run(1.0), run(1.0)], [run(2.0), run(2.0)]),
    ]
    assert match.speeds(0) == [10.0, 10.0]
    assert match.ratios() == [3.0, 2.0]
    assert match.ratios("all_") == pytest.approx([26 / 22, 24 / 22])
    assert match.texts() == (3, 4)
    assert (match.acceptance(0), match.acceptance(1)) == (None, 0.5)
    assert len(match.row()) == len(peers.HEADER)
    assert match.row()[6:8] == ("2.50", "2.25 to 2.75")
    json.dumps(match.to_dict(), allow_nan=False)


def test_both_get_the_same_prompts_and_no_pair_has_those_of_another(peers: Any) -> None:
    ours, peer = FakeWorker("pyspec", 1.0), FakeWorker("peer", 2.0)
    match = arena(peers, ours).play(peer, peers.PLAIN, 1)
    assert ours.prompts == peer.prompts == [["-1. a"], ["0. a"], ["0. b"], ["1. a"], ["1. b"]]
    assert match.ratios() == [2.0, 2.0]
    assert ours.orders == peer.orders == ["open", *["run"] * 5]


def test_slots_are_filled(peers: Any) -> None:
    ours, peer = FakeWorker("pyspec", 1.0), FakeWorker("peer", 2.0)
    arena(peers, ours, pairs=1).play(peer, peers.PLAIN, 3)
    assert peer.prompts[-1] == ["0.0 a", "0.1 b", "0.2 a"]
    assert peer.asked[0][1]["n_ctx"] == 3 * (5 + 48 + peers.MARGIN)


def test_what_remembers_requests_is_opened_anew(peers: Any) -> None:
    ours, peer = FakeWorker("pyspec", 1.0), FakeWorker("peer", 2.0)
    (case,) = (case for case in peers.CASES if case.fresh)
    arena(peers, ours, pairs=1).play(peer, case, 1)
    assert peer.orders == ["open", "run", "open", "run", "open", "run"]
