"""suffix: what it drafts, how much, and that it forgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec.drafters import create
from pyspec.drafters.registry import options_of, sorted_by_priority
from pyspec.drafters.suffix import Suffix
from pyspec.errors import ConfigError
from pyspec.speculation.draft import FREELY, Drafting, DraftRequest
from tests.drafters.test_suffix_automaton import Naive
from tests.helpers import PROMPT
from tests.playing import SuffixSpec, Table
from tests.reference import Request
from tests.strategies import request_groups

OpenZoo = Callable[[str], pyspec.Model]
NO_CAP = 1 << 20
A, B, X, Y = 1, 2, 24, 25
EASY: dict[str, Any] = {"n_match": 1, "factor": 100.0, "p_min": 0.0}  # drafts as much as there is


def ask(
    drafter: Suffix, text: Sequence[int], *, budget: int = NO_CAP, seq_id: int = 0, drafting: Drafting = FREELY
) -> list[int]:
    """Ask what follows a text, whose last token is pending."""
    request = DraftRequest(seq_id, text[:-1], text[-1], len(text) - 1, budget, drafting=drafting)
    return list(drafter.draft([request])[0].tokens)


def fresh(text: Sequence[int], **options: Any) -> list[int]:
    """What a drafter says that has just read all of a text."""
    return ask(Suffix(**options), text)


# What is drafted


def test_the_most_frequent_continuation_not_the_latest() -> None:
    text = [A, B, X, 5, A, B, X, 6, A, B, X, 7, A, B, Y, 8, A, B]
    assert fresh(text, **EASY, n_max=1) == [X]
    assert fresh([A, B, X, 5, A, B, X, 6, A, B, Y, 7, A, B, Y, 8, A, B], **EASY, n_max=1) == [Y]  # of equal ones


def test_the_longest_match_is_what_counts() -> None:
    text = [9, A, B, Y, 5, A, B, X, 6, A, B, X, 7, 9, A, B]
    assert fresh(text, **EASY, n_max=1) == [Y]


def test_drafts_go_on_where_the_text_ends() -> None:
    assert fresh([1, 2, 3] * 3, **EASY, n_max=8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_nothing_is_drafted_without_a_match() -> None:
    for text in ([1], [1, 2], [1, 2, 3, 4], [1, 1, 1, 2]):
        assert fresh(text, **EASY) == []


@settings(deadline=None)  # machines are shared
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 3),
    st.sampled_from((0.4, 0.5, 1.0, 2.5)),
    st.sampled_from((0.0, 0.3, 0.5)),
    st.integers(1, 9),
)
def test_the_rule_is_as_documented(text: list[int], n_match: int, factor: float, p_min: float, budget: int) -> None:
    naive = Naive(text)
    length = next(n for n in range(len(text) - 1, -1, -1) if n == 0 or naive.n_seen[tuple(text[-n:])] > 1)
    expected: list[int] = []
    sure: list[float] = []
    if length >= n_match:
        expected, sure = naive.follow(tuple(text[-length:]), min(6, budget, int(factor * length)), p_min)
    drafter = Suffix(n_match=n_match, factor=factor, p_min=p_min, n_max=6)
    assert ask(drafter, text, budget=budget) == expected
    request = DraftRequest(0, text[:-1], text[-1], len(text) - 1, budget, wants_signals=True)
    (draft,) = drafter.draft([request])
    assert (list(draft.tokens), list(draft.signals or ())) == (expected, sure)


# How much is drafted

PASSAGE = [*range(10, 30)]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_the_draft_grows_with_the_match(length: int) -> None:
    text = [*PASSAGE, 99, *PASSAGE[:length]]
    assert fresh(text) == PASSAGE[length : length + length // 2]
    assert fresh(text, factor=1.5, n_match=3) == (PASSAGE[length : 5 * length // 2] if length >= 3 else [])
    assert fresh(text, factor=2, n_max=3) == (PASSAGE[length : length + 3] if length >= 2 else [])
    assert ask(Suffix(factor=2), text, budget=2) == (PASSAGE[length : length + 2] if length >= 2 else [])


def test_the_product_of_the_shares_ends_a_draft() -> None:
    text = [A, X, 5, 6, A, X, 5, 7, A, Y, 8, A]  # X followed in 2 of 3 cases, 5 always, 7 in 1 of 2
    for p_min, length in ((0.0, 4), (0.33, 4), (0.34, 2), (0.66, 2), (0.67, 0)):
        options = {**EASY, "n_max": 4, "p_min": p_min}
        assert len(fresh(text, **options)) == length
        asked = ask(Suffix(**{**options, "p_min": 0.5}), text, drafting=Drafting(p_min=p_min))
        assert asked == fresh(text, **options)


def test_short_drafts_are_not_proposed() -> None:
    text = [*PASSAGE, 99, *PASSAGE[:4]]
    drafted = PASSAGE[4:8]
    assert fresh(text, factor=1, n_min=4) == drafted
    assert fresh(text, factor=1, n_min=5) == []
    assert ask(Suffix(factor=1), text, drafting=Drafting(n_min=5)) == []
    assert ask(Suffix(factor=1, n_min=5), text, drafting=Drafting(n_min=4)) == drafted
    assert ask(Suffix(factor=1), text, budget=3, drafting=Drafting(n_min=5)) == drafted[:3]  # as much as there may be
    split = [A, X, 5, 6, A, X, 5, 7, A, Y, 8, A]
    assert fresh(split, n_match=1, factor=4, p_min=0.5, n_min=3) == []  # because it ends early


def test_what_is_no_token_is_neither_matched_nor_drafted() -> None:
    text = [-1, -1, 5, 6, -1, 7, 5, 6]
    assert fresh(text, **EASY) == []
    assert fresh([5, 6, 7, -1, 8, 5, 6], **EASY) == [7]
    assert fresh([5, -1, 6, 7, 5, -1, 6], **EASY) == [7, 5]


# The history


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=60), st.lists(st.integers(1, 5), min_size=60))
def test_a_history_that_grows_says_what_one_read_at_once_says(tokens: list[int], steps: list[int]) -> None:
    drafter = Suffix(**EASY, n_max=6)
    drafter.begin(0, tokens[:1])
    end = 1
    for step in steps:
        end += step
        if end > len(tokens):
            break
        assert ask(drafter, tokens[:end]) == fresh(tokens[:end], **EASY, n_max=6)
        assert ask(drafter, tokens[:end]) == fresh(tokens[:end], **EASY, n_max=6)  # the round was undone


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=5), st.integers(1, 2))
def test_a_new_request_knows_only_its_own_text(texts: list[list[int]], part_kept: int) -> None:
    """Whether the new text has nothing in common with the former one, or begins like it, as after a rewind."""
    drafter = Suffix(**EASY, n_max=6)
    text: list[int] = []
    for part in texts:
        text = text[: len(text) // part_kept] + part
        drafter.begin(0, text[:-1])
        assert ask(drafter, text) == fresh(text, **EASY, n_max=6)
        drafter.begin(0, part[:-1])
        assert ask(drafter, part) == fresh(part, **EASY, n_max=6)


def test_a_conversation_that_goes_on_is_not_read_again() -> None:
    drafter = Suffix()
    text = [1, 2, 3, 4] * 5
    drafter.begin(0, text)
    ask(drafter, [*text, 5])
    automaton = drafter._seats[0].automaton
    drafter.begin(0, [*text, 5, 6, 7])
    assert drafter._seats[0].automaton is automaton
    assert list(automaton.text) == [*text, 5, 6, 7]
    drafter.begin(0, [*text, 5, 6, 8])
    assert drafter._seats[0].automaton is not automaton


def test_histories_that_shrink_or_shift_are_read_again() -> None:
    tokens = [(7 * i * i + i) % 31 for i in range(100)] * 2
    drafter = Suffix(**EASY, n_max=6)
    for text in (tokens[:100], tokens[:40], tokens[:41], tokens[:30] + tokens[50:140], tokens[:139], tokens[20:160]):
        assert ask(drafter, text) == fresh(text, **EASY, n_max=6)


def test_a_long_request_leaves_nothing_to_a_short_one() -> None:
    drafter = Suffix(**EASY)
    drafter.begin(0, [*range(500)] * 2)
    assert ask(drafter, [*range(500)] * 2)
    drafter.begin(0, [5, 6])
    assert ask(drafter, [5, 6, 7]) == []


def test_nothing_is_shared_by_default() -> None:
    drafter = Suffix(**EASY)
    for seq_id in (0, 1):
        drafter.begin(seq_id, [])
    assert ask(drafter, [1, 2, 3, 4, 1, 2], seq_id=0)[:4] == [3, 4, 1, 2]
    assert ask(drafter, [1, 2], seq_id=1) == []
    drafter.begin(0, [])
    assert ask(drafter, [1, 2], seq_id=0) == []
    assert ask(Suffix(**EASY), [1, 2]) == []
    assert drafter._memory is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=80))
def test_sequences_do_not_notice_each_other(news: list[tuple[int, int]]) -> None:
    drafter = Suffix(**EASY, n_max=6)
    texts: dict[int, list[int]] = {seq_id: [0] for seq_id in range(4)}
    for seq_id, token in news:
        texts[seq_id].append(token)
        asked = [DraftRequest(i, text[:-1], text[-1], len(text) - 1, NO_CAP) for i, text in texts.items()]
        drafts = [list(draft.tokens) for draft in drafter.draft(asked)]
        assert drafts == [fresh(text, **EASY, n_max=6) for text in texts.values()]


def test_the_history_is_not_copied() -> None:
    """A round takes a few tokens of it, however long it is."""
    taken: list[int] = []

    class Watched(list[int]):
        def __getitem__(self, at: Any) -> Any:
            part = super().__getitem__(at)
            taken.append(len(part) if isinstance(at, slice) else 1)
            return part

        def __iter__(self) -> Any:
            raise AssertionError

    history = Watched([1, 2, 3, 4] * 500)
    drafter = Suffix()
    drafter.begin(0, history)
    for token in (1, 2, 3, 4, 1, 2):
        taken.clear()
        assert drafter.draft([DraftRequest(0, history, token, len(history), NO_CAP)])[0].tokens
        assert sum(taken) < 20
        history.append(token)


# Past requests


def test_with_share_past_requests_are_proposed() -> None:
    drafter = Suffix(**EASY, share=True)
    drafter.begin(0, [1, 2, 3, 4])
    assert ask(drafter, [1, 2], seq_id=1) == []  # it is still running
    drafter.begin(0, [])
    assert ask(drafter, [1, 2], seq_id=1) == [3, 4]
    assert ask(drafter, [2, 3], seq_id=0) == [4]
    assert ask(drafter, [4, 9], seq_id=0) == []


def test_a_request_that_ends_is_remembered_at_once_and_once() -> None:
    drafter = Suffix(**EASY, share=True)
    drafter.begin(0, [1, 2, 3])
    drafter.end(0, [1, 2, 3, 4, 5])
    assert ask(drafter, [1, 2], seq_id=1) == [3, 4, 5]
    drafter.end(0, [1, 2, 3, 4, 5])
    drafter.begin(0, [1, 2, 3, 4, 5, 6])  # a conversation that goes on
    drafter.end(0, [1, 2, 3, 4, 5, 6, 7])
    assert drafter._memory is not None
    assert len(drafter._memory) == 7 + 2  # each request has a separator


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 9, 9], [9, 9, 9, 9, 9]])
def test_the_end_of_another_text_adds_nothing_of_it(tokens: list[int]) -> None:
    drafter = Suffix(**EASY, share=True)
    drafter.begin(0, [1, 2, 3])
    drafter.end(0, tokens)
    drafter.end(5, tokens)  # of a sequence that never began
    assert ask(drafter, [1, 2], seq_id=1) == [3]
    assert ask(drafter, [0, 9], seq_id=2) == []


def test_the_longer_match_wins_and_the_own_one_if_they_are_equal() -> None:
    drafter = Suffix(**EASY, share=True, n_max=1)
    drafter.begin(0, [1, 2, 3, 4])
    drafter.begin(0, [])
    assert ask(drafter, [2, 3, 5, 1, 2, 3], seq_id=1) == [4]
    assert ask(drafter, [1, 2, 3, 5, 1, 2, 3], seq_id=2) == [5]
    assert ask(drafter, [2, 3, 5, 9, 2, 3], seq_id=3) == [5]


def test_a_conversation_is_remembered_once() -> None:
    drafter = Suffix(share=True)
    turns = [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 9, 9]]
    for turn in [*turns, []]:
        drafter.begin(0, turn)
    assert drafter._memory is not None
    assert list(drafter._memory._newer.text) == [1, 2, 3, -1, 4, 5, -1, 9, 9, -1]


# Options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("n_max", 7),
        ("n_min", 3),
        ("n_match", 5),
        ("factor", 1.5),
        ("p_min", 0.125),
        ("share", True),
        ("max_tokens", 1000),
    ],
)
def test_every_option_arrives(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    assert options_of(create("suffix", **options))[option] == value != options_of(create("suffix"))[option]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_max": 0}, "n_max must be between 1"),
        ({"n_min": 33}, "n_min must be between 0 and 32"),
        ({"n_match": 0}, "n_match must be between 1"),
        ({"factor": -1}, "factor must be"),
        ({"factor": float("nan")}, "factor must be a number"),
        ({"p_min": 1.5}, "p_min must be"),
        ({"share": 1}, "share must be"),
        ({"max_tokens": 1}, "max_tokens must be between 2"),
        ({"file": "x.bin"}, "file is x.bin, but past requests are only kept with share on"),
        ({"file": "", "share": True}, "file must be the path of a file"),
        ({"file": "/nonexistent/x.bin", "share": True}, "nothing can be written to the folder /nonexistent"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Suffix(**options)


def test_it_is_the_first_of_all_drafters() -> None:
    assert sorted_by_priority(["draft-simple", "ngram-simple", "suffix"])[0] == "suffix"


# The output does not change


@settings(deadline=None)
@given(request_groups(), st.builds(SuffixSpec, st.integers(1, 3), st.integers(1, 6), st.booleans()))
def test_the_output_is_that_of_plain_decoding(requests: list[Request], spec: SuffixSpec) -> None:
    table = Table(requests, [spec])
    table.begin()
    table.play()
    table.check_end()


def engine_with(open_zoo: OpenZoo, target: str, types: str, *, n_slots: int = 1, **options: Any) -> pyspec.Engine:
    sizes = pyspec.ContextConfig(n_ctx=512 * n_slots, n_batch=64, n_ubatch=16, n_threads=1)
    speculation = pyspec.Speculation(types, options={types: options} if options else {})
    return pyspec.Engine(open_zoo(target), speculation=speculation, context=sizes, n_slots=n_slots)


@pytest.mark.native
@pytest.mark.model
@pytest.mark.parametrize("target", ["target-llama", "target-mtp", "target-mamba", "target-swa"])
def test_an_engine_says_the_same_in_fewer_rounds(open_zoo: OpenZoo, target: str) -> None:
    samplings = (pyspec.SamplingConfig(), pyspec.SamplingConfig(temperature=0.9, seed=3))
    with engine_with(open_zoo, target, "none") as plain, engine_with(open_zoo, target, "suffix", factor=1) as engine:
        for sampling in samplings:
            expected = plain.generate(PROMPT, max_tokens=150, sampling=sampling)
            result = engine.generate(PROMPT, max_tokens=150, sampling=sampling)
            assert result.tokens == expected.tokens
            assert result.stats.n_rounds == 150 - result.stats.n_accepted
            assert sampling.temperature or result.stats.n_accepted > 5


@pytest.mark.native
@pytest.mark.model
def test_an_engine_with_share_drafts_what_it_said_before(open_zoo: OpenZoo) -> None:
    with engine_with(open_zoo, "target-llama", "suffix", share=True) as engine:
        results = [engine.generate(prompt, max_tokens=60) for prompt in (PROMPT, [1, 75, 112], PROMPT)]
    n_accepted = [result.stats.n_accepted for result in results]
    assert results[0].tokens == results[2].tokens
    assert n_accepted[2] > n_accepted[0] + 20


@pytest.mark.native
@pytest.mark.model
def test_what_is_shared_reaches_all_slots(open_zoo: OpenZoo) -> None:
    with engine_with(open_zoo, "target-llama", "suffix", share=True, n_slots=3) as engine:
        first, second = (engine.generate(PROMPT, max_tokens=60) for _ in range(2))
        third = engine.stream([1, 75, 112], max_tokens=60)
        others = engine.generate_many([PROMPT, PROMPT], max_tokens=60)
        third.close()
    assert second.stats.n_accepted > first.stats.n_accepted + 20
    assert all(other.stats.n_accepted > first.stats.n_accepted + 20 for other in others)
