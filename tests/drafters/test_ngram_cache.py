"""ngram-cache against tables written by hand and against the rule written down naively."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.drafters import ngram_file
from pyspec.drafters.ngram_cache import NgramCache
from pyspec.drafters.ngram_table import Followers, Table
from pyspec.speculation.draft import DraftRequest, Needs

NO_CAP = 1 << 20
CONTEXT = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
DYNAMIC = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}

Event = tuple[tuple[int, ...], int]  # an n-gram and what followed it


def ask(
    drafter: NgramCache, history: Sequence[int], pending: int, *, budget: int = NO_CAP, seq_id: int = 0
) -> list[int]:
    request = DraftRequest(seq_id, history, pending, len(history), budget)
    return list(drafter.draft([request])[0].tokens)


def save(path: Path, table: dict[tuple[int, ...], dict[int, int]]) -> Path:
    """Write a file of counts; the followers of an n-gram are given in the order in which they were last seen."""
    made = Table()
    time = 0
    for ngram, followers in table.items():
        for token, count in followers.items():
            made.add(ngram, token, time, count)
            time += 1
    ngram_file.write(path, made.to_counts())
    return path


# The rule, written down without any index


def events_of(tokens: Sequence[int]) -> list[Event]:
    """Every n-gram of one to four tokens with its follower, in the order in which they are seen."""
    return [(tuple(tokens[i - n : i]), tokens[i]) for i in range(len(tokens)) for n in range(1, min(i, 4) + 1)]


def followers_of(events: list[Event], ngram: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Per follower how often it was seen, and when last."""
    found: dict[int, tuple[int, int]] = {}
    for time, (other, token) in enumerate(events):
        if other == ngram:
            found[token] = (found.get(token, (0, 0))[0] + 1, time)
    return found


def likely(events: list[Event], window: list[int], limits: Any, static: dict[int, tuple[int, int]]) -> int | None:
    for n in range(min(4, len(window)), 0, -1):
        found = followers_of(events, tuple(window[-n:]))
        if not found:
            continue
        weights = {
            token: (count * (100 * static[token][0] if token in static else 1), count, time)
            for token, (count, time) in found.items()
        }
        best = max(weights, key=lambda token: weights[token])
        total = sum(count for count, _ in found.values())
        least, percent = limits[n]
        if total >= least and 100 * found[best][0] >= percent * total:
            return best
    return None


def naive(
    tokens: list[int], *, n_max: int, dynamic: list[Event] | None = None, static: list[Event] | None = None
) -> list[int]:
    """Draft what follows tokens, of which the last one is pending."""
    context, drafted = events_of(tokens), list[int]()
    while len(tokens) >= 2 and len(drafted) < n_max:
        window = (tokens + drafted)[-4:]
        known = followers_of(static or [], tuple(window[-2:]))
        token = likely(context, window, CONTEXT, known)
        if token is None:
            token = likely(dynamic or [], window, DYNAMIC, known)
        if token is None and known:
            best = max(known, key=lambda each: known[each])
            total = sum(count for count, _ in known.values())
            if total >= 2 and 100 * known[best][0] >= 50 * total:
                token = best
        if token is None:
            break
        drafted.append(token)
    return drafted


texts = st.lists(st.integers(0, 2), min_size=1, max_size=50)


@settings(deadline=None)  # machines and disks are shared
@given(texts, st.integers(1, 9), st.integers(0, 49), st.lists(st.integers(1, 4), min_size=50))
def test_the_table_says_what_a_search_says(tokens: list[int], n_max: int, n_begin: int, steps: list[int]) -> None:
    drafter = NgramCache(n_max=n_max)
    history = tokens[: min(n_begin, len(tokens) - 1)]
    drafter.begin(0, history)
    grow = iter(steps)
    while len(history) < len(tokens):
        pending = tokens[len(history)]
        for budget in (1, 3, NO_CAP):
            expected = naive([*history, pending], n_max=min(n_max, budget))
            assert ask(drafter, history, pending, budget=budget) == expected
        history += tokens[len(history) : len(history) + next(grow)]


