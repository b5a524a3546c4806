"""Grammars with real tokenizers: those of the zoo, and SmolLM2's."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyspec
from pyspec.llama.grammar import CompiledGrammar, Grammar
from tests.conftest import ModelByName
from tests.llama.grammar_fakes import allowed, replay

Check = Callable[[Any], bool]


@pytest.fixture(scope="module")
def vocab(smollm2: Path) -> Iterator[pyspec.Vocab]:
    with pyspec.Model(smollm2, pyspec.ModelConfig(vocab_only=True)) as model:
        yield model.vocab


def closing(vocab: pyspec.Vocab) -> npt.NDArray[np.bool_]:
    """Return for each token whether it leads towards the end of a JSON text."""
    return np.array([re.fullmatch(rb'["}\]]+|\d', piece) is not None for piece in vocab.all_pieces()])


def sample(grammar: CompiledGrammar, vocab: pyspec.Vocab, ends: npt.NDArray[np.bool_], seed: int) -> str:
    """Draw tokens under the masks until the text has ended; more and more often one that leads there."""
    chance = random.Random(seed)  # noqa: S311 - tests repeat themselves
    state, tokens = grammar.start(), list[int]()
    while True:
        legal = np.flatnonzero(np.unpackbits(state.mask().view(np.uint8), bitorder="little"))
        hurry = chance.random() < 0.1 + len(tokens) / 100
        last = min(vocab.eog)
        if last in legal and (hurry or len(legal) == len(vocab.eog)):
            state.accept(last)
            return vocab.detokenize_bytes(tokens).decode()
        towards = legal[ends[legal]] if hurry else legal[:0]
        choices = towards if len(towards) else legal
        token = last
        while token in vocab.eog:
            token = int(choices[chance.randrange(len(choices))])
        tokens.append(token)
        state.accept(token)


def is_tree(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) <= {"name", "children"}
        and isinstance(value["name"], str)
        and all(is_tree(child) for child in value.get("children", []))
    )


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS: dict[str, tuple[Grammar, Check]] = {
    "any object": (Grammar.json(), lambda value: isinstance(value, dict)),
    "anything": (Grammar.json_schema({}), lambda _: True),
    "enum": (
        Grammar.json_schema({"enum": ["red", "réd", "日本", 3, None, ["a"]]}),
        lambda value: value in ["red", "réd", "日本", 3, None, ["a"]],
    ),
    "person": (
        Grammar.json_schema(
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 20},
                    "age": {"type": "integer", "minimum": 0, "maximum": 150},
                    "height": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
                    "role": {"enum": ["admin", "user"]},
                },
                "required": ["name", "age", "role"],
                "additionalProperties": False,
            }
        ),
        lambda value: (
            {"name", "age", "role"} <= set(value) <= {"name", "age", "role", "height"}
            and 1 <= len(value["name"]) <= 20
            and type(value["age"]) is int
            and 0 <= value["age"] <= 150
            and 0 < value.get("height", 1) <= 2.5
            and value["role"] in ("admin", "user")
        ),
    ),
    "nested arrays": (
        Grammar.json_schema(
            {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 3},
            }
        ),
        lambda value: (
            1 <= len(value) <= 3
            and all(len(row) <= 3 and all(x is None or type(x) is int for x in row) for row in value)
        ),
    ),
    "additional properties": (
        Grammar.json_schema(
            {
                "type": "object",
                "properties": {"id": {"const": 7}},
                "required": ["id"],
                "additionalProperties": {"type": "boolean"},
            }
        ),
        lambda value: value["id"] == 7 and all(type(x) is bool for key, x in value.items() if key != "id"),
    ),
    "pattern": (
        Grammar.json_schema({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}é$"}),
        lambda value: re.fullmatch("[A-Z]{2}-[0-9]{3}é", value) is not None,
    ),
    "date": (
        Grammar.json_schema({"type": "string", "format": "date"}),
        lambda value: re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None,
    ),
    "any of": (
        Grammar.json_schema({"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 3}, {"type": "number"}]}),
        lambda value: not isinstance(value, str) or len(value) <= 3,
    ),
    "references": (Grammar.json_schema(TREE), is_tree),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_output_is_json_that_the_schema_accepts(vocab: pyspec.Vocab, name: str) -> None:
    description, check = SCHEMAS[name]
    grammar = description.compile(vocab)
    ends = closing(vocab)
    outputs = {sample(grammar, vocab, ends, seed) for seed in range(100)}
    wrong = [text for text in outputs if not check(json.loads(text))]
    assert wrong == []
    assert len(outputs) > 5


JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= [ \n]?
"""


def test_random_output_of_a_gbnf_grammar_for_json_is_json(vocab: pyspec.Vocab) -> None:
    grammar = Grammar.gbnf(JSON_GBNF).compile(vocab)
    ends = closing(vocab)
    for seed in range(100):
        assert isinstance(json.loads(sample(grammar, vocab, ends, seed)), dict)


