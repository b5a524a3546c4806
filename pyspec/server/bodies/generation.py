"""What the three ways to ask for a generation share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pyspec.config import MAX_INT32
from pyspec.llama.grammar import Grammar
from pyspec.server.bodies.base import Body, ListOf, OpenBody
from pyspec.server.bodies.sampling import SamplingFields
from pyspec.server.bodies.vllm import Schema, VllmFields
from pyspec.server.errors import invalid

MAX_STOPS = 64
MAX_STOP_LENGTH = 1000
MAX_TOP = 20


class Speculative(Body):
    """How this request is speculated on; what is not given is as the server was started."""

    types: str | ListOf[str] | None = Field(default=None, description="Which of the server's drafters may propose.")
    n_max: int | None = Field(default=None, description="Longest draft.", ge=0)
    n_min: int | None = Field(default=None, description="Shortest draft to verify.", ge=0)
    p_min: float | None = Field(
        default=None, description="Stop drafting before a token less likely than this.", ge=0, le=1
    )
    rule: Literal["match", "rejection", "coupled", "synthetic"] | None = Field(
        default=None, description="How drafts are accepted."
    )
    off: bool = Field(default=False, description="Decode plainly.")


class StreamOptions(Body):
    """What a stream also tells."""

    include_usage: bool = Field(default=False, description="End with a chunk that has usage and speculation.")
    include_obfuscation: bool | None = Field(default=None, description="Accepted, without effect.")


class NamedSchema(OpenBody):
    """A JSON schema with a name."""

    name: str | None = None
    schema_: Schema = Field(default_factory=lambda: {"type": "object"}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """What the output must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(default=None, alias="schema", description="llama.cpp's place for it.")


class GenerationFields(SamplingFields, VllmFields):
    """Fields of every request for text."""

    stream: bool | None = Field(default=None, description="Send the answer piece by piece, as server-sent events.")
    stop: str | ListOf[str] | None = Field(default=None, description="Texts to stop before.")
    priority: int = Field(
        default=0,
        description="Requests that wait get a slot by this, lower ones first.",
        ge=-MAX_INT32,
        le=MAX_INT32,
    )
    speculative: Speculative | None = None
    grammar: str | None = Field(default=None, description="What the output must look like, in llama.cpp's GBNF.")
    json_schema: Schema | None = Field(default=None, description="The same as a JSON schema.")
    regex: str | None = Field(default=None, description="The same as a regular expression.")
    lark: str | None = Field(default=None, description="The same in Lark's syntax.")

    def speculation(self) -> Speculative | None:
        """Return how the request is speculated on, where it says so."""
        return self.speculative

    def stops(self) -> list[str]:
        """Return the texts to stop before.

        Raises:
            ApiError: There are too many, or one is empty or too long.
        """
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS or not all(0 < len(text) <= MAX_STOP_LENGTH for text in stops):
            msg = f"stop takes up to {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters."
            raise invalid(msg, param="stop")
        return stops

    def grammars(self) -> list[Grammar]:
        """Return what the output must look like, in every notation that was given."""
        found = [make(text) for make, text in self._notations() if text is not None]
        if self.json_schema is not None:
            found.append(Grammar.json_schema(self.json_schema))
        return found + self.structures()

    def _notations(self) -> Any:
        return (Grammar.gbnf, self.grammar), (Grammar.regex, self.regex), (Grammar.lark, self.lark)


class OpenAIFields(GenerationFields):
    """Fields of OpenAI's two ways to ask."""

    model: str | None = Field(default=None, description="Any name: there is one model here.")
    n: int | None = Field(
        default=None, description="How many answers; a seed grows by one from each to the next.", ge=1
    )
    max_tokens: int | None = Field(
        default=None, description="Most tokens to generate; -1: until the model ends.", ge=-1
    )
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    user: str | None = Field(default=None, description="Accepted, without effect.")
    metadata: dict[str, Any] | None = Field(default=None, description="Accepted, without effect.")
    store: bool | None = Field(default=None, description="Accepted, without effect: nothing is stored.")
    service_tier: str | None = Field(default=None, description="Accepted, without effect.")
    safety_identifier: str | None = Field(default=None, description="Accepted, without effect.")
    prompt_cache_key: str | None = Field(default=None, description="Accepted, without effect.")
    prompt_cache_retention: str | None = Field(default=None, description="Accepted, without effect.")
    cache_prompt: bool | None = Field(
        default=None, description="Accepted, without effect: what is in memory is reused."
    )

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk about usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def grammars(self) -> list[Grammar]:
        """Return what the output must look like, in every notation that was given."""
        return [*super().grammars(), *self._format()]

    def _format(self) -> list[Grammar]:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return []
        if wanted.type == "json_object":
            return [Grammar.json() if wanted.schema_ is None else Grammar.json_schema(wanted.schema_)]
        schema = wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_
        if schema is None:
            raise invalid("response_format.json_schema is missing.", param="response_format.json_schema")
        return [Grammar.json_schema(schema)]
