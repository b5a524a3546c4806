"""What the user wants: a grammar's kind and text."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspec.config import shown
from pyspec.errors import ConfigError, GrammarError
from pyspec.llama.grammar import gbnf_lark, gbnf_syntax, json_schema, lark, regex
from pyspec.llama.grammar.compiled import CompiledGrammar, compiled
from pyspec.llama.grammar.faults import fault
from pyspec.llama.grammar.lark import Source
from pyspec.llama.vocab import Vocab

MAX_TEXT = 500_000
"""Characters of a grammar."""


class GrammarKind(enum.Enum):
    """How a grammar is written."""

    JSON_SCHEMA = json_schema.KIND
    REGEX = regex.KIND
    LARK = lark.KIND
    GBNF = gbnf_syntax.KIND


_SOURCES: dict[GrammarKind, Callable[[str, Vocab], Source]] = {
    GrammarKind.JSON_SCHEMA: lambda text, _: json_schema.source(text),
    GrammarKind.REGEX: lambda text, _: regex.source(text),
    GrammarKind.LARK: lambda text, _: lark.source(text),
    GrammarKind.GBNF: gbnf_lark.source,
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must look like, in one of four notations. Cheap to make; the text is checked by ``compile``.

    Attributes:
        kind: How it is written.
        text: The grammar.

    Example:
        >>> grammar = Grammar.json_schema({"type": "object", "properties": {"age": {"type": "integer"}}})
        >>> with pyspec.Model("model.gguf") as model:
        ...     state = grammar.compile(model.vocab).start()
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.kind, GrammarKind):
            msg = f"kind must be a GrammarKind, not {shown(self.kind)}."
            raise ConfigError(msg)
        if not isinstance(self.text, str):
            msg = f"A {self.kind.value} must be a string, not {type(self.text).__name__}."
            raise ConfigError(msg)

    @classmethod
    def json_schema(cls, schema: str | dict[str, Any]) -> Grammar:
        """Describe a JSON text by a JSON schema, given as JSON or as a dict.

        Properties come in the order in which the schema has them.

        Raises:
            GrammarError: The dict holds what JSON cannot.
        """
        return cls(GrammarKind.JSON_SCHEMA, json_schema.to_text(schema) if isinstance(schema, dict) else schema)

    @classmethod
    def json(cls) -> Grammar:
        """Describe any JSON object."""
        return cls(GrammarKind.JSON_SCHEMA, '{"type": "object"}')

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """Describe the whole output by a regular expression, in the syntax of Rust's regex package."""
        return cls(GrammarKind.REGEX, text)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Describe the output by the rule ``start`` of a grammar in llguidance's variant of Lark's syntax."""
        return cls(GrammarKind.LARK, text)

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """Describe the output by the rule ``root`` of a grammar in GBNF, llama.cpp's format."""
        return cls(GrammarKind.GBNF, text)

    def compile(self, vocab: Vocab) -> CompiledGrammar:
        """Check the grammar and make it ready for a vocabulary; the last 64 of each vocabulary are kept.

        Raises:
            GrammarError: The grammar is wrong, too large, or has what is not supported; with ``line`` and ``column``
                where that is in one place.
            ConfigError: ``vocab`` is no vocabulary.
            LibraryNotFoundError: llguidance is not installed.
        """
        if not hasattr(vocab, "all_pieces"):
            msg = f"vocab must be a vocabulary, such as model.vocab, not {shown(vocab)}."
            raise ConfigError(msg)
        return compiled(self, lambda: self._source(vocab), vocab)

    def _source(self, vocab: Vocab) -> Source:
        name = self.kind.value
        if len(self.text) > MAX_TEXT:
            msg = f"The {name} has {len(self.text)} characters; at most {MAX_TEXT} are compiled."
            raise GrammarError(msg)
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise fault(name, self.text, error.start, "half of a surrogate pair is no character") from None
        return _SOURCES[self.kind](self.text, vocab)
