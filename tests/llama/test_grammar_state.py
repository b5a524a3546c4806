"""The state of an output in its grammar: what is refused, taken back, forced, limited and recovered."""

from __future__ import annotations

import gc
import itertools
import json
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec.errors import ConfigError, GrammarError, TokenError, WrongThreadError
from pyspec.llama.grammar import CompiledGrammar, Grammar, GrammarState
from tests.llama.grammar_fakes import EOG, Entry, Special, allowed, fake_vocab, replay

PIECES: list[Entry] = [
    "a",
    "b",
    "ab",
    "ba",
    "(",
    ")",
    "()",
    "))",
    EOG,
    Special("<other>", eog=True),
    Special("<c>"),
    "",
]
END, OTHER_END, CONTROL, EMPTY = 8, 9, 10, 11
LISTS = 'root ::= "(" (root | [ab]+)* ")"'


@pytest.fixture(scope="module")
def vocab() -> pyspec.Vocab:
    return fake_vocab(*PIECES)


@pytest.fixture(scope="module")
def lists(vocab: pyspec.Vocab) -> CompiledGrammar:
    return Grammar.gbnf(LISTS).compile(vocab)


# Sequences of tokens


def test_a_legal_prefix_is_what_can_be_accepted_one_by_one(vocab: pyspec.Vocab, lists: CompiledGrammar) -> None:
    state = lists.start()
    for tokens in itertools.product(range(vocab.n_tokens), repeat=4):
        n_legal = 0
        for token in tokens:
            try:
                state.accept(token)
            except GrammarError:
                break
            n_legal += 1
        state.rollback(n_legal)
        assert state.legal_prefix(tokens) == n_legal, tokens


LOOKS: list[Callable[[GrammarState], object]] = [GrammarState.mask, GrammarState.forced, lambda state: state.may_end]
AMBIGUOUS_GBNF = 'root ::= "ab" root* [bc]{1,2} | root root'


def may_end(state: GrammarState) -> bool:
    return state.may_end


@pytest.mark.parametrize("text", [LISTS, AMBIGUOUS_GBNF])
def test_a_state_after_rollbacks_is_that_of_a_replay(text: str) -> None:
    vocab = fake_vocab("a", "b", "c", "ab", "bc", "abc", "cc", "(", ")", "))", EOG)
    grammar = Grammar.gbnf(text).compile(vocab)
    for seed in range(150):
        chance = random.Random(seed)  # noqa: S311 - tests repeat themselves
        state, tokens = grammar.start(), list[int]()
        for _ in range(50):
            again = replay(grammar, tokens)
            legal = sorted(allowed(again, vocab.n_tokens))
            looks: list[Callable[[GrammarState], object]] = [GrammarState.mask, GrammarState.forced, may_end]
            chance.choice(looks)(state)
            if legal and chance.random() < 0.65:
                tokens.append(chance.choice(legal))
                state.accept(tokens[-1])
            else:
                dropped = chance.randint(0, min(3, len(tokens)))
                state.rollback(dropped)
                del tokens[len(tokens) - dropped :]
            if chance.random() < 0.5:
                again = replay(grammar, tokens)
                assert allowed(state, vocab.n_tokens) == allowed(again, vocab.n_tokens)
                assert (state.may_end, state.n_accepted) == (again.may_end, len(tokens))
                assert state.forced() == again.forced()


def test_a_mark_is_come_back_to(vocab: pyspec.Vocab, lists: CompiledGrammar) -> None:
    state = lists.start()
    start = state.save()
    for token in (4, 0, 5):
        state.accept(token)
    behind = state.save()
    state.accept(OTHER_END)
    state.restore(behind)
    assert (state.n_accepted, state.ended) == (3, True)
    state.restore(start)
    assert allowed(state, vocab.n_tokens) == {4, 6}
    with pytest.raises(ConfigError, match="the state has only 0"):
        state.restore(behind)


