r"""GBNF, llama.cpp's format for grammars: from text to a tree.

::

    root   ::= "[" ws (value ("," ws value)*)? "]"       a rule; the output is what root describes
    value  ::= [0-9]+ | "x"{1,3} | [^a-z\n]  | .          repetition, characters, all but these, any character
    answer ::= <think> !</think>* </think> <[42]>        tokens by name or id, and all tokens but one

Two things that llama.cpp lets pass in silence are errors here: a rule that is defined twice (the last one would
count) and an empty set of characters (it would match nothing at all, not even fail).
"""

from __future__ import annotations

import re

from pyspec.errors import GrammarError, VocabError
from pyspec.llama.grammar.faults import expected, fault
from pyspec.llama.grammar.gbnf_nodes import LAST_CHAR, Alt, Chars, Node, Ref, Repeat, Seq, Tokens, ending_rules
from pyspec.llama.vocab import Vocab

KIND = "GBNF grammar"
MAX_NESTING = 100
MAX_REPETITIONS = 1_000_000
MAX_STACKED = 10  # signs of repetition behind one item
_SURROGATES = (0xD800, 0xDFFF)  # code points that are no characters
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{char: char for char in '\\"[]-'}}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_TOKEN = re.compile(r"<(?:\[(\d+)\]|[^<>\r\n]+)>")
_NUMBER = re.compile(r"[0-9]+")


def parse(text: str, vocab: Vocab) -> dict[str, Node]:
    """Parse a grammar into the trees of its rules.

    Args:
        text: The grammar.
        vocab: Has the tokens that it may name.

    Raises:
        GrammarError: The text is wrong; with line, column and what was expected.
    """
    return _Parser(text, vocab).parse()


