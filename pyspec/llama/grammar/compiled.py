"""A grammar for one vocabulary, and how the last ones are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from typing import Any

from pyspec.llama.grammar.lark import Source
from pyspec.llama.grammar.library import limits, llguidance
from pyspec.llama.grammar.state import GrammarState
from pyspec.llama.grammar.trial import trial
from pyspec.llama.grammar.vocabulary import GrammarVocab, grammar_vocab
from pyspec.llama.vocab import Vocab

MAX_KEPT = 64
"""Compiled grammars kept for each vocabulary."""


class CompiledGrammar:
    """A grammar, ready to be followed. Any thread may use it; each output starts a state of its own.

    Args:
        source: The grammar.
        vocab: The vocabulary that it is for.

    Raises:
        GrammarError: The grammar is wrong, or too large.
    """

    __slots__ = ("_pristine", "_source", "vocab")

    def __init__(self, source: Source, vocab: GrammarVocab) -> None:
        self.vocab = vocab
        self._source = source
        complaint = trial(source.lark, vocab)
        if complaint is not None:
            raise source.explain(complaint)
        self.renew()

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return self.vocab.n_vocab

    def start(self) -> GrammarState:
        """Return a state at the beginning of the output."""
        return GrammarState(self)

    def matcher(self) -> Any:
        """Return an ``LLMatcher`` at the beginning of the output; all share what they learn about the grammar."""
        return self._pristine.deep_copy()

    def renew(self) -> None:
        """Compile for the matchers to come: what the present ones share may be used up or damaged.

        Raises:
            GrammarError: The grammar is wrong, or too large.
        """
        library = llguidance()
        grammar = json.dumps({"grammars": [{"lark_grammar": self._source.lark}]})
        options = library.LLParserLimits(**limits())
        matcher = library.LLMatcher(self.vocab.tokenizer, grammar, log_level=0, limits=options)
        if matcher.is_error():
            raise self._source.explain(matcher.get_error())
        self._pristine = matcher


def compiled(key: Hashable, make_source: Callable[[], Source], vocab: Vocab) -> CompiledGrammar:
    """Return the grammar of this key for a vocabulary, compiled at the first call.

    Raises:
        GrammarError: The grammar is wrong, or too large.
        LibraryNotFoundError: llguidance is not installed.
    """
    shared = grammar_vocab(vocab)
    grammar: CompiledGrammar | None = shared.kept.pop(key, None)
    if grammar is None:
        grammar = CompiledGrammar(make_source(), shared)
    shared.kept[key] = grammar  # at the end: the first one has been without use for the longest time
    while len(shared.kept) > MAX_KEPT:
        shared.kept.pop(next(iter(shared.kept)), None)
    return grammar
