"""Grammars: what an output must look like, followed token by token. Open ``description.py`` first.

::

    Grammar          what the user wants: a JSON schema, a regular expression, Lark or GBNF
    CompiledGrammar  the same for one vocabulary, checked
    GrammarState     how far one output has come, and what may follow

The work is done by llguidance, an optional package (the extra ``grammar``), imported by the first ``compile``.
"""

from __future__ import annotations

from pyspec.llama.grammar.compiled import CompiledGrammar
from pyspec.llama.grammar.description import Grammar, GrammarKind
from pyspec.llama.grammar.state import GrammarState

__all__ = ["CompiledGrammar", "Grammar", "GrammarKind", "GrammarState"]
