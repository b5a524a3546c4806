from __future__ import annotations

import json
from collections import Counter

import pytest

from pyspec.speculation import Draft, DrafterStats, GenerationStats, Outcome, Proposal
from pyspec.speculation.draft import GRAMMAR


def outcome(
    n_drafted: int, n_accepted: int, seconds: float = 0.5, *, drafter: str = "x", rollback: str = "none"
) -> Outcome:
    proposal = Proposal(Draft(tuple(range(n_drafted))), drafter if n_drafted else None)
    emitted = (*range(n_accepted), 99)
    stages = {"verify": 0.1, "total": seconds}
    return Outcome(0, 5, 1, proposal, n_accepted, emitted, None, "match", rollback, (), stages)


def test_per_position_counts_have_the_drafts_that_were_that_long_as_denominator() -> None:
    stats = DrafterStats()
    for n_drafted, n_accepted in ((3, 3), (1, 0), (3, 1), (2, 2)):
        stats.count(n_drafted, n_accepted)
    assert stats.drafted_at == [4, 3, 2]
    assert stats.accepted_at == [3, 2, 1]
    assert (stats.n_drafts, stats.n_drafts_accepted, stats.n_drafted, stats.n_accepted) == (4, 3, 9, 6)
    assert stats.acceptance == pytest.approx(6 / 9)
    assert stats.acceptance_length == pytest.approx(1 + 6 / 4)


def test_nothing_drafted_is_no_division_by_zero() -> None:
    assert (DrafterStats().acceptance, DrafterStats().acceptance_length) == (0.0, 1.0)
    empty = GenerationStats()
    assert (empty.acceptance, empty.tokens_per_second) == (0.0, 0.0)
    assert empty.to_dict()["acceptance_length"] == 0.0


def test_rounds_are_counted() -> None:
    stats = GenerationStats(n_prompt=7)
    for n_drafted, n_accepted in ((0, 0), (4, 2), (3, 3)):
        stats.count(outcome(n_drafted, n_accepted))
    assert (stats.n_rounds, stats.n_emitted, stats.n_drafted, stats.n_accepted) == (3, 8, 7, 5)
    assert stats.lengths == Counter({1: 1, 3: 1, 4: 1})
    assert stats.seconds == pytest.approx({"verify": 0.3, "total": 1.5})
    assert stats.tokens_per_second == pytest.approx(8 / 1.5)
    assert stats.acceptance == pytest.approx(5 / 7)


def test_what_a_grammar_forces_is_told_from_what_drafters_propose() -> None:
    stats = GenerationStats()
    for n_drafted, n_accepted, drafter in ((4, 2, "x"), (3, 3, GRAMMAR), (0, 0, GRAMMAR), (5, 4, GRAMMAR)):
        stats.count(outcome(n_drafted, n_accepted, drafter=drafter))
    assert (stats.n_drafted, stats.n_accepted, stats.n_forced) == (12, 9, 7)


def test_replays_are_counted() -> None:
    stats = GenerationStats()
    for rollback in ("none", "trim", "replay", "bounded", "replay"):
        stats.count(outcome(2, 1, rollback=rollback))
    assert stats.n_replays == 2


def test_everything_goes_into_json() -> None:
    stats = GenerationStats()
    stats.count(outcome(4, 2))
    drafter = DrafterStats(n_begin=1)
    drafter.count(4, 2)
    as_json = json.loads(json.dumps({"stats": stats.to_dict(), "drafter": drafter.to_dict()}))
    assert as_json["stats"]["lengths"] == {"3": 1}
    assert as_json["stats"]["acceptance_length"] == 3.0
    assert as_json["drafter"]["accepted_at"] == [1, 1, 0, 0]
    assert set(DrafterStats.__dataclass_fields__) <= as_json["drafter"].keys()
    assert set(GenerationStats.__dataclass_fields__) <= as_json["stats"].keys()