@settings(deadline=None)  # machines and disks are shared
@given(st.lists(texts, min_size=1, max_size=4), texts, texts)
def test_all_three_caches_say_what_a_search_says(
    tmp_path_factory: pytest.TempPathFactory, former: list[list[int]], corpus: list[int], tokens: list[int]
) -> None:
    static = [event for event in events_of(corpus) if len(event[0]) == 2]
    folder = tmp_path_factory.mktemp("caches")
    table = Table()
    for time, (ngram, token) in enumerate(static):
        table.add(ngram, token, time)
    ngram_file.write(folder / "static.bin", table.to_counts())
    dynamic = [event for request in former for event in events_of(request)]
    teacher = NgramCache(dynamic=folder / "dynamic.bin")
    for request in former:
        teacher.begin(0, request)
    teacher.close()
    expected = naive(tokens, n_max=8, dynamic=dynamic, static=static)
    drafter = NgramCache(static=folder / "static.bin", dynamic=folder / "dynamic.bin")  # both from files
    assert ask(drafter, tokens[:-1], tokens[-1]) == expected
    drafter = NgramCache(static=folder / "static.bin", dynamic=folder / "other.bin")
    for request in former:  # learned in this process
        drafter.begin(0, request)
    drafter.begin(0, [])
    assert ask(drafter, tokens[:-1], tokens[-1]) == expected


# Thresholds, one by one


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([5], []),  # a single token is not enough
        ([7, 5, 6, 8, 5], []),  # (5) was followed once, twice is needed; (8, 5) never
        ([7, 5, 6, 8, 5, 6, 9, 5], [6]),  # twice by 6; then (5, 6) by 8 and 9, the latter is half and the latest
        ([7, 5, 6, 8, 5, 6, 9, 5, 4, 1, 5], [6]),  # 2 of 3 are 66 percent
        ([7, 5, 6, 8, 5, 4, 9, 5], []),  # 1 of 2 are not, for a single token
        ([5, 6, 7, 9, 6, 8, 9, 5, 6], []),  # (5, 6) once, twice is needed; (6) by 7 and 8 in equal shares
    ],
)
def test_thresholds_of_the_context_cache(tokens: list[int], expected: list[int]) -> None:
    pending = tokens[-1] if tokens else 0
    assert ask(NgramCache(n_max=1), tokens[:-1], pending) == expected == naive(tokens or [0], n_max=1)


@pytest.mark.parametrize("n", [3, 4])
def test_a_long_ngram_of_the_context_needs_to_be_seen_once_only(n: int) -> None:
    ngram = [1, 2, 3, 4][:n]
    tokens = [*ngram, 9, 8, *ngram]
    assert ask(NgramCache(n_max=1), tokens[:-1], tokens[-1]) == [9]


def test_half_is_enough_for_a_pair_and_the_latest_of_two_wins() -> None:
    tokens = [0, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2]
    assert ask(NgramCache(n_max=1), tokens[:-1], 2) == [8]
    tokens = [0, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2]
    assert ask(NgramCache(n_max=1), tokens[:-1], 2) == [7]


def test_a_third_is_not_enough_for_a_pair() -> None:
    tokens = [0, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2, 9, 4, 1, 2]
    assert ask(NgramCache(n_max=1), tokens[:-1], 2) == []


def test_the_most_frequent_follower_not_the_latest() -> None:
    tokens = [0, 1, 2, 7, 5, 1, 2, 7, 6, 1, 2, 7, 3, 1, 2, 8, 4, 1, 2]
    assert ask(NgramCache(n_max=1), tokens[:-1], 2) == [7]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_thresholds_of_the_dynamic_cache(tmp_path: Path, n: int) -> None:
    least, percent = DYNAMIC[n]
    ngram = (1, 2, 3, 4)[4 - n :]
    history, pending = [9, *range(1, 4)], 4
    for total, best, expected in (
        (least - 1, least - 1, []),
        (least, least, [7]),
        (100, percent, [7]),
        (100, percent - 1, []),
    ):
        path = save(tmp_path / "dynamic.bin", {ngram: {7: best, **({8: total - best} if total > best else {})}})
        assert ask(NgramCache(n_max=1, dynamic=path), history, pending) == expected, (total, best)