@pytest.mark.parametrize(
    ("regex", "python"),
    [
        (r"[A-Z][a-z]{2,9} (is|was) [0-9]{1,4}\.", r"[A-Z][a-z]{2,9} (is|was) [0-9]{1,4}\."),
        (r"[\p{Han}é]{2,5}", "[\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffffé]{2,5}"),
    ],
)
def test_random_output_of_a_regex_matches(vocab: pyspec.Vocab, regex: str, python: str) -> None:
    grammar = Grammar.regex(regex).compile(vocab)
    outputs = {sample(grammar, vocab, np.zeros(vocab.n_tokens, dtype=bool), seed) for seed in range(100)}
    assert all(re.fullmatch(python, text) for text in outputs)
    assert len(outputs) > 90


def test_masks_agree_with_prefixes_for_a_real_vocabulary(vocab: pyspec.Vocab) -> None:
    chance = random.Random(11)  # noqa: S311
    grammar = Grammar.json_schema({"properties": {"naïve": {"enum": ["été", "日本語"]}}}).compile(vocab)
    tokens = vocab.tokenize('{"naïve": "日本語", "x": [1.5e3, "\\u00e9"]}')
    state = grammar.start()
    for i, token in enumerate(tokens):
        legal = allowed(state, vocab.n_tokens)
        assert token in legal
        tried = chance.sample(range(vocab.n_tokens), 300) + chance.sample(sorted(legal), min(len(legal), 50))
        assert {other for other in tried if state.legal_prefix([other])} == legal & set(tried)
        assert state.legal_prefix(tokens[i:]) == len(tokens) - i
        state.accept(token)
    assert allowed(state, vocab.n_tokens) == vocab.eog
    assert state.ended


def test_rounds_of_drafts_leave_the_state_of_a_replay(vocab: pyspec.Vocab) -> None:
    chance = random.Random(4)  # noqa: S311
    grammar = Grammar.json_schema(TREE).compile(vocab)
    ends = closing(vocab)
    for seed in range(15):
        tokens = vocab.tokenize(sample(grammar, vocab, ends, seed))
        state = grammar.start()
        while state.n_accepted < len(tokens):
            place = state.save()
            draft = [chance.choice((token, chance.randrange(vocab.n_tokens))) for token in tokens[place : place + 6]]
            for token in draft[: state.legal_prefix(draft)]:
                state.accept(token)
                state.mask()
            state.restore(place)
            state.accept(tokens[place])
            again = replay(grammar, tokens[: place + 1])
            assert np.array_equal(state.mask(), again.mask())
            assert state.forced() == again.forced()


def test_forced_tokens_are_those_of_the_tokenizer(vocab: pyspec.Vocab) -> None:
    schema = {
        "type": "object",
        "properties": {"temperature in degrees": {"const": "exactly twenty"}},
        "required": ["temperature in degrees"],
        "x-guidance": {"whitespace_flexible": False},
    }
    state = Grammar.json_schema(schema).compile(vocab).start()
    text = json.dumps({"temperature in degrees": "exactly twenty"}, separators=(",", ":"))
    whole = vocab.tokenize(text)
    forced = state.forced()
    assert len(forced) >= len(whole) - 3
    assert vocab.detokenize_bytes(forced).decode() == text[: len(vocab.detokenize(forced))]
    assert forced == whole[: len(forced)]
    state.accept(forced[0])
    assert state.forced() == forced[1:]


def test_control_tokens_of_a_real_vocabulary_can_be_named(vocab: pyspec.Vocab) -> None:
    for grammar in (Grammar.lark("start: <|im_start|> /a/"), Grammar.gbnf('root ::= <|im_start|> "a"')):
        state = grammar.compile(vocab).start()
        assert allowed(state, vocab.n_tokens) == set(vocab.tokenize("<|im_start|>", parse_special=True))
        assert state.forced()[:1] == vocab.tokenize("<|im_start|>", parse_special=True)
    plain = Grammar.regex(r"(?s:.)*").compile(vocab).start()
    assert not allowed(plain, vocab.n_tokens) & set(np.flatnonzero(vocab.attributes() & 8).tolist()) - vocab.eog


def test_every_text_token_is_legal_where_any_text_is(vocab: pyspec.Vocab) -> None:
    legal = allowed(Grammar.regex(r"(?s:.)*").compile(vocab).start(), vocab.n_tokens)
    texts = [token for token, piece in enumerate(vocab.all_pieces()) if piece and token not in vocab.eog]
    for token in texts:
        piece = vocab.all_pieces()[token]
        begins_text = True
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            begins_text = "unexpected end of data" in str(error)
        assert (token in legal) is begins_text, piece


@pytest.mark.parametrize("name", ["target-llama", "draft-llama-othervocab", "draft-llama-paddedvocab"])
def test_vocabularies_of_the_zoo(open_zoo: ModelByName, name: str) -> None:
    vocab = open_zoo(name).vocab
    grammar = Grammar.json_schema({"enum": ["hello", "naïve", 12]}).compile(vocab)
    state = grammar.start()
    for text in ('"hello"', '"naïve"', "12"):
        tokens = vocab.tokenize(text)
        assert state.legal_prefix([*tokens, min(vocab.eog)]) == len(tokens) + 1
        assert replay(grammar, tokens).ended
    chance = random.Random(2)  # noqa: S311
    for _ in range(20):
        state, tokens = grammar.start(), []
        while not state.ended:
            tokens.append(chance.choice(sorted(allowed(state, vocab.n_tokens))))
            state.accept(tokens[-1])
        assert json.loads(vocab.detokenize(tokens)) in ["hello", "naïve", 12]
