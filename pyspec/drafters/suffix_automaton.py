"""A suffix automaton that counts: every run of tokens in a text, and how often each token followed it.

A *context* is a run of tokens in the text. Contexts that ended at the same places so far are one *state*, which is
what keeps the automaton small: a text of n tokens has at most 2 n states and 3 n *continuations*, the tokens that
followed. A state's *link* leads to the longest end of its contexts that also occurred elsewhere. Appending a token
takes constant time on average, whatever the text is (Blumer et al., 1985).

Each continuation has a count. When a token is appended, it is counted in every context at the text's end that it
followed before, the longest first, along the links. In text that repeats itself without end there are as many of these
as repetitions, so a token is counted in ``REACH`` states at most. Elsewhere there are fewer, and counts are exact.

Tokens below 0 stand for what is no token: no context reaches over one, and it is no continuation.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

REACH = 32
_NO_EDGE = -(1 << 31)
_ROOT = 0
_COUNT_BITS = 32
_COUNT = (1 << _COUNT_BITS) - 1


class Match(NamedTuple):
    """The longest end of some tokens that an automaton knows: the state it has there, and how many tokens it has."""

    state: int
    length: int


NO_MATCH = Match(_ROOT, 0)


class SuffixAutomaton:
    """The contexts of a text that grows.

    The most frequent continuation of each state stands in columns, so that following it takes no search; of equally
    frequent ones the most recent is that. Most states have no other. What the others need is in ``_others``.

    Attributes:
        text: What was appended.
    """

    __slots__ = ("_count", "_last", "_length", "_link", "_others", "_target", "_token", "_total", "text")

    def __init__(self) -> None:
        self.text = array("i")
        self._length = [0]  # of the longest context, per state
        self._link = [-1]
        self._token = [_NO_EDGE]  # most frequent continuation, where it leads, and how often
        self._target = [_ROOT]
        self._count = [0]
        self._total = [0]  # of all continuations
        self._others: dict[int, dict[int, int]] = {}  # state to token to target and count, in one integer
        self._last = _ROOT

    def __len__(self) -> int:
        return len(self.text)

    @property
    def match(self) -> Match:
        """The longest end of the text that also occurs before, and goes on there."""
        state = max(self._link[self._last], _ROOT)
        return self.going_on(Match(state, self._length[state]))

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Append a token, and count it in the contexts that it follows."""
        self.text.append(token)
        lengths, links = self._length, self._link
        state = self._last
        new = self._last = self._add_state(lengths[state] + 1)
        if token < 0:
            return
        target = _ROOT
        while state >= 0 and not (target := self._target_of(state, token)):
            self._add_edge(state, token, new)
            state = links[state]
        if state < 0:
            links[new] = _ROOT
        elif lengths[target] == lengths[state] + 1:
            links[new] = target
        else:
            links[new] = self._split(state, token, target)
        self._count_up(state, token)

    def find(self, tokens: Iterable[int], former: Match = NO_MATCH) -> Match:
        """Return the longest end of some tokens that occurs in the text.

        Args:
            tokens: What to look up.
            former: The longest end of what stands before them, found since the text grew last.
        """
        state, length = former
        for token in tokens:
            while not (target := self._target_of(state, token)) and state:
                state = self._link[state]
                length = self._length[state]
            state = target
            length = length + 1 if target else 0
        return Match(state, length)

    def going_on(self, match: Match) -> Match:
        """Return the longest end of a match that some token followed."""
        state, length = match
        while state > _ROOT and not self._total[state]:
            state = self._link[state]
            length = self._length[state]
        return Match(state, length)

    def follow(self, match: Match, n_max: int, p_min: float) -> tuple[list[int], list[float]]:
        """Return the most frequent continuation of a match, its most frequent continuation, and so on.

        A token's share is its count among those of all continuations of its context. Where the text ends, the longest
        end of the context that did go on takes its place.

        Args:
            match: Where to begin.
            n_max: The most tokens to return.
            p_min: Stop before the product of the shares is lower.

        Returns:
            The tokens, and how sure each is. When its context also went on otherwise, that is the square of the share,
            below 1. Else it depends on the longest end of the context that occurred more often. If that always went on
            with this token, too, it is how often, times the length of the context. If it went on otherwise, too, only
            what the context has before it speaks for this token: how many tokens that are, times how often the context
            went on.
        """
        links, totals, counts, tokens, targets = self._link, self._total, self._count, self._token, self._target
        lengths = self._length
        found: list[int] = []
        sure: list[float] = []
        product, (state, length) = 1.0, match
        while len(found) < n_max:
            while state > _ROOT and not totals[state]:
                state = links[state]
                length = min(length, lengths[state])
            if state == _ROOT:
                break
            total = totals[state]
            share = counts[state] / total
            product *= share
            if product < p_min:
                break
            found.append(tokens[state])
            if share < 1.0:
                sure.append(share * share)
            elif (link := links[state]) and counts[link] == totals[link]:
                sure.append(length * totals[link])
            else:
                sure.append((length - lengths[link]) * total)
            state = targets[state]
            length += 1
        return found, sure

    def _add_state(self, length: int) -> int:
        state = len(self._length)
        self._length.append(length)
        self._link.append(_ROOT)
        self._token.append(_NO_EDGE)
        self._target.append(_ROOT)
        self._count.append(0)
        self._total.append(0)
        return state

    def _target_of(self, state: int, token: int) -> int:
        """Return where a token leads, or the root when it never followed: nothing leads there."""
        if self._token[state] == token:
            return self._target[state]
        others = self._others.get(state)
        return others.get(token, _ROOT) >> _COUNT_BITS if others else _ROOT

    def _add_edge(self, state: int, token: int, target: int) -> None:
        """Note that a token followed for the first time."""
        self._total[state] += 1
        if self._count[state] > 1:
            self._others.setdefault(state, {})[token] = target << _COUNT_BITS | 1
            return
        if self._count[state]:  # as frequent, but less recent
            self._push_aside(state)
        self._token[state], self._target[state], self._count[state] = token, target, 1

    def _push_aside(self, state: int) -> None:
        """Let another continuation take the place of the most frequent one."""
        packed = self._target[state] << _COUNT_BITS | self._count[state]
        self._others.setdefault(state, {})[self._token[state]] = packed

    def _count_up(self, state: int, token: int) -> None:
        """Count a token that followed a state before, and thereby all ends of its contexts."""
        links, totals, counts, tokens = self._link, self._total, self._count, self._token
        for _ in range(REACH):
            if state <= _ROOT:
                break
            totals[state] += 1
            if tokens[state] == token:
                counts[state] += 1
            else:
                self._count_other(state, token)
            state = links[state]

    def _count_other(self, state: int, token: int) -> None:
        """Count a continuation that was not the most frequent one; it may be now."""
        others = self._others[state]
        packed = others[token] + 1
        count = packed & _COUNT
        if count < self._count[state]:
            others[token] = packed
            return
        del others[token]
        self._push_aside(state)
        self._token[state], self._target[state], self._count[state] = token, packed >> _COUNT_BITS, count

    def _split(self, state: int, token: int, target: int) -> int:
        """Give the contexts of ``target`` up to those that come from ``state`` a state of their own; return it."""
        clone = self._add_state(self._length[state] + 1)
        for column in (self._link, self._token, self._target, self._count, self._total):
            column[clone] = column[target]
        if target in self._others:
            self._others[clone] = self._others[target].copy()
        self._link[target] = clone
        links, tokens, targets = self._link, self._token, self._target
        while state >= 0:  # all have the continuation
            if tokens[state] == token:
                if targets[state] != target:
                    break
                targets[state] = clone
            else:
                others = self._others[state]
                packed = others[token]
                if packed >> _COUNT_BITS != target:
                    break
                others[token] = clone << _COUNT_BITS | packed & _COUNT
            state = links[state]
        return clone
