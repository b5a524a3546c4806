"""Chances are learned from the tokens that were emitted: by signal and place, per drafter and request."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.speculation.acceptance import Acceptance, bin_of
from pyspec.speculation.draft import Draft
from pyspec.speculation.scoring import Scores

signals = st.one_of(st.none(), st.floats(0.0, 1.0), st.floats(1.0, 1e6), st.just(float("inf")))
seen = st.lists(st.tuples(st.integers(0, 1), st.sampled_from("ab"), st.integers(0, 20), signals, st.booleans()))


def learned(observed: list[tuple[int, str, int, float | None, bool]]) -> Acceptance:
    acceptance = Acceptance()
    for seq_id, drafter, i, signal, right in observed:
        acceptance.learn(seq_id, drafter, i, signal, right=right)
    return acceptance


# Bins


def test_tokens_of_like_signal_share_a_bin_and_others_those_of_like_place() -> None:
    shares = [bin_of("d", share, 0)[1] for share in (0.0, 0.19, 0.2, 0.5, 0.65, 0.85, 0.95, 0.97, 0.999)]
    assert shares == [1, 1, 2, 3, 4, 5, 6, 7, 7]
    matches = [bin_of("d", float(match), 0)[1] for match in (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 1000, 1e30)]
    assert [match - matches[0] for match in matches] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5]
    assert [bin_of("d", None, i)[2] for i in (0, 1, 2, 3, 6, 7, 100)] == [1, 2, 2, 3, 3, 4, 4]
    for signal in (0.5, 9.0):  # it says it all
        assert len({bin_of("d", signal, i) for i in range(20)}) == 1
    assert bin_of("d", None, 2) == ("d", 0, 2)


@given(seen, signals, st.integers(0, 30))
def test_a_chance_is_one(
    observed: list[tuple[int, str, int, float | None, bool]], signal: float | None, i: int
) -> None:
    acceptance = learned(observed)
    for drafter in "abc":
        assert 0.0 < acceptance.chance(0, drafter, signal, i) < 1.0
        path = acceptance.path(0, drafter, None if signal is None else [signal] * 5, 5)
        assert path == sorted(path, reverse=True)
        assert all(0.0 < each < 1.0 for each in path)
        hoped = acceptance.expected(0, drafter, 5, hopeful=True)
        assert all(0.0 < each < 1.0 for each in hoped)


def test_without_anything_seen_priors_count() -> None:
    acceptance = Acceptance()
    assert acceptance.expected(0, "x", 3) == [0.5] * 3
    acceptance.priors["x"] = 0.8
    assert acceptance.expected(0, "x", 3) == [0.8] * 3
    assert acceptance.path(0, "x", None, 2) == pytest.approx([0.8, 0.64])
    likely = [acceptance.chance(0, "x", share, 0) for share in (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)]
    assert likely == sorted(likely)
    longer = [acceptance.chance(0, "x", match, 0) for match in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)]
    assert longer == sorted(longer)
    assert acceptance.expected(0, "x", 0) == []


# Learning


@pytest.mark.parametrize("signal", [None, 0.85, 12.0])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9, 1.0])
def test_what_is_seen_often_is_learned(signal: float | None, chance: float) -> None:
    acceptance, numbers = Acceptance(), random.Random(1)  # noqa: S311 - tokens
    for _ in range(600):
        acceptance.learn(0, "d", 0, signal, right=numbers.random() < chance)
    assert acceptance.chance(0, "d", signal, 0) == pytest.approx(chance, abs=0.15)
    acceptance.begin(0)  # another request begins where this one got to
    assert acceptance.chance(0, "d", signal, 0) == pytest.approx(chance, abs=0.12)
    assert acceptance.chance(0, "other", signal, 0) == Acceptance().chance(0, "other", signal, 0)


def test_a_request_has_its_own_chances() -> None:
    acceptance = Acceptance()
    for _ in range(60):
        acceptance.learn(0, "d", 0, 12.0, right=True)
        acceptance.learn(1, "d", 0, 12.0, right=False)
    good, bad, new = (acceptance.chance(seq_id, "d", 12.0, 0) for seq_id in (0, 1, 2))
    assert good > 0.75
    assert 0.4 < new < 0.6
    assert bad < 0.25
    acceptance.begin(1)
    assert acceptance.chance(1, "d", 12.0, 0) == new
    assert acceptance.chance(0, "d", 12.0, 0) == good


def test_what_is_old_fades() -> None:
    acceptance = Acceptance()
    for right in (True, False):
        for _ in range(150):
            acceptance.learn(0, "d", 0, 12.0, right=right)
    assert acceptance.chance(0, "d", 12.0, 0) < 0.15


def test_every_token_counts_for_its_place_too() -> None:
    """So what a drafter would do is known before it has drafted, whatever its signals will be."""
    acceptance = Acceptance()
    for _ in range(300):
        acceptance.learn(0, "d", 0, 0.99, right=True)
        acceptance.learn(0, "d", 1, 0.5, right=False)
    first, *others = acceptance.expected(0, "d", 9)
    assert first > 0.9
    assert len(set(others)) == 1  # of an unknown place, what the one before has
    assert 0.0 < others[0] < 0.2


def test_what_was_seen_long_ago_of_a_request_counts_for_less() -> None:
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.learn(1, "d", 0, None, right=True)
    for _ in range(30):
        acceptance.learn(0, "d", 0, None, right=False)
    chances = [acceptance.expected(0, "d", 1, n_stale=n)[0] for n in (0, 100, 500, 5000)]
    assert chances == sorted(chances)
    assert chances[0] < chances[-1] == pytest.approx(acceptance.expected(2, "d", 1)[0], abs=1e-3)


def test_hope_shrinks_with_what_is_known() -> None:
    acceptance = Acceptance()
    hopes = []
    for _ in range(4):
        plain, hopeful = acceptance.expected(0, "d", 1)[0], acceptance.expected(0, "d", 1, hopeful=True)[0]
        hopes.append(hopeful - plain)
        for _ in range(20):
            acceptance.learn(0, "d", 0, None, right=True)
            acceptance.learn(0, "d", 0, None, right=False)
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[-1] > 0.0


# What is remembered


@given(seen)
def test_what_is_known_counts_for_a_new_engine(observed: list[tuple[int, str, int, float | None, bool]]) -> None:
    acceptance, other = learned(observed), Acceptance()
    other.load(acceptance.known())
    for drafter, i, signal in {(drafter, i, signal) for _, drafter, i, signal, _ in observed}:
        assert other.chance(7, drafter, signal, i) == pytest.approx(acceptance.chance(7, drafter, signal, i))


def test_what_is_remembered_counts_for_so_many_tokens_at_most() -> None:
    acceptance, other = Acceptance(), Acceptance()
    for _ in range(2000):
        acceptance.learn(0, "d", 0, 12.0, right=True)
    other.load(acceptance.known())
    assert {n for *_, n in other.known()} == {50.0}
    for _ in range(200):
        other.learn(0, "d", 0, 12.0, right=False)
    assert other.chance(1, "d", 12.0, 0) < 0.3


@pytest.mark.parametrize("right", [-1.0, 3.0, float("nan")])
def test_counts_that_cannot_be_are_refused(right: float) -> None:
    with pytest.raises(ValueError, match=r"of 2\.0 tokens cannot have been right"):
        Acceptance().load([["d", 0, 1, right, 2.0]])


# Scoring


class Seen(Acceptance):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, int, float | None, bool]] = []

    def learn(self, seq_id: int, drafter: str, i: int, signal: float | None, *, right: bool) -> None:
        assert seq_id == 3
        self.heard.append((drafter, i, signal, right))


def followed(draft: Draft, said: list[int], *, at_once: bool) -> list[tuple[str, int, float | None, bool]]:
    """Return what is learned of a draft after [1, 2] 3, when ``said`` follows."""
    acceptance = Seen()
    scores = Scores(acceptance)
    history = [1, 2]
    scores.watch(3, "d", 2, draft)
    for n in [len(said)] if at_once else range(len(said) + 1):
        tokens = [*history, 3, *said[:n]]
        scores.follow(3, tokens[:-1], tokens[-1])
    return acceptance.heard


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=24)


@pytest.mark.parametrize("with_signals", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
@given(drafted=tokens, said=tokens)
def test_a_draft_is_scored_up_to_its_first_wrong_token(
    drafted: list[int],
    said: list[int],
    *,
    with_signals: bool,
    at_once: bool,
) -> None:
    signals = [float(1 + i) for i in range(len(drafted))] if with_signals else None
    expected = []
    for i, (ours, theirs) in enumerate(zip(drafted[:16], said, strict=False)):
        expected.append(("d", i, signals[i] if signals else None, ours == theirs))
        if ours != theirs:
            break
    assert followed(Draft(tuple(drafted), signals=signals), said, at_once=at_once) == expected


def test_one_draft_of_each_drafter_is_followed_at_a_time() -> None:
    acceptance = Seen()
    scores = Scores(acceptance)
    scores.watch(3, "d", 2, Draft((5, 6)))
    scores.watch(3, "d", 2, Draft((9,)))  # not this one
    scores.watch(3, "other", 2, Draft((9,)))
    scores.follow(3, [1, 2, 3], 5)
    assert acceptance.heard == [("d", 0, None, True), ("other", 0, None, False)]
    scores.watch(3, "other", 3, Draft((6,)))  # its former one has ended
    scores.follow(3, [1, 2, 3, 5], 6)
    assert acceptance.heard[2:] == [("d", 1, None, True), ("other", 0, None, True)]
    scores.follow(3, [1, 2, 3, 5, 6], 7)
    assert len(acceptance.heard) == 4


def test_a_sequence_with_another_history_starts_anew() -> None:
    acceptance = Seen()
    scores = Scores(acceptance)
    scores.watch(3, "d", 2, Draft((5, 6)))
    scores.forget(3)
    scores.follow(3, [1, 2, 3], 5)
    assert acceptance.heard == []
    scores.follow(4, [1], 2)  # nothing is known of it


@given(seen, st.lists(st.floats(0.0, 64.0), min_size=1, max_size=20), st.floats(0.0, 1.0))
def test_a_path_ends_where_it_is_not_worth_a_thought(
    observed: list[tuple[int, str, int, float | None, bool]], of_tokens: list[float], least: float
) -> None:
    acceptance = learned(observed)
    whole = acceptance.path(0, "a", of_tokens, len(of_tokens))
    assert len(whole) == len(of_tokens)
    path = acceptance.path(0, "a", of_tokens, len(of_tokens), least)
    assert path == whole[: len(path)]
    assert all(chance >= least for chance in path[1:])
    assert len(path) == len(whole) or whole[len(path)] < least
