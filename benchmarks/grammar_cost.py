"""What a grammar costs: to compile, and in each round.

    python benchmarks/grammar_cost.py [-m MODEL] [--rounds N]

Plays rounds as an engine would: a draft of eight tokens is cut where the grammar forbids it, each place of the draft
gets a mask, some of the draft stands, the rest is rolled back. The drafts are a text that the grammar allows, with a
wrong token now and then. Only the vocabulary of the model is read. Prints medians, because machines are shared; in
brackets, the slowest mask.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyspec
from pyspec.llama.grammar import Grammar
from pyspec.llama.grammar.vocabulary import grammar_vocab

Result = TypeVar("Result")
DRAFT = 8
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "known", "lost"]}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON_TEXT = '{"name": "Ada Lovelace, Countess", "age": 36, "tags": ["known", "lost", "known"]}'
JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= [ \t\n]*
"""
SPLIT_GBNF = r"""
root  ::= "(" words (" " root)? ")"
words ::= [^()]+
"""
GRAMMARS = {
    "schema": (Grammar.json_schema(PERSON), PERSON_TEXT),
    "any object": (Grammar.json(), PERSON_TEXT),
    "regex": (Grammar.regex(r"(\w+ ){5,50}\w+\."), "It was the best of times it was the worst of times."),
    "gbnf": (Grammar.gbnf(JSON_GBNF), PERSON_TEXT),
    "gbnf, split": (Grammar.gbnf(SPLIT_GBNF), "(It was the best of times (it was the worst of times))"),
}


@dataclass
class Player:
    """Plays rounds along a text, again and again; ``seconds`` has those of each kind of call."""

    grammar: Grammar
    text: str
    vocab: pyspec.Vocab
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.compiled = self.timed("compile", lambda: self.grammar.compile(self.vocab))
        self.tokens = self.vocab.tokenize(self.text)
        self.state = self.compiled.start()
        self.chance = random.Random(1)  # noqa: S311 - drafts, not secrets

    def timed(self, name: str, call: Callable[[], Result]) -> Result:
        """Call, and note how long it took."""
        begin = time.perf_counter()
        result = call()
        self.seconds[name].append(time.perf_counter() - begin)
        return result

    def play_round(self) -> None:
        """Draft, cut, mask, accept, roll back."""
        place = self.state.save()
        if place == len(self.tokens):
            self.state = self.compiled.start()
            place = 0
        state, right = self.state, self.tokens[place : place + DRAFT]
        self.timed("forced", state.forced)
        draft = list(right)
        if self.chance.random() < 0.5:  # noqa: PLR2004 - half of the drafts
            draft[self.chance.randrange(len(draft))] = self.chance.randrange(self.vocab.n_tokens)
        n_legal = self.timed("legal_prefix", lambda: state.legal_prefix(draft))
        for i in range(n_legal):
            self.timed("mask", state.mask)
            self.timed("accept", partial(state.accept, draft[i]))
        self.timed("mask", state.mask)
        n_right = next((i for i in range(n_legal) if draft[i] != right[i]), n_legal)
        self.timed("rollback", lambda: state.rollback(n_legal - n_right))
        if state.n_accepted < len(self.tokens):
            state.accept(self.tokens[state.n_accepted])


def main() -> None:
    """Play each grammar and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", default="smollm2-135m", help="a model of the catalogue, or a file")
    parser.add_argument("--rounds", type=int, default=400)
    arguments = parser.parse_args()
    path = Path(arguments.model)
    if not path.is_file():
        path = pyspec.hub.cached_path(arguments.model) or pyspec.hub.fetch(arguments.model)
    with pyspec.Model(path, pyspec.ModelConfig(vocab_only=True)) as model:
        begin = time.perf_counter()
        grammar_vocab(model.vocab)
        print(f"{model.vocab.n_tokens} tokens; {1e3 * (time.perf_counter() - begin):.0f} ms once for the vocabulary\n")
        print(f"{'':14}{'compile,':>10}{'microseconds a call':>36}")
        print(f"{'':14}{'ms':>10}{'mask':>18}{'legal_prefix':>14}{'accept':>8}{'rollback':>10}{'forced':>8}")
        for name, (grammar, text) in GRAMMARS.items():
            player = Player(grammar, text, model.vocab)
            for _ in range(arguments.rounds):
                player.play_round()
            median = {key: 1e6 * statistics.median(values) for key, values in player.seconds.items()}
            slowest = f"({1e6 * max(player.seconds['mask']):.0f})"
            print(
                f"{name:14}{median['compile'] / 1e3:10.0f}{median['mask']:9.1f}{slowest:>9}"
                f"{median['legal_prefix']:14.1f}{median['accept']:8.1f}{median['rollback']:10.1f}{median['forced']:8.1f}"
            )


if __name__ == "__main__":
    main()
