"""Body of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pyspec.server.bodies.base import Body, ListOf, OpenBody
from pyspec.server.bodies.generation import MAX_TOP, OpenAIFields
from pyspec.server.errors import invalid

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class TextPart(OpenBody):
    """A part of a message. Only text can be read."""

    type: Literal["text"]
    text: str


class CalledFunction(OpenBody):
    """What a tool call calls."""

    name: str
    arguments: str | dict[str, Any] = Field(default="{}", description="A JSON object, as text.")


class ToolCall(OpenBody):
    """A call that the model made in a former turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(OpenBody):
    """A message of the conversation; other fields reach the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | ListOf[TextPart] | None = None
    tool_calls: ListOf[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(OpenBody):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema of its arguments.")
    strict: bool | None = None


class Tool(OpenBody):
    """A tool. Only functions are known."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(OpenBody):
    """The function that must be called."""

    name: str


class ToolChoice(Body):
    """The tool that must be used."""

    type: Literal["function"]
    function: ChosenFunction


class ChatBody(OpenAIFields):
    """OpenAI's request for the next message."""

    messages: ListOf[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, description="Most tokens to generate.", ge=-1)
    logprobs: bool | None = Field(default=None, description="Report the log-probability of each token.")
    top_logprobs: int | None = Field(default=None, description="And of so many alternatives.", ge=0, le=MAX_TOP)
    tools: ListOf[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="Whether several calls may be made.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Further variables of the template.")
    add_generation_prompt: bool | None = Field(default=None, description="Begin the next message.")
    continue_final_message: bool = Field(default=False, description="Continue the last message.")
    reasoning_effort: str | None = Field(default=None, description="A variable of the template.")
    verbosity: Literal["low", "medium", "high"] | None = Field(default=None, description="Accepted, without effect.")
    prediction: dict[str, Any] | None = Field(default=None, description="Accepted, without effect.")
    modalities: ListOf[Literal["text"]] | None = Field(default=None, description="Answers are text.")

    def limit(self) -> int | None:
        """Return the most tokens to generate, under either of its names.

        Raises:
            ApiError: They differ.
        """
        both = {value for value in (self.max_tokens, self.max_completion_tokens) if value is not None}
        if len(both) > 1:
            raise invalid("max_tokens and max_completion_tokens differ; give one.", param="max_tokens")
        return both.pop() if both else None
