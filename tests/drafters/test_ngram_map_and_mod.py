"""What the recorded histories do not show: options, isolation of requests, changed histories."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.drafters.ngram_map import NgramMapK, NgramMapK4V
from pyspec.drafters.ngram_mod import TABLE_SIZE, NgramMod
from pyspec.errors import ConfigError
from pyspec.speculation.draft import DraftRequest

SMALL: list[Any] = [
    lambda: NgramMapK(size_n=2, size_m=3),
    lambda: NgramMapK4V(size_n=2, size_m=3),
    lambda: NgramMod(n_match=2, n_max=4, n_min=1),
]
NAMES = ["ngram-map-k", "ngram-map-k4v", "ngram-mod"]


def ask(drafter: Any, history: list[int], pending: int, *, budget: int = 99, seq_id: int = 0) -> list[int]:
    request = DraftRequest(seq_id, history, pending, len(history), budget)
    return list(drafter.draft([request])[0].tokens)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


@pytest.mark.parametrize("make", SMALL, ids=NAMES)
def test_nothing_of_the_former_request_is_drafted(make: Any) -> None:
    drafter = make()
    history = [1, 2, 3, 4, 5] * 12
    drafter.begin(0, history)
    assert ask(drafter, history, 1)
    drafter.begin(0, [7, 8, 9] + [6] * 5)
    assert ask(drafter, [7, 8, 9, 6, 6, 6, 6, 4], 5) == []


@pytest.mark.parametrize("make", SMALL, ids=NAMES)
def test_sequences_do_not_see_each_other(make: Any) -> None:
    drafter = make()
    history = [1, 2, 3, 4, 5] * 12
    drafter.begin(0, history)
    drafter.begin(1, [9] * 30)
    assert ask(drafter, history, 1)
    assert ask(drafter, [9] * 29 + [5], 1, seq_id=1) == []


@pytest.mark.parametrize("make", SMALL, ids=NAMES)
def test_a_history_that_shrinks_or_loses_its_middle(make: Any) -> None:
    drafter = make()
    long = [i % 7 for i in range(100)]
    drafter.begin(0, long)
    ask(drafter, long, 2)
    for history in (long[:40], long[:41], long[:20] + long[60:]):
        assert all(0 <= token < 7 for token in ask(drafter, history, history[-6]))


@pytest.mark.parametrize("make", SMALL, ids=NAMES)
def test_the_budget_cuts(make: Any) -> None:
    drafter = make()
    history = [1, 2, 3, 4, 5] * 12
    drafter.begin(0, history)
    whole = ask(drafter, history, 1)
    assert len(whole) >= 2
    assert ask(drafter, history, 1, budget=1) == whole[:1]


@pytest.mark.parametrize("make", SMALL, ids=NAMES)
def test_a_draft_without_begin_works(make: Any) -> None:
    history = [1, 2, 3, 4, 5] * 12
    assert isinstance(ask(make(), history, 1), list)


def test_map_k_proposes_as_much_as_stood_the_last_time() -> None:
    drafter = NgramMapK(size_n=2, size_m=3)
    history = [1, 2, 3, 4, 5] * 6
    drafter.begin(0, history)
    assert len(ask(drafter, history, 1)) == 3
    drafter.accept(0, 1, own=True)
    assert len(ask(drafter, history, 1)) == 1
    drafter.accept(0, 0, own=False)  # somebody else's draft
    assert len(ask(drafter, history, 1)) == 1


def k4v_history() -> list[int]:
    """After 1 2 comes 3 3 three times and 4 4 once, the latest."""
    first, other = [1, 2, 3, 3], [1, 2, 4, 4]
    return [0, *first, 9, *first, 8, *first, 7, *other, 6, 5, 0, 9, 8, 7, 1]


def test_k4v_proposes_the_most_frequent_value_not_the_latest() -> None:
    history = k4v_history()
    frequent = NgramMapK4V(size_n=2, size_m=2)
    frequent.begin(0, history)
    latest = NgramMapK4V(size_n=2, size_m=2, value="latest")
    latest.begin(0, history)
    assert ask(frequent, history, 2) == [3, 3]
    assert ask(latest, history, 2) == [4, 4]


def test_k4v_is_silent_when_no_value_stands_out() -> None:
    history = [0, 1, 2, 3, 3, 9, 1, 2, 4, 4, 6, 5, 0, 9, 8, 7, 1]
    drafter = NgramMapK4V(size_n=2, size_m=2)
    drafter.begin(0, history)
    assert ask(drafter, history, 2) == []


def test_k4v_waits_for_min_hits() -> None:
    history = k4v_history()
    drafter = NgramMapK4V(size_n=2, size_m=2, min_hits=2)
    drafter.begin(0, history)
    assert ask(drafter, history, 2) == []
    assert ask(drafter, history, 2) == [3, 3]


def test_mod_shares_its_table_only_when_asked() -> None:
    history = [1, 2, 3, 4, 5] * 12
    for share, expected in ((False, False), (True, True)):
        drafter = NgramMod(n_match=2, n_max=4, n_min=1, share=share)
        drafter.begin(0, history)
        drafter.begin(1, [9, 9, 9])
        assert bool(ask(drafter, [9, 9, 5], 1, seq_id=1)) is expected


def test_mod_clears_its_table_after_five_bad_drafts() -> None:
    history = [1, 2, 3, 4, 5] * 12
    drafter = NgramMod(n_match=2, n_max=4, n_min=1)
    drafter.begin(0, history)
    for i in range(5):
        assert ask(drafter, history, 1), i
        drafter.accept(0, 0, own=True)
    assert drafter._seats[0].table == {}


def test_mod_clears_a_table_that_is_too_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspec.drafters.ngram_mod.TABLE_SIZE", 16)
    drafter = NgramMod(n_match=2, n_max=4, n_min=1)
    drafter.begin(0, list(range(40)))
    assert drafter._seats[0].table == {}
    assert TABLE_SIZE == 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (NgramMapK, {"size_n": 0}),
        (NgramMapK, {"size_m": 0}),
        (NgramMapK4V, {"min_hits": 0}),
        (NgramMapK4V, {"value": "newest"}),
        (NgramMod, {"n_match": 0}),
        (NgramMod, {"n_max": 0}),
        (NgramMod, {"n_max": 4, "n_min": 5}),
        (NgramMod, {"share": 1}),
    ],
)
def test_wrong_options_are_refused(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=list(options)[-1]):
        make(**options)


@pytest.mark.parametrize(("options", "n_min"), [({}, 48), ({"n_max": 4}, 4), ({"n_max": 4, "n_min": 0}, 0)])
def test_the_least_draft_of_ngram_mod_is_no_longer_than_its_longest(options: dict[str, Any], n_min: int) -> None:
    assert NgramMod(**options).n_min == n_min