@pytest.mark.parametrize(
    ("followers", "expected"),
    [
        ({7: 1}, []),
        ({7: 2}, [7]),
        ({7: 1, 8: 1}, [8]),  # half, and the latest
        ({8: 1, 7: 1}, [7]),
        ({7: 1, 8: 1, 6: 1}, []),
        ({7: 50, 8: 26, 6: 24}, [7]),
        ({7: 49, 8: 26, 6: 25}, []),
    ],
)
def test_thresholds_of_the_static_cache(tmp_path: Path, followers: dict[int, int], expected: list[int]) -> None:
    path = save(tmp_path / "static.bin", {(3, 4): followers})
    assert ask(NgramCache(n_max=1, static=path), [9, 3], 4) == expected


def test_only_pairs_of_the_static_cache_are_used(tmp_path: Path) -> None:
    path = save(tmp_path / "static.bin", {(4,): {7: 9}, (2, 3, 4): {7: 9}, (1, 2, 3, 4): {7: 9}})
    assert ask(NgramCache(static=path), [1, 2, 3], 4) == []


# Validation by the static cache


def test_the_static_cache_decides_between_followers(tmp_path: Path) -> None:
    tokens = [0, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2]  # 8 and 7 once each; without help 7, the later one
    path = save(tmp_path / "static.bin", {(1, 2): {8: 1, 3: 30}})
    assert ask(NgramCache(n_max=1, static=path), tokens[:-1], 2) == [8]


def test_what_the_static_cache_knows_must_still_be_frequent_enough(tmp_path: Path) -> None:
    tokens = [0, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2, 7, 4, 1, 2]  # 8 once, 7 twice
    path = save(tmp_path / "static.bin", {(1, 2): {8: 1}})
    assert ask(NgramCache(n_max=1, static=path), tokens[:-1], 2) == []  # 8 weighs most and is a third only


@pytest.mark.parametrize(("n_seen", "chosen"), [(99, 8), (100, 7), (101, 7)])
def test_the_static_cache_counts_a_hundred_times(tmp_path: Path, n_seen: int, chosen: int) -> None:
    context, static = Followers(8, 0), Table(ngram_file.read(save(tmp_path / "static.bin", {(1, 2): {8: 1, 3: 30}})))
    context.add(7, 1, n_seen)
    assert context.choose(static.get((1, 2)))[0] == chosen


def test_equal_weights_go_to_the_higher_count(tmp_path: Path) -> None:
    tokens = [0, 1, 2, 8, 5, 1, 2, 8, 6, 1, 2, 7, 4, 1, 2]  # 8 twice, 7 once
    path = save(tmp_path / "static.bin", {(1, 2): {8: 1, 7: 2}})  # 2 * 100 and 1 * 200
    assert ask(NgramCache(n_max=1, static=path), tokens[:-1], 2) == [8]


def test_equal_weights_and_counts_go_to_the_latest(tmp_path: Path) -> None:
    path = save(tmp_path / "static.bin", {(1, 2): {8: 3, 7: 3}})
    for last, other in ((7, 8), (8, 7)):
        tokens = [0, 1, 2, other, 5, 1, 2, last, 6, 1, 2]
        assert ask(NgramCache(n_max=1, static=path), tokens[:-1], 2) == [last]


def test_the_context_comes_first_and_the_static_cache_last(tmp_path: Path) -> None:
    tokens = [0, 1, 2, 3, 4, 5, 1, 2, 3]
    dynamic = save(tmp_path / "dynamic.bin", {(3,): {6: 9}})
    static = save(tmp_path / "static.bin", {(2, 3): {7: 9}})
    drafter = NgramCache(n_max=1, dynamic=dynamic, static=static)
    assert ask(drafter, tokens[:-1], 3) == [4]
    assert ask(drafter, [9, 8, 2], 3) == [6]
    assert ask(NgramCache(n_max=1, static=static), [9, 8, 2], 3) == [7]