@pytest.mark.parametrize("n_tokens", [-1, 3, "1", None])
def test_no_more_is_taken_back_than_was_accepted(lists: CompiledGrammar, n_tokens: Any) -> None:
    state = replay(lists, [4, 0])
    with pytest.raises(ConfigError, match="n_tokens must be"):
        state.rollback(n_tokens)
    assert state.n_accepted == 2


@pytest.mark.parametrize("look", LOOKS)
def test_masks_after_a_rollback_are_not_those_of_another_way(look: Callable[[GrammarState], object]) -> None:
    vocab = fake_vocab("a", "b", "c", "ab", "bc", EOG)
    grammar = Grammar.gbnf('root ::= root* [ab]{2} ("c" | root)').compile(vocab)
    outputs = [tokens for tokens in itertools.product(range(5), repeat=3) if grammar.start().legal_prefix(tokens) == 3]
    masks = {}
    for tokens in outputs:
        for i in range(4):
            masks[tokens[:i]] = allowed(replay(grammar, tokens[:i]), 6)
    state = grammar.start()
    for tokens, other in itertools.permutations(outputs, 2):
        n_same = next(i for i in range(3) if tokens[i] != other[i])
        for token in tokens:
            state.accept(token)
            state.mask()
        state.rollback(3 - n_same)
        look(state)
        for i in range(n_same, 3):
            state.accept(other[i])
            assert allowed(state, 6) == masks[other[: i + 1]]
        state.rollback(3)


# The end


def test_nothing_is_legal_behind_the_end_of_the_generation(vocab: pyspec.Vocab, lists: CompiledGrammar) -> None:
    state = replay(lists, [4, 5])
    assert (state.may_end, state.ended) == (True, True)
    assert allowed(state, vocab.n_tokens) == {END, OTHER_END}
    assert state.legal_prefix([END, END]) == 1
    state.accept(END)
    assert (state.may_end, state.ended, state.n_accepted) == (False, True, 3)
    assert allowed(state, vocab.n_tokens) == set()
    assert [state.legal_prefix([token]) for token in range(vocab.n_tokens)] == [0] * vocab.n_tokens
    assert state.forced() == []
    with pytest.raises(GrammarError, match=r"Token 8 .* after 3 tokens"):
        state.accept(END)
    state.rollback(2)
    assert not state.ended
    assert 5 in allowed(state, vocab.n_tokens)


def test_an_output_that_may_end_need_not(vocab: pyspec.Vocab) -> None:
    state = replay(Grammar.regex("(ab)+").compile(vocab), [2])
    assert (state.may_end, state.ended) == (True, False)
    assert allowed(state, vocab.n_tokens) == {0, 2, END, OTHER_END}


def test_an_empty_grammar_has_ended_at_once(vocab: pyspec.Vocab) -> None:
    for grammar in (Grammar.regex(""), Grammar.gbnf('root ::= ""'), Grammar.lark('start: ""')):
        state = grammar.compile(vocab).start()
        assert state.ended
        assert allowed(state, vocab.n_tokens) == {END, OTHER_END}
        assert state.legal_prefix([END]) == 1


# Wrong tokens


@pytest.mark.parametrize("token", [1, 5, END, CONTROL, EMPTY])
def test_an_illegal_token_leaves_the_state_as_it_was(vocab: pyspec.Vocab, lists: CompiledGrammar, token: int) -> None:
    state = lists.start()
    with pytest.raises(GrammarError, match=rf"Token {token} \(.*\) is not what the grammar allows after 0 tokens"):
        state.accept(token)
    assert allowed(state, vocab.n_tokens) == {4, 6}
    assert state.n_accepted == 0


@pytest.mark.parametrize("token", [-1, 12, 2**40, "a", None, 1.0])
def test_a_token_outside_the_vocabulary_is_an_error(lists: CompiledGrammar, token: Any) -> None:
    with pytest.raises(TokenError, match="the vocabulary has the ids 0 to 11"):
        lists.start().accept(token)


