"""The suffix automaton against every run of tokens written down."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspec.drafters import suffix_automaton
from pyspec.drafters.suffix_automaton import SuffixAutomaton

Context = tuple[int, ...]


class Naive:
    """What an automaton says, by a table of all contexts of a text."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.text: Context = ()
        self.n_seen: Counter[Context] = Counter()
        self.followers: dict[Context, dict[int, tuple[int, int]]] = {}  # token to count and time of the last one
        for token in text:
            self.append(token)

    def append(self, token: int) -> None:
        n = len(self.text)
        sizes: set[int] = set()  # of the sets of places where known contexts ended; each is part of the next one
        for first in range(n if token >= 0 else 0):
            context = self.text[first:]
            counts = self.followers.setdefault(context, {})
            if token in counts:
                sizes.add(self.n_seen[context])
                if len(sizes) <= suffix_automaton.REACH:
                    counts[token] = (counts[token][0] + 1, n)
            else:
                counts[token] = (1, n)
        self.text += (token if token >= 0 else -n - 1,)  # what is no token is never the same again
        self.n_seen.update(self.text[first:] for first in range(n + 1))

    def match(self, tokens: Sequence[int], n_times: int) -> Context:
        """The longest end of some tokens that occurs so often."""
        ends = (tuple(tokens[first:]) for first in range(len(tokens)))
        return next((end for end in ends if self.n_seen[end] >= n_times), ())

    def going_on(self, context: Context) -> Context:
        while context and not self.followers.get(context):
            context = context[1:]
        return context

    def follow(self, context: Context, n_max: int, p_min: float) -> tuple[list[int], list[float]]:
        found: list[int] = []
        sure: list[float] = []
        product = 1.0
        while len(found) < n_max:
            context = self.going_on(context)
            if not context:
                break
            counts = self.followers[context]
            token = max(counts, key=lambda each: counts[each])
            total = sum(count for count, _ in counts.values())
            share = counts[token][0] / total
            product *= share
            if product < p_min:
                break
            found.append(token)
            sure.append(self.sure(context, total) if len(counts) == 1 else share**2)
            context += (token,)
        return found, sure

    def sure(self, context: Context, total: int) -> int:
        ends = (context[first:] for first in range(1, len(context)))
        rest = next((end for end in ends if self.n_seen[end] > self.n_seen[context]), ())
        if rest and len(self.followers[rest]) == 1:
            ((count, _),) = self.followers[rest].values()
            return len(context) * count
        return (len(context) - len(rest)) * total


def counts_of(automaton: SuffixAutomaton, state: int) -> dict[int, int]:
    """What followed a state, and how often."""
    others = automaton._others.get(state, {})
    counts = Counter({token: packed & suffix_automaton._COUNT for token, packed in others.items()})
    if automaton._total[state]:
        counts[automaton._token[state]] = automaton._count[state]
    assert sum(counts.values()) == automaton._total[state]
    assert automaton._count[state] == max(counts.values(), default=0)
    return counts


def built(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


texts = st.one_of(
    st.lists(st.integers(0, 1), max_size=40),
    st.lists(st.integers(-1, 3), max_size=40),
    st.lists(st.integers(0, 2), min_size=20, max_size=40),
)


@settings(deadline=None)  # machines are shared
@given(texts, st.integers(0, 12), st.sampled_from((0.0, 0.3, 0.5, 1.0)))
@example([0, 0, 1] * 12, 12, 0.0)
@example([0, 1, 0, 1, 0, 2, 0, 2, 0], 1, 0.0)
def test_it_says_what_a_table_of_all_contexts_says(text: list[int], n_max: int, p_min: float) -> None:
    automaton, naive = SuffixAutomaton(), Naive()
    for token in text:
        automaton.append(token)
        naive.append(token)
        context = naive.going_on(naive.match(naive.text, 2))
        match = automaton.match
        assert match.length == len(context)
        assert automaton.follow(match, n_max, p_min) == naive.follow(context, n_max, p_min)
    assert list(automaton.text) == text
    for context, followers in naive.followers.items():
        if min(context) >= 0:
            found = automaton.find(context)
            assert found.length == len(context)
            assert counts_of(automaton, found.state) == {token: count for token, (count, _) in followers.items()}


@settings(deadline=None)
@given(texts, st.lists(st.integers(-1, 3), max_size=8))
def test_the_longest_end_of_any_tokens_is_found(text: list[int], tokens: list[int]) -> None:
    automaton, naive = built(text), Naive(text)
    first = max((i + 1 for i, token in enumerate(tokens) if token < 0), default=0)
    context = naive.match(tokens[first:], 1)
    found = automaton.find(tokens)
    assert found.length == len(context)
    assert automaton.find(tokens[2:], automaton.find(tokens[:2])) == found
    going_on = automaton.going_on(found)
    assert going_on.length == len(naive.going_on(context))
    for match in (found, going_on):
        assert automaton.follow(match, 4, 0.0) == naive.follow(context, 4, 0.0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), max_size=40), st.integers(1, 4))
