"""ngram-simple against recorded histories and against the rule written down naively."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.drafters.ngram_simple import NgramSimple
from pyspec.errors import ConfigError
from pyspec.speculation.draft import DraftRequest, Needs

GOLDEN = sorted((Path(__file__).parent.parent / "data" / "golden" / "ngram").glob("ngram-simple*.json"))


def ask(drafter: NgramSimple, history: list[int], pending: int, *, budget: int = 1 << 20, seq_id: int = 0) -> list[int]:
    request = DraftRequest(seq_id, history, pending, len(history), budget)
    return list(drafter.draft([request])[0].tokens)


def naive(history: list[int], pending: int, *, n: int, m: int, budget: int = 1 << 20) -> list[int]:
    """Search backwards for the latest earlier occurrence of the key; position 0 does not count."""
    if len(history) <= n + m + 1:
        return []
    key = [*history, pending][-n:]
    for start in range(len(history) - n - 1, 0, -1):
        if history[start : start + n] == key:
            following = history[start + n :][:m]
            return following[:budget] if len(following) >= min(n, m) else []
    return []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_recorded_histories(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    sizes = {name: value for name, value in case["params"].items() if name.startswith("size_")}
    tokens, n_prompt = case["tokens"], case["prompt_len"]
    drafter = NgramSimple(**sizes)
    history = tokens[: n_prompt - 1]
    drafter.begin(0, history)
    budget = case["n_draft_max"] if case["n_draft_max"] >= 0 else 1 << 20
    position = n_prompt - 1
    for recorded_position, name, recorded_draft, recorded_accepted in case["rounds"]:
        assert position == recorded_position
        draft = ask(drafter, history, tokens[position], budget=budget)
        assert draft == recorded_draft
        assert (drafter.name if draft else "") == name
        n_accepted = 0
        for drafted, said in zip(draft, tokens[position + 1 : -1], strict=False):
            if drafted != said:
                break
            n_accepted += 1
        assert n_accepted == recorded_accepted
        if draft:
            drafter.accept(0, n_accepted, own=True)
        history += tokens[position : position + n_accepted + 1]
        position += n_accepted + 1


def test_all_recorded_histories_are_here() -> None:
    assert len(GOLDEN) == 8


histories = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@given(histories, st.integers(1, 4), st.integers(1, 6), st.integers(0, 59), st.lists(st.integers(1, 4), min_size=60))
def test_the_index_finds_what_a_search_finds(
    tokens: list[int], n: int, m: int, n_prompt: int, steps: list[int]
) -> None:
    drafter = NgramSimple(size_n=n, size_m=m)
    history = tokens[: min(n_prompt, len(tokens) - 1)]
    drafter.begin(0, history)
    grow = iter(steps)
    while len(history) < len(tokens):
        pending = tokens[len(history)]
        for budget in (1, 2, 1 << 20):
            expected = naive(history, pending, n=n, m=m, budget=budget)
            assert ask(drafter, history, pending, budget=budget) == expected
        history += tokens[len(history) : len(history) + next(grow)]


@given(histories, histories, st.integers(1, 3), st.integers(1, 4))
def test_a_new_request_starts_from_nothing(former: list[int], tokens: list[int], n: int, m: int) -> None:
    drafter = NgramSimple(size_n=n, size_m=m)
    drafter.begin(0, former)
    ask(drafter, former, 0)
    drafter.begin(0, tokens[:-1])
    assert ask(drafter, tokens[:-1], tokens[-1]) == naive(tokens[:-1], tokens[-1], n=n, m=m)


@given(histories, st.integers(0, 60), st.integers(0, 60), histories, st.integers(1, 3), st.integers(1, 4))
def test_a_history_changed_without_notice_gives_only_what_followed_in_it(
    tokens: list[int], begin: int, end: int, added: list[int], n: int, m: int
) -> None:
    """A block is removed from the middle, or the history shrinks, and nobody calls begin."""
    drafter = NgramSimple(size_n=n, size_m=m)
    drafter.begin(0, tokens)
    changed = tokens[: min(begin, end)] + tokens[max(begin, end) :] + added
    history, pending = changed[:-1], changed[-1]
    draft = ask(drafter, history, pending)
    key = [*history, pending][-n:]
    assert len(draft) <= m
    assert not draft or any(
        history[start : start + n] == key and history[start + n : start + n + len(draft)] == draft
        for start in range(1, len(history))
    )


def test_a_shorter_history_is_indexed_again() -> None:
    drafter = NgramSimple(size_n=2, size_m=3)
    long = [i % 7 for i in range(100)]
    drafter.begin(0, long)
    assert ask(drafter, long, 2) == [3, 4, 5]
    short = [9, 8, 1, 2, 6, 6, 6] + [5] * 32 + [1]
    assert ask(drafter, short, 2) == [6, 6, 6]
    assert ask(drafter, [*short, 2], 6) == [6, 6, 5]


def test_a_block_that_moved_is_found_where_it_is_now() -> None:
    drafter = NgramSimple(size_n=2, size_m=2)
    drafter.begin(0, [0, 5, 6, 7, 8, 9, 9, 5])
    assert ask(drafter, [0, 9, 5, 6, 7, 8, 9, 5], 6) == [7, 8]  # as long as before, and with the same end


def test_a_long_request_is_not_drafted_in_the_next_one() -> None:
    drafter = NgramSimple(size_n=2, size_m=3)
    drafter.begin(0, [1, 2, 3, 4, 5, 6] * 50)
    drafter.begin(0, [9, 9, 1])
    assert ask(drafter, [9, 9, 1], 2) == []


def test_a_new_request_as_long_as_the_former_one_and_with_the_same_end_is_indexed() -> None:
    drafter = NgramSimple(size_n=1, size_m=2)
    drafter.begin(0, [0, 1, 2, 3, 4, 5, 6, 7])
    history = [0, 8, 6, 9, 9, 9, 9, 7]
    drafter.begin(0, history)
    assert ask(drafter, history, 8) == [6, 9]


def test_sequences_do_not_see_each_other() -> None:
    drafter = NgramSimple(size_n=2, size_m=2)
    drafter.begin(0, [0, 1, 2, 3, 4, 5, 6, 1])
    drafter.begin(1, [0, 1, 2, 8, 9, 5, 6, 1])
    assert ask(drafter, [0, 1, 2, 3, 4, 5, 6, 1], 2, seq_id=0) == [3, 4]
    assert ask(drafter, [0, 1, 2, 8, 9, 5, 6, 1], 2, seq_id=1) == [8, 9]


def test_several_requests_are_answered_in_their_order() -> None:
    drafter = NgramSimple(size_n=1, size_m=2)
    histories = {3: [0, 5, 6, 7, 1], 1: [0, 5, 8, 9, 1]}
    requests = [DraftRequest(seq_id, history, 5, 5, 9) for seq_id, history in histories.items()]
    assert [list(draft.tokens) for draft in drafter.draft(requests)] == [[6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("history", "pending", "expected"),
    [
        ([0, 1, 2, 3, 4, 9, 1], 2, []),  # len(history) must exceed n + m + 1
        ([0, 1, 2, 3, 4, 9, 9, 1], 2, [3, 4, 9, 9]),
        ([1, 2, 3, 4, 5, 9, 9, 1], 2, []),  # position 0 is no match
        ([0, 1, 2, 7, 1, 2, 8, 8, 1], 2, [8, 8, 1]),  # the latest one
        ([0, 9, 9, 9, 9, 9, 1, 2, 1], 2, []),  # fewer than n tokens follow
    ],
)
def test_small_cases(history: list[int], pending: int, expected: list[int]) -> None:
    drafter = NgramSimple(size_n=2, size_m=4)
    assert ask(drafter, history, pending) == expected == naive(history, pending, n=2, m=4)


def test_a_draft_may_be_shorter_than_the_key() -> None:
    drafter = NgramSimple(size_n=4, size_m=1)
    assert ask(drafter, [0, 1, 2, 3, 4, 5, 1, 2, 3], 4) == [5]


class CountedTokens(list[int]):
    """A list that counts how many of its tokens are read."""

    n_read = 0

    def __getitem__(self, part: Any) -> Any:
        found = super().__getitem__(part)
        self.n_read += len(found) if isinstance(part, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.n_read += len(self)
        return super().__iter__()


def tokens_read_per_round(n_history: int) -> float:
    history = CountedTokens(i % 50 for i in range(n_history))
    drafter = NgramSimple(size_n=3, size_m=8)
    drafter.begin(0, history)
    history.n_read = 0
    for round_ in range(100):
        assert len(ask(drafter, history, (n_history + round_) % 50)) == 8
        history.append((n_history + round_) % 50)
    return history.n_read / 100


def test_a_round_costs_the_same_however_long_the_history_is() -> None:
    short, long = tokens_read_per_round(100), tokens_read_per_round(20_000)
    assert short == long < 40


def test_every_option_changes_a_field() -> None:
    default = NgramSimple()
    assert (default.size_n, default.size_m, default.n_max) == (12, 48, 48)
    changed = NgramSimple(size_n=3, size_m=7)
    assert (changed.size_n, changed.size_m, changed.n_max) == (3, 7, 7)
    assert changed.needs is Needs.NOTHING


@pytest.mark.parametrize(
    "options", [{"size_n": 0}, {"size_m": 0}, {"size_n": 1 << 17}, {"size_n": 2.5}, {"size_m": True}]
)
def test_sizes_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        NgramSimple(**options)


def test_it_has_no_state_of_its_own_to_save() -> None:
    drafter = NgramSimple()
    assert drafter.save_state(0) is None
    drafter.close()
    drafter.close()
