"""What past requests said, the oldest forgotten first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspec.drafters.suffix_automaton import NO_MATCH, Match, SuffixAutomaton
from pyspec.llama.batch import NO_TOKEN

_N_LOOKED_UP = 64  # tokens at the end of a text, where it was not followed so far


@dataclass(slots=True)
class Place:
    """Where a text that grows is in an automaton.

    Attributes:
        automaton: Which.
        n_known: Its size then; the place is good as long as it has that.
        n_read: Tokens of the text that were looked up.
        match: The longest end of these.
    """

    automaton: SuffixAutomaton
    n_known: int
    n_read: int
    match: Match = NO_MATCH


class SuffixMemory:
    """Two automata, since a single one cannot forget.

    Requests enter the newer one. When that is full it takes the place of the older one, which is forgotten, and an
    empty one becomes the newer one. So the last requests are known, as many as have ``max_tokens / 2`` tokens together.

    Args:
        max_tokens: The most that both hold together; each request takes one more than it has.
    """

    __slots__ = ("_half", "_newer", "_older")

    def __init__(self, max_tokens: int) -> None:
        self._half = max_tokens // 2
        self._older = SuffixAutomaton()
        self._newer = SuffixAutomaton()

    def __len__(self) -> int:
        return len(self._older) + len(self._newer)

    def add(self, request: Sequence[int]) -> None:
        """Take a request in, or its end when it is longer than there is room."""
        kept = request[max(0, len(request) - self._half + 1) :]
        if len(self._newer) + len(kept) >= self._half:
            self._older, self._newer = self._newer, SuffixAutomaton()
        self._newer.extend(kept)
        self._newer.append(NO_TOKEN)  # nothing reaches from one request into the next

    def find(self, text: Sequence[int], places: list[Place]) -> tuple[SuffixAutomaton, Match]:
        """Return the longest end of a text that goes on in a request, of equally long ones the newer, and where it is.

        Args:
            text: Only what is new of it is looked up.
            places: What former calls for the same text left here; empty at first.
        """
        places[:] = [self._place(automaton, text, places) for automaton in (self._newer, self._older)]
        matches = [(place.automaton, place.automaton.going_on(place.match)) for place in places]
        return max(matches, key=lambda found: found[1].length)

    def _place(self, automaton: SuffixAutomaton, text: Sequence[int], places: list[Place]) -> Place:
        """Return the place of a text in an automaton."""
        n_known = len(automaton)
        place = next((each for each in places if each.automaton is automaton and each.n_known == n_known), None)
        if place is None:
            place = Place(automaton, n_known, n_read=max(0, len(text) - _N_LOOKED_UP))
        place.match = automaton.find(text[place.n_read :], place.match)
        place.n_read = len(text)
        return place
