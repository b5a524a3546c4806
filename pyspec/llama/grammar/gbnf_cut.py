"""Cut a GBNF grammar into lexemes without changing what it allows.

llguidance parses in two stages. A lexer cuts the output into *lexemes*, each described by a regular expression, and
a parser arranges these. The lexer is greedy: of all the lexemes that may stand at a place it takes the longest
match. GBNF knows nothing of that: ``root ::= "a" "bc" | "ab" "d"`` allows ``abc``, but a greedy lexer that may
choose between the lexemes ``a`` and ``ab`` takes ``ab`` and fails.

If every lexeme is a single character, the lexer has no choice and everything is right, and slow. So lexemes are as
long as they can be: whatever does not lead back to itself is regular and may be one. Then it is proved that greed
does no harm, and what cannot be proved is split into its parts, in the end into characters:

    a lexeme is safe if no character that can follow it in the grammar could also have continued it, or any other
    lexeme, from one of its matches.

``gbnf_proof`` does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspec.llama.grammar.gbnf_nodes import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq, Tokens, leaves, rebuild
from pyspec.llama.grammar.gbnf_proof import TooLargeError, unsafe_lexemes

_MAX_ROUNDS = 40
"""A grammar that is not safe after so many is split into characters, which needs no proof."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A grammar in lexemes.

    Attributes:
        rules: Trees with ``Lexeme``, ``Tokens`` and ``Ref`` as leaves; one is "root".
        flat: Trees of the rules that lexemes may refer to, each after those that it refers to itself.
    """

    rules: dict[str, Node]
    flat: dict[str, Node]


def cut(rules: dict[str, Node]) -> Cut:
    """Cut a grammar, which has a rule ``root`` and no undefined names, into lexemes."""
    flat = _flat_rules(rules)
    if "root" in flat:
        return Cut({"root": Lexeme(rules["root"])}, flat)  # nothing follows: nothing to prove
    cover = _Cover(rules, flat).cover
    cutting = {name: cover(rules[name]) for name in _reachable(rules, flat)}
    try:
        for _ in range(_MAX_ROUNDS):
            unsafe = unsafe_lexemes(cutting, flat)
            if not unsafe:
                return Cut(cutting, flat)
            cutting = _split(cutting, unsafe, flat)
    except TooLargeError:
        pass
    return Cut(_spell(cutting, flat), flat)


def _flat_rules(rules: dict[str, Node]) -> dict[str, Node]:
    """Return the rules that are regular: without tokens, and not leading back to themselves.

    Each comes after the rules that it refers to.
    """
    missing: dict[str, set[str]] = {}  # per rule the names it refers to that are not known to be flat
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, tree in rules.items():
        parts = list(leaves(tree))
        if not any(isinstance(part, Tokens) for part in parts):
            missing[name] = {part.name for part in parts if isinstance(part, Ref)}
            for other in missing[name]:
                users[other].append(name)
    todo = [name for name, names in missing.items() if not names]
    for name in todo:  # grows while it is read
        for user in users[name]:
            missing[user].discard(name)
            todo += [] if missing[user] else [user]
    return {name: rules[name] for name in todo}


def _is_flat(node: Node, flat: dict[str, Node]) -> bool:
    return all(leaf.name in flat if isinstance(leaf, Ref) else not isinstance(leaf, Tokens) for leaf in leaves(node))


def _reachable(rules: dict[str, Node], flat: dict[str, Node]) -> list[str]:
    """Return the names of the rules that are not flat and that ``root`` leads to, near ones first."""
    found = {"root": None}
    todo = ["root"]
    for name in todo:  # grows while it is read
        for leaf in leaves(rules[name]):
            if isinstance(leaf, Ref) and leaf.name not in flat and leaf.name not in found:
                found[leaf.name] = None
                todo.append(leaf.name)
    return todo


class _Cover:
    """Makes the largest possible lexemes of the rules that are not flat."""

    def __init__(self, rules: dict[str, Node], flat: dict[str, Node]) -> None:
        self.rules = rules
        self.flat = flat
        self.inlining = False

    def cover(self, node: Node) -> Node:
        """Cover a tree that is not flat as a whole."""
        match node:
            case Seq():
                return Seq(tuple(self._run(node.items)))
            case Alt():
                joined, rest = self._apart(node)
                return Alt((*map(self.cover, rest), *_lexemes(joined, Alt)))
            case Repeat(high=None):
                return self._loop(node)
            case _:
                return rebuild(node, self.cover)

    def _run(self, items: tuple[Node, ...]) -> Iterator[Node]:
        """Join neighbours that are flat."""
        run: list[Node] = []
        for item in items:
            if _is_flat(item, self.flat):
                run.append(item)
            else:
                yield from _lexemes(run, Seq)
                run = []
                yield self.cover(item)
        yield from _lexemes(run, Seq)

    def _loop(self, node: Repeat) -> Node:
        """Cover ``(text | other)*`` as ``text* (other text*)*``, so that a text is never followed by itself.

        A greedy lexer could not tell the end of the first text from the beginning of the next. A rule in the loop is
        taken for what it stands for, but not one within that: there might be no end of it.
        """
        inlined = isinstance(node.item, Ref) and not self.inlining
        item = self.rules[node.item.name] if isinstance(node.item, Ref) and inlined else node.item
        joined, rest = self._apart(item) if isinstance(item, Alt) else ([], [])
        if not joined or node.low > 1:
            return Repeat(self.cover(node.item), node.low, None)
        before, self.inlining = self.inlining, self.inlining or inlined
        other = Alt(tuple(map(self.cover, rest)))
        self.inlining = before
        text = joined[0] if len(joined) == 1 else Alt(tuple(joined))

        def texts(low: int) -> Node:
            return Lexeme(Repeat(text, low, None))

        if node.low == 0:
            return Seq((texts(0), Repeat(Seq((other, texts(0))), 0, None)))
        begins_with_text = Seq((texts(1), Repeat(Seq((other, texts(0))), 0, None)))
        return Alt((begins_with_text, Repeat(Seq((other, texts(0))), 1, None)))

    def _apart(self, node: Alt) -> tuple[list[Node], list[Node]]:
        """Return the options that are flat, and the others."""
        joined = [option for option in node.options if _is_flat(option, self.flat)]
        return joined, [option for option in node.options if not _is_flat(option, self.flat)]


def _lexemes(nodes: list[Node], join: type[Seq | Alt]) -> list[Node]:
    """Return one lexeme of all nodes, or none of none."""
    return [Lexeme(nodes[0] if len(nodes) == 1 else join(tuple(nodes)))] if nodes else []


def _split(cutting: dict[str, Node], unsafe: set[Lexeme], flat: dict[str, Node]) -> dict[str, Node]:
    """Split the unsafe lexemes into their parts; a flat rule becomes one more rule, with a dot behind its name."""
    used: dict[str, Node] = {}

    def split(node: Node) -> Node:
        if node not in unsafe or not isinstance(node, Lexeme):
            return rebuild(node, split)
        if isinstance(node.item, Ref):
            name = f"{node.item.name}."
            if name not in cutting:
                used[name] = Lexeme(flat[node.item.name])
            return Ref(name)
        return rebuild(node.item, Lexeme)

    return {name: split(tree) for name, tree in cutting.items()} | used


def _spell(cutting: dict[str, Node], flat: dict[str, Node]) -> dict[str, Node]:
    """Split all lexemes into characters."""
    wanted: dict[str, None] = {}

    def spell(node: Node) -> Node:
        match node:
            case Lexeme():
                return spell(node.item)
            case Chars():
                return Lexeme(node)
            case Ref() if node.name in flat:
                wanted[node.name] = None
                return Ref(f"{node.name}.")
            case _:
                return rebuild(node, spell)

    spelled = {name: spell(tree) for name, tree in cutting.items()}
    while wanted:
        name, _ = wanted.popitem()
        if f"{name}." not in spelled:
            spelled[f"{name}."] = spell(flat[name])
    return spelled
