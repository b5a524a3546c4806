"""Past requests: the oldest are forgotten first, and a text is followed through them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.drafters.suffix_memory import Place, SuffixMemory


def test_the_oldest_requests_are_forgotten_first() -> None:
    memory = SuffixMemory(40)
    requests = [[10 * i, 10 * i + 1, 10 * i + 2, 10 * i + 3] for i in range(1, 30)]
    for n, request in enumerate(requests):
        memory.add(request)
        assert len(memory) <= 40
        known = [memory.find(each[:3], [])[1].length == 3 for each in requests[: n + 1]]
        assert known == sorted(known)  # all that are forgotten are older than those that are not
        assert sum(known) >= min(n + 1, 4)
        assert memory.find(request[:3], [])[0].text[-5:].tolist() == [*request, -1]


def test_of_a_request_larger_than_the_room_the_end_is_remembered() -> None:
    memory = SuffixMemory(20)
    memory.add([*range(100)])
    assert len(memory) == 10
    assert memory.find([95, 96, 97, 98], [])[1].length == 4
    assert memory.find([89, 90], [])[1].length == 0
    memory.add([])
    assert memory.find([98], [])[1].length == 1


def test_no_match_reaches_from_one_request_into_the_next() -> None:
    memory = SuffixMemory(100)
    memory.add([1, 2])
    memory.add([3, 4])
    automaton, match = memory.find([1], [])
    assert match.length == 1
    assert automaton.follow(match, 5, 0.0)[0] == [2]
    assert memory.find([1, 2], [])[1].length == 0
    assert memory.find([2, 3], [])[1].length == 1


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(-1, 2), st.lists(st.integers(-1, 2), max_size=12)), max_size=60))
def test_following_a_text_finds_what_looking_it_up_finds(news: list[int | list[int]]) -> None:
    """Tokens of the text, and now and then a request that ends."""
    memory = SuffixMemory(30)
    text: list[int] = []
    places: list[Place] = []
    for new in news:
        if isinstance(new, list):
            memory.add(new)
        else:
            text.append(new)
        automaton, match = memory.find(text, places)
        other, expected = memory.find(text, [])
        assert (automaton, match.length) == (other, expected.length)
        assert automaton.follow(match, 6, 0.0) == other.follow(expected, 6, 0.0)
        assert len(memory) <= 30
