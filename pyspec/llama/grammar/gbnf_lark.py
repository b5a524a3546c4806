"""A GBNF grammar as llguidance takes it: in Lark's syntax, each lexeme a terminal."""

from __future__ import annotations

from pyspec.llama.grammar import lark
from pyspec.llama.grammar.gbnf_cut import Cut, cut
from pyspec.llama.grammar.gbnf_nodes import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq, Tokens, parts
from pyspec.llama.grammar.gbnf_syntax import KIND, parse
from pyspec.llama.vocab import Vocab


def source(text: str, vocab: Vocab) -> lark.Source:
    """Make the source of a GBNF grammar.

    Raises:
        GrammarError: The text is wrong.
    """
    return lark.wrap(_Writer(cut(parse(text, vocab))).text(), lark.without_place(KIND))


class _Writer:
    """Gives every node that is more than a name a definition of its own, so that nothing is nested."""

    def __init__(self, grammar: Cut) -> None:
        self.grammar = grammar
        self.lines: list[str] = []
        self.terminals: dict[Node, str] = {}
        self.choices: dict[Alt, list[str]] = {}
        self.by_text: dict[str, str] = {}
        self.rule_names = {name: f"r{i}" for i, name in enumerate(grammar.rules)}

    def text(self) -> str:
        for tree in self.grammar.flat.values():  # each after those it refers to: no chain of rules is too long
            self._terminal(tree)
        for name, tree in self.grammar.rules.items():
            self.lines.append(f"{self.rule_names[name]}: {self._rule(tree)}")
        return "\n".join([f"start: {self.rule_names['root']}", *self.lines])

    def _rule(self, node: Node) -> str:
        """Return a node of the grammar's rules as it stands on the right of a colon."""
        match node:
            case Lexeme():
                return self._terminal(node.item)
            case Ref():
                return self.rule_names[node.name]
            case Tokens():
                return f"<[{'^' if node.negated else ''}{node.token}]>"
            case _:
                return _joined(node, [self._named_rule(part) for part in parts(node)])

    def _named_rule(self, node: Node) -> str:
        written = self._rule(node)
        if isinstance(node, (Lexeme, Ref, Tokens)):
            return written
        self.lines.append(f"g{len(self.lines)}: {written}")
        return f"g{len(self.lines) - 1}"

    def _terminal(self, node: Node) -> str:
        """Return the name of a terminal for a node without rules."""
        if isinstance(node, Ref):
            return self._terminal(self.grammar.flat[node.name])
        if node not in self.terminals:
            written = self._written(node)
            if written not in self.by_text:
                self.by_text[written] = f"T{len(self.by_text)}"
                self.lines.append(f"{self.by_text[written]}: {written}")
            self.terminals[node] = self.by_text[written]
        return self.terminals[node]

    def _written(self, node: Node) -> str:
        match node:
            case Chars():
                return _characters(node)
            case Alt():
                return " | ".join(self._options(node))
            case _:
                return _joined(node, [self._terminal(part) for part in parts(node)])

    def _options(self, node: Alt) -> list[str]:
        """Return the terminals of a choice and of the choices within it: llguidance panics on some nested ones."""
        if node not in self.choices:
            names: dict[str, None] = {}
            for option in node.options:
                inner = option
                while isinstance(inner, Ref):
                    inner = self.grammar.flat[inner.name]
                names.update(dict.fromkeys(self._options(inner) if isinstance(inner, Alt) else [self._terminal(inner)]))
            self.choices[node] = list(names)
        return self.choices[node]


def _joined(node: Node, names: list[str]) -> str:
    """Write a node whose parts have names."""
    match node:
        case Alt():
            return " | ".join(names)
        case Seq():
            return " ".join(names) or '""'
        case Repeat(high=0):
            return '""'
        case Repeat():
            star = {0: "*", 1: "+"}.get(node.low) if node.high is None else None
            return names[0] + (star or f"{{{node.low},{'' if node.high is None else node.high}}}")
        case _:
            raise AssertionError(node)


def _characters(chars: Chars) -> str:
    """Write a set of characters as a regular expression; escapes only, so that nothing has a second meaning."""
    ranges = "".join(
        f"\\x{{{first:X}}}" if first == last else f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in chars.ranges
    )
    return f"/[{ranges}]/"