def test_a_single_token_is_not_enough(tmp_path: Path) -> None:
    path = save(tmp_path / "dynamic.bin", {(5,): {6: 9}})
    assert ask(NgramCache(n_max=1, dynamic=path), [], 5) == []
    assert ask(NgramCache(n_max=1, dynamic=path), [4], 5) == [6]


# Requests and sequences


def test_ngrams_reach_over_rounds() -> None:
    drafter = NgramCache(n_max=4)
    tokens = [1, 2, 3, 4, 5, 1, 2, 3]
    drafts = [ask(drafter, tokens[:n], tokens[n]) for n in range(len(tokens))]  # every round adds one token
    assert drafts[-1] == [4, 5, 1, 2]


def test_a_long_request_is_not_drafted_in_the_next_one() -> None:
    drafter = NgramCache()
    drafter.begin(0, [1, 2, 3, 4, 5, 6] * 50)
    assert ask(drafter, [1, 2, 3, 4, 5, 6] * 50, 1)
    drafter.begin(0, [9, 9, 1])
    assert ask(drafter, [9, 9, 1], 2) == []


def test_sequences_do_not_see_each_other() -> None:
    drafter = NgramCache(n_max=2)
    histories = {0: [1, 2, 3, 4, 5, 9, 1, 2], 1: [1, 2, 3, 6, 7, 9, 1, 2]}
    for seq_id, history in histories.items():
        drafter.begin(seq_id, history)
    requests = [DraftRequest(seq_id, history, 3, 8, 9) for seq_id, history in histories.items()]
    assert [list(draft.tokens) for draft in drafter.draft(requests)] == [[4, 5], [6, 7]]


@settings(deadline=None)  # machines and disks are shared
@given(texts, st.integers(0, 50), st.integers(0, 50), texts)
def test_a_history_changed_without_notice_gives_only_what_followed_in_it(
    tokens: list[int], begin: int, end: int, added: list[int]
) -> None:
    """A block is removed from the middle, or the history shrinks, and nobody calls begin."""
    drafter = NgramCache()
    drafter.begin(0, tokens)
    changed = tokens[: min(begin, end)] + tokens[max(begin, end) :] + added
    draft = ask(drafter, changed[:-1], changed[-1])
    events = set(events_of(changed))
    window = list(changed)
    for token in draft:
        assert any((tuple(window[-n:]), token) in events for n in range(1, 5))
        window.append(token)


def test_a_shorter_history_is_counted_again() -> None:
    drafter = NgramCache(n_max=3)
    long = [i % 7 for i in range(100)]
    drafter.begin(0, long)
    assert ask(drafter, long, 2) == [3, 4, 5]
    short = [9, 8, 1, 2, 6, 6, 5] + [4] * 32 + [1]
    assert ask(drafter, short, 2) == []
    assert ask(drafter, [*short[:6], 9, 8, 1], 2) == [6, 6, 9]


def test_a_change_in_the_middle_is_noticed_when_it_matters() -> None:
    drafter = NgramCache(n_max=1)
    drafter.begin(0, [1, 2, 3, 7, 9, 9, 8, 8, 5, 1, 2])
    changed = [1, 2, 3, 6, 9, 9, 8, 8, 5, 1, 2]  # as long as before, and with the same end
    assert ask(drafter, changed, 3) == [6]


def test_another_pending_token_is_another_history() -> None:
    drafter = NgramCache(n_max=1)
    history = [1, 2, 3, 4, 9, 1, 2]
    assert ask(drafter, history, 3) == [4]
    assert ask(drafter, history, 9) == naive([*history, 9], n_max=1)
    assert ask(drafter, history, 3) == [4]


def test_a_draft_without_begin_works_and_nothing_needs_saving() -> None:
    history = [1, 2, 3, 4, 5] * 12
    drafter = NgramCache(n_max=3)
    assert ask(drafter, history, 1) == [2, 3, 4]
    assert drafter.save_state(0) is None
    assert drafter.needs is Needs.NOTHING
    drafter.close()
    drafter.close()