def test_a_draft_may_have_tokens_outside_the_vocabulary(lists: CompiledGrammar) -> None:
    state = lists.start()
    assert state.legal_prefix([4, 0, 12, 0]) == 2
    assert state.legal_prefix([-1]) == 0
    assert state.legal_prefix([4, 2**40]) == 1
    assert state.legal_prefix([]) == 0


def test_numpy_tokens_are_tokens(lists: CompiledGrammar) -> None:
    state = lists.start()
    state.accept(np.int32(4))
    assert state.legal_prefix(np.array([0, 5, END], dtype=np.int32)) == 3  # type: ignore[arg-type]


# What cannot go on


def test_a_text_that_the_vocabulary_cannot_spell_is_a_dead_end(vocab: pyspec.Vocab) -> None:
    state = Grammar.regex("a?x|ab").compile(vocab).start()
    assert allowed(state, vocab.n_tokens) == {0, 2}
    dead = Grammar.regex("ax").compile(vocab).start()
    dead.accept(0)
    for _ in range(2):
        with pytest.raises(GrammarError, match="No token can follow after 1 tokens"):
            dead.mask()
        assert (dead.may_end, dead.ended, dead.n_accepted) == (False, False, 1)
        assert dead.legal_prefix([1]) == 0
    dead.rollback(1)
    assert allowed(dead, vocab.n_tokens) == {0}


def accept_often(state: GrammarState, token: int) -> None:
    for _ in range(1000):
        state.accept(token)


AMBIGUOUS = "start: s\ns: s s | /[ab]/ | s s s"