def test_beyond_its_reach_contexts_are_not_counted(text: list[int], reach: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_automaton, "REACH", reach)
        automaton, naive = built(text), Naive(text)
    for context, followers in naive.followers.items():
        expected = {token: count for token, (count, _) in followers.items()}
        assert counts_of(automaton, automaton.find(context).state) == expected


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        ("abcd xbcd abc", 3 * 2),  # after "bc", "d" came both times
        ("abcd xbce abc", 1 * 1),  # there, "e" came too: only the "a" tells them apart
        ("abcd bcd bcd abc", 3 * 3),
        ("abcd-xc+abcd*xe/abc", 2 * 2),  # after "c", "+" came too, and "ab" tells them apart
        ("abcd abce abc", 1 * 1),  # after "abc", "e" came last, and only the space tells them apart
        ("abcd-abce+abc", 0.25),
        ("abcd abc", 3),
    ],
)
def test_what_went_on_otherwise_in_a_shorter_context_is_less_sure(text: str, sure: float) -> None:
    automaton = built([ord(each) for each in text])
    tokens, signals = automaton.follow(automaton.match, 1, 0.0)
    assert (tokens[0] in (ord("d"), ord("e")), signals) == (True, [sure])


def test_it_knows_nothing_at_first() -> None:
    automaton = SuffixAutomaton()
    assert automaton.match == automaton.find([1, 2]) == (0, 0)
    assert automaton.follow(suffix_automaton.NO_MATCH, 5, 0.0) == ([], [])
    assert len(automaton) == 0


class Counting(list[int]):
    """A list that counts how often it is read."""

    n_read = 0

    def __getitem__(self, at: Any) -> Any:
        Counting.n_read += 1
        return super().__getitem__(at)


def fibonacci(n: int) -> list[int]:
    word, longer = [0], [0, 1]
    while len(word) < n:
        word, longer = longer, longer + word
    return word[:n]


NASTY = {
    "one token": lambda n: [1] * n,
    "a loop": lambda n: [1, 2, 3] * (n // 3),
    "runs that end": lambda n: ([1] * 50 + [2]) * (n // 51),
    "halves": lambda n: [1] * (n // 2) + [2] * (n // 2),
    "twice": lambda n: [*range(n // 2)] * 2,
    "nothing again": lambda n: [*range(n)],
    "fibonacci": fibonacci,
}


@pytest.mark.parametrize("make", NASTY.values(), ids=NASTY.keys())
def test_a_token_costs_the_same_however_long_the_text_is(make: Any) -> None:
    """Measured in links followed, which every loop of the automaton does."""
    for n in (1_000, 8_000):
        automaton = SuffixAutomaton()
        automaton._link = Counting(automaton._link)
        Counting.n_read = 0
        text = make(n)
        automaton.extend(text)
        assert Counting.n_read <= (suffix_automaton.REACH + 6) * len(text)
        assert len(automaton._length) <= 2 * len(text)


@pytest.mark.parametrize("make", NASTY.values(), ids=NASTY.keys())
def test_its_size_is_as_documented(make: Any) -> None:
    text = make(20_000)
    tracemalloc.start()
    try:
        automaton = built(text)
        n_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert n_bytes <= 450 * len(automaton)