class _Parser:
    """Reads a grammar from left to right; ``pos`` is where it stands."""

    def __init__(self, text: str, vocab: Vocab) -> None:
        self.text = text
        self.pos = 0
        self.depth = 0
        self.vocab = vocab
        self.rules: dict[str, Node] = {}
        self.places: dict[str, int] = {}  # where each rule begins
        self.references: dict[str, int] = {}  # where each name is first used

    def parse(self) -> dict[str, Node]:
        self._skip(lines=True)
        while self.pos < len(self.text):
            self._rule()
        for name, pos in self.references.items():
            if name not in self.rules:
                raise self._fault(f'there is no rule "{name}"', pos)
        if "root" not in self.rules:
            raise self._fault('there is no rule "root", which describes the whole output', len(self.text))
        ending = ending_rules(self.rules)
        endless = [name for name in self.rules if name not in ending]
        if endless:
            trouble = "can never end: whatever it chooses leads to another endless rule, or to itself again"
            raise self._fault(f'the rule "{endless[-1]}" {trouble}', self.places[endless[-1]])
        return self.rules

    def _rule(self) -> None:
        start = self.pos
        name = self._take(_NAME, "the name of a rule (letters, digits and -)")
        if name in self.rules:
            raise self._fault(f'the rule "{name}" is defined twice', start)
        self.places[name] = start
        self._skip(lines=False)
        self._expect("::=")
        self._skip(lines=True)
        self.rules[name] = self._alternatives(nested=False)
        if self.pos < len(self.text) and self.text[self.pos] not in "\r\n":
            raise self._expected("the rest of a rule or the end of the line")
        self._skip(lines=True)

    def _alternatives(self, *, nested: bool) -> Node:
        options = [self._sequence(nested=nested)]
        while self._next_is("|"):
            self.pos += 1
            self._skip(lines=True)
            options.append(self._sequence(nested=nested))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self, *, nested: bool) -> Node:
        items: list[Node] = []
        stacked = 0
        while self.pos < len(self.text):
            stacked = stacked + 1 if self.text[self.pos] in "*+?{" else 0
            if stacked > MAX_STACKED:
                raise self._fault(f"more than {MAX_STACKED} signs of repetition in a row", self.pos)
            item = self._repetition(items) if stacked else self._item()
            if item is None:
                break
            items.append(item)
            self._skip(lines=nested)
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _item(self) -> Node | None:
        """Read one item; None, and nothing read, where no item starts."""
        readers = {
            '"': self._literal,
            "[": self._set,
            "(": self._group,
            "<": self._token,
            "!": self._token,
            ".": self._any,
        }
        reader = readers.get(self.text[self.pos])
        if reader:
            return reader()
        found = _NAME.match(self.text, self.pos)
        if not found:
            return None
        self.references.setdefault(found[0], self.pos)
        self.pos = found.end()
        return Ref(found[0])

    def _any(self) -> Node:
        self.pos += 1
        return Chars(_without((0, LAST_CHAR), (_SURROGATES,)))

    def _group(self) -> Node:
        start = self.pos
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self._fault(f"parentheses are nested more than {MAX_NESTING} deep", start)
        self.pos += 1
        self._skip(lines=True)
        inner = self._alternatives(nested=True)
        if not self._next_is(")"):
            raise self._expected(f"more of the group that begins at {self._place(start)}, or ')'")
        self.pos += 1
        self.depth -= 1
        return inner

    def _literal(self) -> Node:
        start = self.pos
        self.pos += 1
        chars: list[Node] = []
        while not self._next_is('"'):
            if self.pos >= len(self.text):
                raise self._expected(f"the closing quote of the text that begins at {self._place(start)}")
            code = self._char()
            chars.append(Chars(((code, code),)))
        self.pos += 1
        return chars[0] if len(chars) == 1 else Seq(tuple(chars))

    def _set(self) -> Node:
        start = self.pos
        self.pos += 1
        negated = self._next_is("^")
        self.pos += negated
        ranges: list[tuple[int, int]] = []
        while not self._next_is("]"):
            first_at = self.pos
            if first_at >= len(self.text):
                raise self._expected(f"the ']' of the characters that begin at {self._place(start)}")
            first = last = self._char()
            if self._next_is("-") and not self.text.startswith("-]", self.pos):
                self.pos += 1
                last = self._char()
            if first > last:
                raise self._fault("the range runs backwards", first_at)
            ranges.append((first, last))
        if not ranges:
            raise self._fault(expected("a character", self.text, self.pos), self.pos)
        self.pos += 1
        merged = _merge(ranges)
        return Chars(_without((0, LAST_CHAR), _merge([*merged, _SURROGATES])) if negated else merged)

    def _char(self) -> int:
        """Read one character or escape; return its code point."""
        start = self.pos
        char = self.text[start : start + 1]
        if char != "\\":
            if not char:
                raise self._expected("a character")
            self.pos += 1
            return ord(char)
        letter = self.text[start + 1 : start + 2]
        if letter in _HEX_DIGITS:
            digits = self.text[start + 2 : start + 2 + _HEX_DIGITS[letter]]
            if not re.fullmatch(rf"[0-9a-fA-F]{{{_HEX_DIGITS[letter]}}}", digits):
                raise self._expected(f"{_HEX_DIGITS[letter]} hexadecimal digits", start + 2)
            code = int(digits, 16)
            if code > LAST_CHAR or _SURROGATES[0] <= code <= _SURROGATES[1]:
                raise self._fault(f"there is no character {digits}", start)
            self.pos = start + 2 + len(digits)
            return code
        if letter not in _ESCAPES or not letter:
            raise self._expected(r"one of the escapes \n \r \t \\ \" \[ \] \- \xNN \uNNNN \UNNNNNNNN")
        self.pos = start + 2
        return ord(_ESCAPES[letter])

    def _token(self) -> Node:
        negated = self._next_is("!")
        self.pos += negated
        start = self.pos
        name = self._take(_TOKEN, "a token as <name> or <[id]>")
        number = re.fullmatch(r"<\[(\d+)\]>", name)
        token = _bounded(number[1], self.vocab.n_tokens) if number else self._token_named(name)
        if token is None or token >= self.vocab.n_tokens:
            trouble = f"the vocabulary has no token {name}"
            raise self._fault(f"{trouble}; ids go from 0 to {self.vocab.n_tokens - 1}" if number else trouble, start)
        if token in self.vocab.eog and not negated:
            raise self._fault(f"{name} ends the generation, which the end of the grammar does: leave it out", start)
        return Tokens(token, negated)

    def _token_named(self, name: str) -> int | None:
        try:
            tokens = self.vocab.tokenize(name, parse_special=True)
        except VocabError:
            return None
        return tokens[0] if len(tokens) == 1 else None

    def _repetition(self, items: list[Node]) -> Node:
        """Read ``*``, ``+``, ``?`` or ``{m,n}`` and take the item before it."""
        start = self.pos
        if not items:
            raise self._fault(f"there is nothing before {self.text[start]!r} to repeat", start)
        symbol = self.text[start]
        self.pos += 1
        if symbol != "{":
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[symbol]
        else:
            low, high = self._counts()
        return Repeat(items.pop(), low, high)

    def _counts(self) -> tuple[int, int | None]:
        start = self.pos - 1
        self._skip(lines=True)
        low = self._count()
        high: int | None = low
        if self._next_is(","):
            self.pos += 1
            self._skip(lines=True)
            high = None if self._next_is("}") else self._count()
        if not self._next_is("}"):
            raise self._expected("',' or '}' after a count")
        self.pos += 1
        if high is not None and high < low:
            raise self._fault(f"the counts run backwards: at least {low}, at most {high}", start)
        return low, high

    def _count(self) -> int:
        start = self.pos
        number = _bounded(self._take(_NUMBER, "a count"), MAX_REPETITIONS + 1)
        if number > MAX_REPETITIONS:
            raise self._fault(f"more than {MAX_REPETITIONS} repetitions", start)
        self._skip(lines=True)
        return number

    def _skip(self, *, lines: bool) -> None:
        """Skip spaces and comments, with ``lines`` ends of lines too."""
        found = (_SPACE_AND_LINES if lines else _SPACE).match(self.text, self.pos)
        self.pos = found.end() if found else self.pos

    def _next_is(self, char: str) -> bool:
        return self.text.startswith(char, self.pos)

    def _take(self, pattern: re.Pattern[str], wanted: str) -> str:
        found = pattern.match(self.text, self.pos)
        if not found:
            raise self._expected(wanted)
        self.pos = found.end()
        return found[0]

    def _expect(self, symbol: str) -> None:
        if not self._next_is(symbol):
            raise self._expected(repr(symbol))
        self.pos += len(symbol)

    def _expected(self, wanted: str, pos: int | None = None) -> GrammarError:
        at = self.pos if pos is None else pos
        return self._fault(expected(wanted, self.text, at), at)

    def _fault(self, trouble: str, pos: int) -> GrammarError:
        return fault(KIND, self.text, pos, trouble)

    def _place(self, pos: int) -> str:
        line = self.text.count("\n", 0, pos) + 1
        return f"line {line}, column {pos - self.text.rfind(chr(10), 0, pos)}"


def _bounded(digits: str, limit: int) -> int:
    """Return the number, or ``limit`` where it is larger: digits may go on for long."""
    short = digits.lstrip("0")[:12] or "0"
    return min(int(short), limit)


def _merge(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sort ranges and join those that touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _without(whole: tuple[int, int], holes: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return one range less the holes, which are sorted and apart from each other."""
    start, end = whole
    left = []
    for first, last in holes:
        if start < first:
            left.append((start, first - 1))
        start = last + 1
    return (*left, (start, end)) if start <= end else tuple(left)
