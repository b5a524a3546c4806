"""Prove that a greedy lexer does no harm to a grammar; see ``gbnf_cut`` for what that means.

Two sets of characters are compared. What can *follow* a lexeme is computed on the grammar, as a fixed point over its
rules. What can *continue* a match is read off the deterministic automaton of all lexemes together. Both are
supersets, so that the proof may fail where greed would do no harm, never the reverse: the automaton ignores which
lexemes may stand where, and it does not count (``x{2,5}`` is taken for ``x+``). Sets of characters are integers with
one bit for each class of characters that no set of the grammar tells apart.

The lexer reads bytes, and gives up only at the first byte that cannot go on. So characters whose UTF-8 begins with
the same byte count as the same one here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pyspec.llama.grammar.gbnf_nodes import LAST_CHAR, Alt, Chars, Lexeme, Node, Ref, Repeat, Seq, leaves, parts

_MAX_STATES = 3000
_MAX_CLASSES = 3000
_MAX_PASSES = 100
_MAX_STEPS = 300_000
"""Limits of a proof, of some tenths of a second: states of the automaton, classes of characters, passes over the
rules until nothing changes, and edges looked at."""


class TooLargeError(Exception):
    """The proof outgrew its limits."""


def unsafe_lexemes(rules: dict[str, Node], flat: dict[str, Node]) -> set[Lexeme]:
    """Return lexemes that have to be split, because greed may do harm to them or through them.

    Args:
        rules: Trees with ``Lexeme``, ``Tokens`` and ``Ref`` as leaves, near the root first.
        flat: Trees of the rules that lexemes may refer to.

    Raises:
        TooLargeError: There are too many characters, states or rules.
    """
    try:
        lexemes = [leaf for tree in rules.values() for leaf in leaves(tree) if isinstance(leaf, Lexeme)]
        automaton = _Automaton(lexemes, flat)
        follow = _Follow(rules, automaton).masks
        found: set[Lexeme] = set()
        for finished, states in automaton.matches():
            alive = automaton.alphabet.alike(automaton.taken(states))
            for lexeme in finished:
                clash = automaton.alphabet.alike(alive & follow.get(lexeme, 0))
                others = automaton.long_ones(states, clash) - {lexeme}
                if clash:
                    found |= others or {lexeme}  # what goes on past a lexeme is rather split than the lexeme
    except RecursionError:  # long chains of rules are followed by recursion
        raise TooLargeError from None
    return found


class _Alphabet:
    """Classes of characters, one bit each: ``masks`` has them for each set of characters."""

    def __init__(self, trees: Iterable[Node]) -> None:
        sets = [leaf for tree in trees for leaf in leaves(tree) if isinstance(leaf, Chars)]
        borders = {border for chars in sets for first, last in chars.ranges for border in (first, last + 1)}
        if len(borders) > _MAX_CLASSES:
            raise TooLargeError
        bits = {border: 1 << i for i, border in enumerate(sorted(borders.union(_FIRST_OF_LEADS)))}
        self.masks = {chars: sum(bits[last + 1] - bits[first] for first, last in chars.ranges) for chars in sets}
        self.leads: dict[int, int] = {}  # per first byte of several in UTF-8 the classes
        for border, bit in bits.items():
            if border >= _FIRST_OF_LEADS[0]:
                self.leads[_lead(border)] = self.leads.get(_lead(border), 0) | bit

    def alike(self, mask: int) -> int:
        """Add the classes that begin with the same byte as one that is in the mask."""
        return mask | _union(lead for lead in self.leads.values() if lead & mask)


def _lead(code: int) -> int:
    """Return the first byte of a character that takes several in UTF-8."""
    return chr(code).encode("utf-8", "surrogatepass")[0] if code <= LAST_CHAR else 0


_FIRST_OF_LEADS = [
    *range(0x80, 0x800, 0x40),
    0x800,
    *range(0x1000, 0x10000, 0x1000),
    0x10000,
    *range(0x40000, LAST_CHAR, 0x40000),
]
"""The first character of each first byte."""


class _Automaton:
    """A nondeterministic automaton for all lexemes; a set of its states is an integer with one bit each."""

    def __init__(self, lexemes: list[Lexeme], flat: dict[str, Node]) -> None:
        self.flat = flat
        self.alphabet = _Alphabet([*(lexeme.item for lexeme in lexemes), *flat.values()])
        self.silent: list[list[int]] = []  # per state where it leads without a character
        self.edges: list[tuple[int, int] | None] = []  # per state the characters it takes, and where they lead
        self.owner: list[Lexeme] = []
        self.final: dict[int, Lexeme] = {}
        self.starts: dict[Lexeme, int] = {}
        for lexeme in lexemes:
            self.current = lexeme
            self.starts[lexeme] = self._state()
            self.final[self._build(lexeme.item, self.starts[lexeme])] = lexeme
        self.closures: dict[int, int] = {}
        self.n_steps = 0

    def _state(self) -> int:
        if len(self.silent) >= _MAX_STATES:
            raise TooLargeError
        self.silent.append([])
        self.edges.append(None)
        self.owner.append(self.current)
        return len(self.silent) - 1

    def _build(self, node: Node, start: int) -> int:
        """Add what a node matches from a state on; return the state at its end."""
        match node:
            case Chars():
                inner, end = self._state(), self._state()  # the start may have other ways to go
                self.silent[start].append(inner)
                self.edges[inner] = (self.alphabet.masks[node], end)
                return end
            case Ref():
                return self._build(self.flat[node.name], start)
            case Alt():
                end = self._state()
                for option in node.options:
                    self.silent[self._build(option, start)].append(end)
                return end
            case Repeat():
                return self._build_repeat(node, start)
            case _:
                for item in parts(node):
                    start = self._build(item, start)
                return start

    def _build_repeat(self, node: Repeat, start: int) -> int:
        if node.high == 0:
            return start
        inner, end = self._state(), self._state()
        self.silent[start].append(inner)
        last = self._build(node.item, inner)
        self.silent[last].append(end)
        if node.high != 1:
            self.silent[last].append(inner)
        if node.low == 0:
            self.silent[start].append(end)
        return end

    def closure(self, state: int) -> int:
        """Return the states that a state leads to without a character, itself included."""
        if state not in self.closures:
            seen, todo = 1 << state, [state]
            while todo:
                for other in self.silent[todo.pop()]:
                    if not seen >> other & 1:
                        seen |= 1 << other
                        todo.append(other)
            self.closures[state] = seen
        return self.closures[state]

    def first(self, lexeme: Lexeme) -> tuple[int, bool]:
        """Return the characters that a lexeme can begin with, and whether it can be empty."""
        states = list(_bits(self.closure(self.starts[lexeme])))
        return self.taken(states), any(self.final.get(state) is lexeme for state in states)

    def taken(self, states: list[int]) -> int:
        """Return the characters that these states take."""
        return _union(mask for mask, _ in self._edges(states))

    def long_ones(self, states: list[int], chars: int) -> set[Lexeme]:
        """Return the lexemes of more than one character that take one of these from one of these states."""
        edges = ((self.owner[state], self.edges[state]) for state in states)
        return {owner for owner, edge in edges if edge and edge[0] & chars and not owner.is_char}

    def matches(self) -> Iterator[tuple[list[Lexeme], list[int]]]:
        """Walk through the deterministic automaton of all lexemes.

        Yields:
            For each of its states that stands behind a match: the lexemes that match, and the states it is made of.
        """
        start = _union(self.closure(state) for state in self.starts.values())
        seen: set[int] = set()  # without the start: a match has at least one character
        todo = [start]
        while todo:
            for after in self._successors(list(_bits(todo.pop()))):
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
                    states = list(_bits(after))
                    finished = [self.final[state] for state in states if state in self.final]
                    if finished:
                        yield finished, states

    def _edges(self, states: list[int]) -> list[tuple[int, int]]:
        return [edge for edge in map(self.edges.__getitem__, states) if edge]

    def _successors(self, states: list[int]) -> set[int]:
        """Return the states of the deterministic automaton that one more character leads to."""
        edges = self._edges(states)
        found = set()
        left = self.taken(states)
        while left:
            self.n_steps += len(edges)
            if self.n_steps > _MAX_STEPS:
                raise TooLargeError
            char = left & -left
            alike = left  # the characters that take the same edges as this one
            for mask, _ in edges:
                alike &= mask if mask & char else ~mask
            left &= ~alike
            found.add(_union(self.closure(end) for mask, end in edges if mask & char))
        return found


class _Follow:
    """Which characters can follow each lexeme: ``masks``."""

    def __init__(self, rules: dict[str, Node], automaton: _Automaton) -> None:
        self.rules = rules
        self.lexeme_first = {lexeme: automaton.first(lexeme) for lexeme in automaton.starts}
        self.rule_first = dict.fromkeys(rules, (0, False))
        self.rule_follow = dict.fromkeys(rules, 0)
        self.masks: dict[Lexeme, int] = {}
        self.changed = True
        self._settle(self._update_first, reversed(rules))  # what is known of a rule goes up,
        self._settle(self._update_follow, rules)  # what can follow goes down

    def _settle(self, update: Callable[[str], None], names: Iterable[str]) -> None:
        """Update all rules until nothing changes."""
        order = list(names)
        for _ in range(_MAX_PASSES):
            self.changed = False
            for name in order:
                update(name)
            if not self.changed:
                return
        raise TooLargeError

    def _update_first(self, name: str) -> None:
        first = self._first(self.rules[name])
        self.changed |= first != self.rule_first[name]
        self.rule_first[name] = first

    def _update_follow(self, name: str) -> None:
        self._walk(self.rules[name], self.rule_follow[name])

    def _first(self, node: Node) -> tuple[int, bool]:
        """Return the characters that a node can begin with, and whether it can be empty."""
        match node:
            case Lexeme():
                return self.lexeme_first[node]
            case Ref():
                return self.rule_first[node.name]
            case Seq():
                return self._first_of(node.items)
        firsts = [self._first(part) for part in parts(node)]  # a token has no parts, and is no text
        optional = isinstance(node, Repeat) and node.low == 0
        return _union(mask for mask, _ in firsts), optional or any(empty for _, empty in firsts)

    def _first_of(self, items: tuple[Node, ...]) -> tuple[int, bool]:
        mask = 0
        for item in items:
            first, empty = self._first(item)
            mask |= first
            if not empty:
                return mask, False
        return mask, True

    def _walk(self, node: Node, after: int) -> None:
        """Note that ``after`` can follow a node."""
        match node:
            case Lexeme():
                self.changed |= bool(after & ~self.masks.get(node, 0))
                self.masks[node] = after | self.masks.get(node, 0)
            case Ref():
                self.changed |= bool(after & ~self.rule_follow[node.name])
                self.rule_follow[node.name] |= after
            case Repeat():
                self._walk(node.item, after | (self._first(node.item)[0] if node.high != 1 else 0))
            case Seq():
                for item in reversed(node.items):
                    self._walk(item, after)
                    first, empty = self._first(item)
                    after = first | after if empty else first
            case _:
                for option in parts(node):
                    self._walk(option, after)


def _union(masks: Iterable[int]) -> int:
    total = 0
    for mask in masks:
        total |= mask
    return total


def _bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
