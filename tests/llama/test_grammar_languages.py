"""Small grammars of every kind against lists of the texts they allow, for all short sequences of tokens."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest

import pyspec
from pyspec.errors import GrammarError
from pyspec.llama.grammar import CompiledGrammar, Grammar
from tests.llama.grammar_fakes import (
    EOG,
    Entry,
    FakeVocab,
    Language,
    Special,
    allowed,
    check_forced,
    check_state,
    fake_vocab,
    replay,
    walk,
)

ENDS = (EOG, Special("<control>"), Special("<other end>", eog=True))
ABC: tuple[Entry, ...] = ("a", "b", "ab", "ba", "c", "bc", "a", b"", b"\xff", b"a\xff", *ENDS)  # "a" twice
ACCENTS: tuple[Entry, ...] = ("a", "é", "aé", b"\xc3", b"\xa9", b"a\xc3", b"\xa9a", b"\xa9\xa9", *ENDS)  # halves of é
REGEXES = [
    *(("abc", ABC, regex) for regex in (r"a(b|ca)*c?", r"(ab|a)(bc?)*", r"(a|b){0,3}", r"a|ab|abc", "", r"(ab)+c")),
    *(("abc", ABC, regex) for regex in (r"abc|abcab|c", r"^ab$", r"(?i)A(B|b)*", r"a*?b")),
    *(("aé", ACCENTS, regex) for regex in (r"a(a|é)*é", r".a.", r"[^a]a{1,2}", r"é{2,3}|aé", r"\xE9*")),
]
JSON_PIECES: list[Entry] = ["{", "}", '"', "a", ":", "1", '{"a"', " ", "[", "]", ",", '":', ":1", "1}", "true", EOG]


@pytest.fixture(scope="module")
def json_vocab() -> pyspec.Vocab:
    return fake_vocab(*JSON_PIECES)


def texts(letters: str, longest: int) -> list[str]:
    return ["".join(chars) for n in range(longest + 1) for chars in itertools.product(letters, repeat=n)]


def check_language(grammar: CompiledGrammar, vocab: pyspec.Vocab, language: Language, depth: int) -> int:
    """Check every state of up to ``depth`` tokens; return how many bytes were forced in all."""
    state = grammar.start()
    forced = 0
    for tokens in walk(state, vocab, depth):
        check_state(state, vocab, language, tokens)
        forced += check_forced(state, vocab, language, tokens)
        assert allowed(state, vocab.n_tokens) == allowed(replay(grammar, tokens), vocab.n_tokens)
    return forced


@pytest.mark.parametrize(("letters", "entries", "regex"), REGEXES, ids=lambda value: str(value)[:20])
def test_a_regex_allows_exactly_what_python_matches(letters: str, entries: tuple[Entry, ...], regex: str) -> None:
    vocab = fake_vocab(*entries)
    language = Language.listed(text for text in texts(letters, 10) if re.fullmatch(regex, text))
    check_language(Grammar.regex(regex).compile(vocab), vocab, language, depth=3)


def test_what_a_regex_forces_ends_where_a_longer_token_may_begin() -> None:
    vocab = fake_vocab("a", "b", "ab", "c", "ca", "bc", EOG)
    state = Grammar.regex("abc(a|b)").compile(vocab).start()
    assert state.forced() == [2]  # and not "c", which may begin "ca"


VALUES = ["a", "aa", 1, 11, True, [1, "a"], {"a": 1}]


def spaced(parts: list[str]) -> list[str]:
    """Return the texts with and without a space between these parts."""
    gaps = itertools.product(("", " "), repeat=len(parts) - 1)
    return ["".join(part + gap for part, gap in zip(parts, (*chosen, ""), strict=True)) for chosen in gaps]


SCHEMAS: list[tuple[dict[str, object], list[str]]] = [
    ({"enum": VALUES[:5]}, [json.dumps(value) for value in VALUES[:5]]),
    ({"const": {"a": [1]}}, spaced(["{", '"a"', ":", "[", "1", "]", "}"])),
    (
        {"properties": {"a": {"enum": [1, True]}}, "required": ["a"], "additionalProperties": False, "type": "object"},
        [text for value in ("1", "true") for text in spaced(["{", '"a"', ":", value, "}"])],
    ),
    (
        {"type": "array", "items": {"const": 1}, "maxItems": 2, "x-guidance": {"whitespace_flexible": False}},
        ["[]", "[1]", "[1,1]"],
    ),
    ({"$defs": {"one": {"const": 1}}, "anyOf": [{"$ref": "#/$defs/one"}, {"type": "boolean"}]}, ["1", "true", "false"]),
]


@pytest.mark.parametrize(("schema", "accepted"), SCHEMAS, ids=lambda value: json.dumps(value)[:40])
def test_a_schema_allows_exactly_its_texts(
    json_vocab: pyspec.Vocab, schema: dict[str, object], accepted: list[str]
) -> None:
    check_language(Grammar.json_schema(schema).compile(json_vocab), json_vocab, Language.listed(accepted), depth=4)


def test_forced_tokens_are_found_in_schemas(json_vocab: pyspec.Vocab) -> None:
    grammar = Grammar.json_schema({"const": {"a": 1}, "x-guidance": {"whitespace_flexible": False}})
    state = grammar.compile(json_vocab).start()
    forced = state.forced()
    assert json_vocab.detokenize_bytes(forced) == b'{"a":1}'
    assert forced == json_vocab.tokenize('{"a":1}')


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_any_json_object_is_what_json_loads_takes(json_vocab: pyspec.Vocab) -> None:
    grammar = Grammar.json().compile(json_vocab)
    pieces = [piece.decode() for piece in json_vocab.all_pieces()]
    ends = [token for token, piece in enumerate(pieces) if piece]
    found = 0
    for tokens in itertools.chain.from_iterable(itertools.product(ends, repeat=n) for n in range(1, 5)):
        text = "".join(pieces[token] for token in tokens)
        if is_object(text) and "  " not in text and not text.startswith(" ") and not text.endswith(" "):
            found += 1
            assert replay(grammar, tokens).may_end, text
    assert found >= 10
    state = grammar.start()
    for walked in walk(state, json_vocab, 4):
        text = json_vocab.detokenize_bytes(walked).decode()
        assert state.may_end is is_object(text), text


def test_whatever_is_legal_can_be_completed(json_vocab: pyspec.Vocab) -> None:
    chance = random.Random(1)  # noqa: S311 - tests repeat themselves
    grammar = Grammar.json().compile(json_vocab)
    outputs = {tuple(tokens) for tokens in walk(grammar.start(), json_vocab, 4)}
    for tokens in chance.sample(sorted(outputs), 60):
        state = replay(grammar, tokens)
        output = list(tokens)
        while not state.ended:
            legal = sorted(allowed(state, json_vocab.n_tokens) - json_vocab.eog)
            closing = [token for token in legal if json_vocab.all_pieces()[token] in {b"}", b"]", b'"', b"1"}]
            output.append(chance.choice(closing if closing and len(output) > 6 else legal))
            state.accept(output[-1])
        assert is_object(json_vocab.detokenize_bytes(output).decode())


class Lists:
    """Reads nested lists of 1 and 12, such as ``(1 (12 ()) 1)``, by hand. After an error it stays ``wrong``."""

    def __init__(self, text: bytes) -> None:
        self.open = 0
        self.last = ""  # what was read last
        self.wrong = False
        for byte in text:
            self.wrong = self.wrong or not self.read(chr(byte))

    def read(self, char: str) -> bool:
        last, self.last = self.last, char
        item_may_begin = last in ("(", " ")
        if char == "(":
            self.open += 1
            return item_may_begin or last == ""
        if char == ")":
            self.open -= 1
            return self.open >= 0 and last in ("(", ")", "1", "2")
        if char == "1":
            return item_may_begin
        if char == "2":
            return last == "1"
        return char == " " and self.open > 0 and last in (")", "1", "2")

    @property
    def done(self) -> bool:
        return not self.wrong and self.open == 0 and self.last == ")"


def begins_lists(text: bytes) -> bool:
    """Whether a list can begin like this: nothing may follow the last bracket."""
    return not Lists(text).wrong and not any(Lists(text[:i]).done for i in range(len(text)))


NESTED_GBNF = """
root  ::= list            # an expression
list  ::= "(" (item (" " item)*)? ")"
item  ::= "1" "2"? | list
"""
NESTED_LARK = """
start: list
list: "(" (item (" " item)*)? ")"
item: NUMBER | list
NUMBER: /12?/
"""


@pytest.mark.parametrize("grammar", [Grammar.gbnf(NESTED_GBNF), Grammar.lark(NESTED_LARK)], ids=["gbnf", "lark"])
def test_nested_lists_are_followed(grammar: Grammar) -> None:
    vocab = fake_vocab("(", ")", "()", "1", "2", "12", " ", ") (", "1)", EOG)
    language = Language(lambda text: Lists(text).done, begins_lists)
    check_language(grammar.compile(vocab), vocab, language, depth=4)


def test_control_tokens_are_legal_where_a_grammar_names_them() -> None:
    vocab = fake_vocab("a", "b", Special("<think>"), Special("</think>"), EOG, "<think>x")
    for grammar in (
        Grammar.lark('start: <think> "a" <[3]> "b"'),
        Grammar.gbnf('root ::= <think> "a" <[3]> "b"'),
    ):
        state = grammar.compile(vocab).start()
        legal = []
        for token in (2, 0, 3, 1, 4):
            legal.append(allowed(state, vocab.n_tokens))
            assert state.legal_prefix([2, 0, 3, 1, 4][len(legal) - 1 :]) == 6 - len(legal)
            state.accept(token)
        assert legal == [{2}, {0}, {3}, {1}, {4}]
        state.rollback(4)
        assert allowed(state, vocab.n_tokens) == {0}


def test_a_grammar_may_take_all_tokens_but_one() -> None:
    vocab = fake_vocab("a", "b", Special("<think>"), Special("</think>"), EOG)
    state = Grammar.gbnf('root ::= <think> !</think>* </think> "b"').compile(vocab).start()
    assert state.forced() == [2]
    assert allowed(state, vocab.n_tokens) == {2}
    state.accept(2)
    assert allowed(state, vocab.n_tokens) == {0, 1, 2, 3}  # no end of the generation within
    for token in (0, 2, 3):
        state.accept(token)
    assert allowed(state, vocab.n_tokens) == {1}


def test_forced_control_tokens_leave_the_state_as_it_was() -> None:
    vocab = fake_vocab("a", "b", Special("<x>"), Special("<y>"), EOG)
    state = Grammar.lark('start: "a" <x> <y> "b"').compile(vocab).start()
    assert state.forced() == [0, 2, 3, 1]
    state.accept(0)
    assert allowed(state, vocab.n_tokens) == {2}
    assert state.forced() == [2, 3, 1]
    assert allowed(state, vocab.n_tokens) == {2}
    assert state.legal_prefix([2, 3, 1, 4, 4]) == 4
    state.accept(2)
    assert state.forced() == [3, 1]


@pytest.mark.parametrize("n_padding", [0, 1, 18, 31, 32, 45])
def test_masks_end_where_the_vocabulary_does(n_padding: int) -> None:
    vocab = fake_vocab("a", "b", EOG, *[b""] * n_padding, "ab")
    state = Grammar.regex("ab?").compile(vocab).start()
    assert allowed(state, vocab.n_tokens) == {0, vocab.n_tokens - 1}
    state.accept(0)
    assert allowed(state, vocab.n_tokens) == {1, 2}


def test_a_vocabulary_without_an_end_can_still_be_followed() -> None:
    vocab = fake_vocab("a", "b")
    state = Grammar.regex("ab").compile(vocab).start()
    state.accept(0)
    state.accept(1)
    assert state.ended
    assert allowed(state, vocab.n_tokens) == set()


def test_the_text_of_a_token_that_ends_the_generation_is_no_text() -> None:
    vocab = fake_vocab("a", "b", Special("</s>", eog=True, text="a"))
    state = Grammar.regex("ab").compile(vocab).start()
    assert allowed(state, 3) == {0}
    assert state.legal_prefix([2]) == 0


def test_bytes_that_llguidance_takes_for_a_mark_name_no_token() -> None:
    vocab = fake_vocab("a", b"\xff<x>", EOG)
    with pytest.raises(GrammarError, match="unknown special token"):
        Grammar.lark("start: <x>").compile(vocab)


def test_a_tokenizer_that_begins_with_a_space_forces_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeVocab, "begins_with_space", True)
    with_line = fake_vocab(" ", "a", "b", "ab", "abc", "\n", EOG)
    without = fake_vocab(" ", "a", "b", "ab", "abc", EOG)
    assert with_line.tokenize("ab") == [0, 3]
    for vocab, forced in ((with_line, [3, 3]), (without, [])):
        grammar = Grammar.regex("abab(a|b)").compile(vocab)
        assert grammar.start().forced() == forced
