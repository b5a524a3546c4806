"""Fields that clients of vLLM send, and how they are understood here."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from pyspec.llama.grammar import Grammar
from pyspec.server.bodies.base import Body, ListOf, TokenId
from pyspec.server.errors import invalid

MAX_STOP_TOKENS = 256
_MAX_CHOICES = 4096
Schema = dict[str, Any]
Choices = ListOf[str]


class StructuredOutputs(Body):
    """What the output must look like, in one of these notations."""

    json_: Schema | str | None = Field(default=None, alias="json", description="A JSON schema.")
    regex: str | None = Field(default=None, description="A regular expression.")
    choice: Choices | None = Field(default=None, description="One of these texts.", max_length=_MAX_CHOICES)
    grammar: str | None = Field(default=None, description="GBNF, or Lark's syntax where it has no ::=.")
    json_object: bool | None = Field(default=None, description="Any JSON object.")


class VllmFields(Body):
    """vLLM's fields; those that could change the output take only what changes nothing, as their types say."""

    stop_token_ids: ListOf[TokenId] | None = Field(
        default=None, description="Tokens that end the generation, without text.", max_length=MAX_STOP_TOKENS
    )
    min_tokens: int | None = Field(default=None, description="No end before so many tokens; not with stop.", ge=0)
    guided_json: Schema | str | None = Field(default=None, description="What the output must be: a JSON schema.")
    guided_regex: str | None = Field(default=None, description="The same as a regular expression.")
    guided_choice: Choices | None = Field(
        default=None, description="The same as a list of texts.", max_length=_MAX_CHOICES
    )
    guided_grammar: str | None = Field(default=None, description="The same as GBNF, or Lark where it has no ::=.")
    structured_outputs: StructuredOutputs | None = None
    skip_special_tokens: Literal[True] | None = Field(default=None, description="Special tokens have no text.")
    spaces_between_special_tokens: bool | None = Field(default=None, description="Accepted, without effect.")
    include_stop_str_in_output: Literal[False] | None = Field(default=None, description="It is cut off.")
    use_beam_search: Literal[False] | None = Field(default=None, description="There is none.")

    def structures(self) -> list[Grammar]:
        """Return what the output must look like, in every notation that was given.

        Raises:
            ApiError: A list of choices is empty.
        """
        found = _grammars(self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        wanted = self.structured_outputs
        if wanted is not None:
            found += _grammars(wanted.json_, wanted.regex, wanted.choice, wanted.grammar)
            found += [Grammar.json()] if wanted.json_object else []
        return found


def _grammars(
    schema: Schema | str | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> list[Grammar]:
    found = [] if schema is None else [Grammar.json_schema(schema)]
    if regex is not None:
        found.append(Grammar.regex(regex))
    if choice is not None:
        if not choice:
            raise invalid("choice is an empty list; the output must be one of its texts.", param="choice")
        found.append(Grammar.regex("|".join(map(_literally, choice))))
    if grammar is not None:
        found.append(Grammar.gbnf(grammar) if "::=" in grammar else Grammar.lark(grammar))
    return found


def _literally(text: str) -> str:
    """Return a regular expression of just this text; ``re.escape`` would escape what Rust's syntax does not."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", lambda found: f"\\{found[0]}", text)
