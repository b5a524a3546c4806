"""GBNF: what the parser takes and refuses, and random grammars against the list of what they allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec.errors import GrammarError
from pyspec.llama.grammar import CompiledGrammar, Grammar, gbnf_cut, gbnf_lark, gbnf_syntax
from pyspec.llama.grammar.gbnf_nodes import Chars, Lexeme, Repeat, leaves
from tests.llama.grammar_fakes import EOG, Entry, Language, Special, check_state, fake_vocab, walk

PIECES: list[Entry] = ["a", "b", "c", "é", "è", "ab", "bc", "ca", "aé", "cb", EOG, b"\xc3", b"\xa9", Special("<t>")]


@pytest.fixture(scope="module")
def vocab() -> pyspec.Vocab:
    return fake_vocab(*PIECES)


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile without the process of its own, which costs most of the time. These grammars are small."""
    monkeypatch.setattr("pyspec.llama.grammar.compiled.trial", lambda _lark, _vocab: None)


# Texts that one grammar allows


@pytest.mark.parametrize(
    ("text", "legal", "illegal"),
    [
        (r'root ::= "\x61\u0062\U00000063"', ["abc"], ["ab", "x"]),
        (r'root ::= "\"\\\[\]\-\n\r\t"', ['"\\[]-\n\r\t'], ['"']),
        (r"root ::= [^a-y\]]", ["z", "\n", "é", "😀", "A"], ["a", "y", "]"]),
        (r"root ::= [a\-c]", ["a", "-", "c"], ["b", "\\"]),
        (r"root ::= [a-]", ["a", "-"], ["b"]),
        (r"root ::= [^\n\x00-\x20]+", ["a", "\x7f", "日本"], ["\n", " ", "\x00"]),
        ("root ::= .", ["a", "\n", "\x00", "\U0010ffff"], ["", "ab"]),
        ('root ::= "a"{2}', ["aa"], ["a", "aaa"]),
        ('root ::= "a"{ 1 , 2 }', ["a", "aa"], ["", "aaa"]),
        ('root ::= "a"{0}', [""], ["a"]),
        ('root ::= "ab"{2,}', ["abab", "ababab"], ["ab", "aba"]),
        ('root ::= "a"?*', ["", "aaa"], ["b"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= | "a"', ["", "a"], ["aa"]),
        ('root ::= "a" | # comment "\n\n  "b"', ["a", "b"], ["c"]),
        ('root ::= ("a" # comment )\n | "b"\n)\n\n# the end', ["a", "b"], ["c"]),
        ('root ::= x-1 Y\r\nx-1 ::= "a"\r\nY ::= "b"\r\n', ["ab"], ["a"]),
        ('root::="a"b\nb::="c"', ["ac"], ["a"]),
        ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
        ("root ::= [é]+ [è]", ["éè", "ééè"], ["é", "è"]),
        ('root ::= x\nx ::= [é]+ [è] | "(" x ")"', ["éè", "ééè", "(éè)", "((éèé"[:3] + "è))"], ["é"]),
        ('root ::= [a-z]+ y "s"\ny ::= "(" root ")" | ""', ["as", "asss", "a(bs)s"], ["a", "s", "a(b)s"]),
        ('root ::= "(" (word | root)* ")"\nword ::= [a-z]+', ["()", "(ab(c)(d)e)", "((a)b)"], ["(a", "a", "(A)"]),
        ('root ::= "(" item+ ")"\nitem ::= "a" | "b"+ | root', ["(ab(bb)a)", "((a))"], ["()", "(()a)"]),
        ('root ::= "a" (item* | "c")\nitem ::= (item* "b")* | "d"', ["a", "abd", "ac", "adbb"], ["acb", ""]),
        ('root ::= root "a" | "b"', ["b", "ba", "baa"], ["a"]),
        ('root ::= "a" root | "b"', ["b", "ab", "aab"], ["a"]),
    ],
)
def test_what_a_grammar_allows(text: str, legal: list[str], illegal: list[str]) -> None:
    everything = bytes(range(256))
    vocab = fake_vocab(*[everything[i : i + 1] for i in range(255)], EOG)
    grammar = Grammar.gbnf(text).compile(vocab)
    assert [output for output in legal if not complete(grammar, output)] == []
    assert [output for output in illegal if complete(grammar, output)] == []


def complete(grammar: CompiledGrammar, output: str) -> bool:
    tokens = [*output.encode(), 255]
    return grammar.start().legal_prefix(tokens) == len(tokens)


# What the parser refuses


@pytest.mark.parametrize(
    ("text", "line", "column", "trouble"),
    [
        ("", 1, 1, 'there is no rule "root"'),
        ('x ::= "a"', 1, 10, 'there is no rule "root"'),
        ("root ::= x", 1, 10, 'there is no rule "x"'),
        ('root ::= "a"\n  b', 2, 4, "expected '::=', found the end of the text"),
        ('root = "a"', 1, 6, "expected '::=', found '= \"a\"'"),
        ('_ ::= "a"', 1, 1, "expected the name of a rule"),
        ('root ::= "a', 1, 12, "expected the closing quote of the text that begins at line 1, column 10"),
        ('root ::= "\\q"', 1, 11, r"expected one of the escapes \n"),
        ('root ::= "\\x4"', 1, 13, "expected 2 hexadecimal digits"),
        ('root ::= "\\uD800"', 1, 11, "there is no character D800"),
        ('root ::= "\\U00110000"', 1, 11, "there is no character 00110000"),
        ("root ::= [a", 1, 12, "expected the ']' of the characters that begin at line 1, column 10"),
        ("root ::= []", 1, 11, "expected a character, found ']'"),
        ("root ::= [z-a]", 1, 11, "the range runs backwards"),
        ('root ::= ("a"\n', 2, 1, "expected more of the group that begins at line 1, column 10, or ')'"),
        ('root ::= "a")', 1, 13, "expected the rest of a rule or the end of the line, found ')'"),
        ("root ::= *", 1, 10, "there is nothing before '*' to repeat"),
        ('root ::= "a"{x}', 1, 14, "expected a count, found 'x}'"),
        ('root ::= "a"{1', 1, 15, "expected ',' or '}' after a count"),
        ('root ::= "a"{2,1}', 1, 13, "the counts run backwards: at least 2, at most 1"),
        ('root ::= "a"{9999999999999}', 1, 14, "more than 1000000 repetitions"),
        ('root ::= "a"' + "?" * 11, 1, 23, "more than 10 signs of repetition in a row"),
        ("root ::= " + "(" * 101, 1, 110, "parentheses are nested more than 100 deep"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, 'the rule "root" is defined twice'),
        ('root ::= "a" x\nx ::= "b" x', 2, 1, 'the rule "x" can never end'),
        ("root ::= <nope>", 1, 10, "the vocabulary has no token <nope>"),
        ("root ::= <[14]>", 1, 10, "the vocabulary has no token <[14]>; ids go from 0 to 13"),
        ("root ::= <[99999999999999999999]>", 1, 10, "the vocabulary has no token"),
        ("root ::= <[10]>", 1, 10, "<[10]> ends the generation"),
        ("root ::= <end>", 1, 10, "<end> ends the generation"),
        ("root ::= <", 1, 10, "expected a token as <name> or <[id]>"),
        ('root ::= "é" §', 1, 14, "expected the rest of a rule"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    vocab: pyspec.Vocab, text: str, line: int, column: int, trouble: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        Grammar.gbnf(text).compile(vocab)
    assert trouble in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert f"at line {line}, column {column}" in str(caught.value)


# How a grammar is cut


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (member ("," ws member)*)? "}" ws
member ::= string ":" ws value
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= [ \t\n]*
"""


def lexemes(text: str, vocab: pyspec.Vocab) -> list[Lexeme]:
    cut = gbnf_cut.cut(gbnf_syntax.parse(text, vocab))
    return [leaf for tree in cut.rules.values() for leaf in leaves(tree) if isinstance(leaf, Lexeme)]


def test_strings_and_numbers_stay_whole(vocab: pyspec.Vocab) -> None:
    cut = gbnf_cut.cut(gbnf_syntax.parse(JSON, vocab))
    assert "string." not in cut.rules  # would be there if it had been split
    assert "number." not in cut.rules


def test_a_grammar_without_recursion_is_one_lexeme(vocab: pyspec.Vocab) -> None:
    assert len(lexemes('root ::= x x\nx ::= [a-z]* y\ny ::= "a" | "b"{3}', vocab)) == 1


def test_what_greed_would_spoil_is_split(vocab: pyspec.Vocab) -> None:
    cut = gbnf_cut.cut(gbnf_syntax.parse('root ::= name x\nx ::= "s" | "(" root ")"\nname ::= [a-z]+', vocab))
    assert all(leaf.is_char for tree in cut.rules.values() for leaf in leaves(tree) if isinstance(leaf, Lexeme))


def test_a_text_in_a_loop_stays_whole(vocab: pyspec.Vocab) -> None:
    for text in ('root ::= "(" (word | root)* ")"', 'root ::= "(" item+ ")"\nitem ::= root | word'):
        found = lexemes(text + "\nword ::= [^()]+", vocab)
        assert any(isinstance(lexeme.item, Repeat) for lexeme in found)
        assert all(lexeme.item.ranges[0][0] in b"()" for lexeme in found if isinstance(lexeme.item, Chars))


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "(" root ")" | x0\n' + "".join(f'x{i} ::= "a" x{i + 1}\n' for i in range(2000)) + 'x2000 ::= "b"',
        'root ::= x0 | "a"\n' + "".join(f'x{i} ::= "(" x{i + 1} ")" | "c"\n' for i in range(2000)) + "x2000 ::= root",
        'root ::= "(" root ")" | [' + "".join(chr(0x4E00 + 2 * i) for i in range(5000)) + "]+ [a-z]",
        'root ::= "(" root ")" | [ab]* "a" ' + "[ab] " * 20 + "[ab]*",
        'root ::= ("(" root ")")? ' + "[a-z]* " * 2000,
    ],
    ids=["chain of texts", "chain of rules", "many characters", "many states", "long sequence"],
)
def test_a_large_grammar_is_cut_without_a_proof(vocab: pyspec.Vocab, text: str) -> None:
    assert gbnf_lark.source(text, vocab).lark.startswith("start: ")


# Random grammars


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class OneOf:
    chars: frozenset[str]


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Row:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Times:
    item: Node
    low: int
    high: int | None


Node: TypeAlias = "Text | OneOf | Name | Row | Choice | Times"
RULES = ("root", "x", "y")
LONGEST = 5
COUNTS = [(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 2), (2, None)]


def nodes() -> st.SearchStrategy[Node]:
    leaf = st.one_of(
        st.builds(Text, st.text("abcé", min_size=1, max_size=2)),
        st.builds(OneOf, st.frozensets(st.sampled_from("abcéè"), min_size=1, max_size=3)),
        st.builds(Name, st.sampled_from(RULES)),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(Row, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(Choice, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(lambda item, counts: Times(item, *counts), inner, st.sampled_from(COUNTS)),
        ),
        max_leaves=8,
    )


def written(node: Node) -> str:  # noqa: PLR0911 - one per kind of node
    match node:
        case Text():
            return f'"{node.text}"'
        case OneOf():
            return f"[{''.join(sorted(node.chars))}]"
        case Name():
            return node.name
        case Row():
            return f"({' '.join(map(written, node.items))})"
        case Choice():
            return f"({' | '.join(map(written, node.items))})"
        case Times():
            return f"{written(node.item)}{{{node.low},{'' if node.high is None else node.high}}}"


Texts = frozenset[str]
NOTHING = frozenset({""})


def joined(left: Texts, right: Texts) -> Texts:
    """Return all pairs that are not too long."""
    fitting = [[text for text in right if len(text) <= room] for room in range(LONGEST + 1)]
    return frozenset(text + other for text in left for other in fitting[LONGEST - len(text)])


@dataclass
class Listing:
    """Lists, for every rule, its texts and the beginnings of its texts, up to ``LONGEST`` characters."""

    rules: dict[str, Node]

    def __post_init__(self) -> None:
        self.known = dict.fromkeys(self.rules, (frozenset[str](), frozenset[str]()))
        while True:
            found = {name: self.of(tree) for name, tree in self.rules.items()}
            if found == self.known:
                break
            self.known = found

    def of(self, node: Node) -> tuple[Texts, Texts]:
        match node:
            case Text():
                found = frozenset({node.text}), frozenset(node.text[:i] for i in range(len(node.text) + 1))
            case OneOf():
                found = node.chars, node.chars | NOTHING
            case Name():
                found = self.known[node.name]
            case Choice():
                inner = [self.of(item) for item in node.items]
                found = frozenset().union(*(part[0] for part in inner)), frozenset().union(*(part[1] for part in inner))
            case Row():
                found = self.of_row([self.of(item) for item in node.items])
            case _:
                found = self.of_times(node)
        return found

    def of_row(self, parts: list[tuple[Texts, Texts]]) -> tuple[Texts, Texts]:
        so_far, begun = NOTHING, frozenset[str]()
        for texts, beginnings in parts:
            begun |= joined(so_far, beginnings)
            so_far = joined(so_far, texts)
        return so_far, begun

    def of_times(self, node: Times) -> tuple[Texts, Texts]:
        part = self.of(node.item)
        most = LONGEST + node.low if node.high is None else node.high
        rows = [self.of_row([part] * n) for n in range(node.low, most + 1)]
        return frozenset().union(*(row[0] for row in rows)), frozenset().union(NOTHING, *(row[1] for row in rows))


@pytest.mark.usefixtures("untried")
@settings(deadline=None, max_examples=100)  # machines are shared
@given(trees=st.tuples(nodes(), nodes(), nodes()))
def test_a_random_grammar_allows_exactly_its_texts(trees: tuple[Node, Node, Node]) -> None:
    vocab = fake_vocab(*PIECES)
    rules = dict(zip(RULES, trees, strict=True))
    text = "\n".join(f"{name} ::= {written(tree)}" for name, tree in rules.items())
    listing = Listing(rules)
    try:
        grammar = Grammar.gbnf(text).compile(vocab)
    except GrammarError as error:
        assert "can never end" in str(error)  # noqa: PT017 - only some are wrong
        return
    texts, beginnings = listing.known["root"]
    language = Language.listed(texts, beginnings)
    state = grammar.start()
    for tokens in walk(state, vocab, 2):
        if len(vocab.detokenize_bytes(tokens).decode(errors="ignore")) + 2 <= LONGEST:
            check_state(state, vocab, language, tokens)
