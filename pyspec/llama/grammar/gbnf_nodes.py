"""The tree of a GBNF grammar. Nodes are equal only when they are the same object, so that they can be keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

LAST_CHAR = 0x10FFFF


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character out of ``ranges``: pairs of first and last code point, sorted, apart from each other."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """One token: this one, or with ``negated`` any but this one."""

    token: int
    negated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """What the rule of this name describes."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """One after the other; with no items, nothing."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """One of these."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """``low`` to ``high`` times the item; ``high`` None means no end."""

    item: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Lexeme:
    """Text that is matched as one piece: an item without tokens that does not lead back to itself."""

    item: Node

    @property
    def is_char(self) -> bool:
        """Whether this is one character, which nothing can be wrong with."""
        return isinstance(self.item, Chars)


Node: TypeAlias = "Chars | Tokens | Ref | Seq | Alt | Repeat | Lexeme"


def parts(node: Node) -> tuple[Node, ...]:
    """Return what a node is made of; nothing for a leaf."""
    match node:
        case Seq():
            return node.items
        case Alt():
            return node.options
        case Repeat():
            return (node.item,)
        case _:
            return ()


def leaves(node: Node) -> Iterator[Node]:
    """Yield the leaves of a tree from left to right."""
    inner = parts(node)
    if not inner:
        yield node
    for part in inner:
        yield from leaves(part)


def rebuild(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return the node with each of its parts changed; a leaf as it is."""
    match node:
        case Seq():
            return Seq(tuple(map(change, node.items)))
        case Alt():
            return Alt(tuple(map(change, node.options)))
        case Repeat():
            return Repeat(change(node.item), node.low, node.high)
        case _:
            return node


def ending_rules(rules: dict[str, Node]) -> set[str]:
    """Return the names of the rules that some text matches; the others lead to themselves for ever."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, tree in rules.items():
        for leaf in leaves(tree):
            if isinstance(leaf, Ref):
                users[leaf.name].add(name)
    ending: set[str] = set()
    todo = list(rules)
    while todo:
        name = todo.pop()
        if name not in ending and _ends(rules[name], ending):
            ending.add(name)
            todo.extend(users[name])
    return ending


def _ends(node: Node, ending: set[str]) -> bool:
    match node:
        case Ref():
            return node.name in ending
        case Alt():
            return any(_ends(option, ending) for option in node.options)
        case Repeat():
            return node.low == 0 or _ends(node.item, ending)
        case _:
            return all(_ends(part, ending) for part in parts(node))