def test_a_grammar_that_becomes_too_much_is_an_error_and_can_go_back(
    vocab: pyspec.Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspec.llama.grammar.library.N_ITEMS_IN_ROW", 200)
    grammar = Grammar.lark(AMBIGUOUS + "\n# few items").compile(vocab)
    state, other = grammar.start(), grammar.start()
    other.accept(0)
    with pytest.raises(GrammarError, match=r"too much to follow after \d+ tokens: .*Current row has 201 items"):
        accept_often(state, 0)
    n_tokens = state.n_accepted
    assert 10 < n_tokens < 200
    with pytest.raises(GrammarError, match="too much to follow"):
        state.accept(1)
    state.rollback(n_tokens - 1)
    for either in (state, other):
        assert allowed(either, vocab.n_tokens) == {0, 1, 2, 3, END, OTHER_END}


def test_states_survive_when_what_they_share_is_used_up(vocab: pyspec.Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspec.llama.grammar.library.N_LEXER_STATES", 70)
    monkeypatch.setattr("pyspec.llama.grammar.compiled.trial", lambda _lark, _vocab: None)
    grammar = Grammar.regex("(a|b)*a(a|b){6}").compile(vocab)  # has more states, but few on one way
    renewed: list[CompiledGrammar] = []
    renew = CompiledGrammar.renew

    def counted(grammar: CompiledGrammar) -> None:
        renewed.append(grammar)
        renew(grammar)

    monkeypatch.setattr(CompiledGrammar, "renew", counted)
    chance = random.Random(5)  # noqa: S311
    states = [grammar.start() for _ in range(4)]
    for _ in range(12):
        outputs = [[chance.choice([0, 1]) for _ in range(9)] for _ in states]
        for i in range(9):
            for state, output in zip(states, outputs, strict=True):
                assert state.legal_prefix([output[i], 4]) == 1
                state.accept(output[i])
                assert state.may_end is (i >= 6 and output[i - 6] == 0)
                assert allowed(state, vocab.n_tokens) >= {0, 1, 2, 3}
        for state in states:
            state.rollback(9)
    assert len(renewed) >= 3


# Threads, caches, lifetimes


def test_a_state_belongs_to_the_first_thread_that_uses_it(lists: CompiledGrammar) -> None:
    state = lists.start()
    caught: list[BaseException] = []

    def use() -> None:
        try:
            state.accept(4)
        except WrongThreadError as error:
            caught.append(error)

    def run() -> None:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()

    run()
    assert (state.n_accepted, caught) == (1, [])
    calls: list[Callable[[], object]] = [state.mask, state.forced, lambda: state.rollback(1), lambda: state.accept(0)]
    for call in calls:
        with pytest.raises(WrongThreadError, match="belongs to thread"):
            call()


def test_many_threads_follow_one_grammar(vocab: pyspec.Vocab) -> None:
    grammar = Grammar.gbnf(LISTS + " # threads").compile(vocab)
    outputs: dict[int, list[int]] = {}

    def follow(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311
        state, tokens = grammar.start(), list[int]()
        while len(tokens) < 200 and not state.ended:
            tokens.append(chance.choice(sorted(allowed(state, vocab.n_tokens) - vocab.eog)))
            state.accept(tokens[-1])
            state.forced()
        outputs[seed] = tokens

    threads = [threading.Thread(target=follow, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 8
    for tokens in outputs.values():
        assert replay(grammar, tokens).n_accepted == len(tokens)


def test_a_grammar_is_compiled_once_for_a_vocabulary(vocab: pyspec.Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr("pyspec.llama.grammar.compiled.trial", lambda lark, _vocab: tried.append(lark))
    monkeypatch.setattr("pyspec.llama.grammar.compiled.MAX_KEPT", 3)
    first = Grammar.regex("once").compile(vocab)
    assert Grammar.regex("once").compile(vocab) is first
    assert Grammar.lark('start: "once"').compile(vocab) is not first
    assert len(tried) == 2
    for i in range(3):
        assert Grammar.regex("once").compile(vocab) is first  # what is used stays
        Grammar.regex(f"other {i}").compile(vocab)
    assert len(tried) == 5
    for i in range(3, 6):
        Grammar.regex(f"other {i}").compile(vocab)
    assert Grammar.regex("once").compile(vocab) is not first
    assert Grammar.regex("once").compile(fake_vocab("o", "n", "c", "e")) is not first


def test_a_vocabulary_is_not_kept_alive(lists: CompiledGrammar) -> None:
    vocab = fake_vocab("a", "b", EOG)
    state = Grammar.regex("ab").compile(vocab).start()
    gone = weakref.ref(vocab)
    del vocab
    gc.collect()
    assert gone() is None
    assert allowed(state, 3) == {0}  # what was compiled still works, but nothing can be split into tokens
    assert state.forced() == []
    assert lists.n_vocab == len(PIECES)


# Descriptions


def test_descriptions_can_be_compared_and_hashed() -> None:
    assert Grammar.json_schema({"type": "string"}) == Grammar.json_schema('{"type": "string"}')
    assert len({Grammar.regex("a"), Grammar.regex("a"), Grammar.lark("a"), Grammar.gbnf("a")}) == 3
    assert json.loads(Grammar.json().text) == {"type": "object"}


def test_order_of_properties_is_kept() -> None:
    assert Grammar.json_schema({"b": 1, "a": 2}) != Grammar.json_schema({"a": 2, "b": 1})


@pytest.mark.parametrize("make", [Grammar.regex, Grammar.lark, Grammar.gbnf, Grammar.json_schema])
def test_a_grammar_is_text(make: Callable[[Any], Grammar]) -> None:
    with pytest.raises(ConfigError, match="must be a string, not bytes"):
        make(b"a")


def test_a_state_says_nothing_about_another(lists: CompiledGrammar, vocab: pyspec.Vocab) -> None:
    states: list[GrammarState] = [lists.start() for _ in range(3)]
    states[0].accept(4)
    states[1].accept(6)
    assert [allowed(state, vocab.n_tokens) for state in states] == [
        {0, 1, 2, 3, 4, 5, 6},
        {END, OTHER_END},
        {4, 6},
    ]
