"""Chat templates: a conversation as one text, in the form that a model was trained on.

What a template can do differs, and none says. So each is tried on small conversations when the server starts, and what
it cannot do is done to the conversation instead:

* no system messages: their text goes before the first message of the user;
* no tools: the system message describes them, calls and results become text (see ``tools.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from pyspec.errors import ConfigError
from pyspec.llama.model import Model
from pyspec.server import tools as as_text
from pyspec.server.errors import ApiError, invalid
from pyspec.server.jinja import RESERVED, environment, explained

Message = dict[str, Any]
MARK = "pyspecmark"
_USER = {"role": "user", "content": f"{MARK}user"}
_TOOL = {"type": "function", "function": {"name": f"{MARK}tool", "description": "", "parameters": {"type": "object"}}}
_CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": f"{MARK}called", "arguments": {MARK: f"{MARK}value"}},
}


class ChatTemplate:
    """A template, tried out.

    Args:
        source: The template.
        tool_source: Another one for conversations with tools, where a model has two.
        bos, eos: Text of the tokens that begin and end a text.

    Raises:
        ConfigError: It is broken, or it leaves out what the user says.

    Attributes:
        source: The template.
        knows_system: Whether it renders system messages.
        knows_tools: Whether it renders definitions of tools, calls and results.
    """

    def __init__(self, source: str, *, tool_source: str | None = None, bos: str = "", eos: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        world = environment()
        try:
            self._plain = world.from_string(source)
            self._with_tools = self._plain if tool_source is None else world.from_string(tool_source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"The chat template is broken: {explained(error)}.") from None
        self._empty: str | None = ""
        self._try_out()
        self.knows_system = self._renders([{"role": "system", "content": f"{MARK}system"}, _USER], "system")
        self.knows_tools = self._tries_tools()

    def _try_out(self) -> None:
        try:
            text = self._render([_USER], None, {"add_generation_prompt": True})
        except Exception as error:  # noqa: BLE001 - a template is a program
            raise ConfigError(f"The chat template fails on a simple conversation: {explained(error)}.") from None
        if f"{MARK}user" not in text:
            raise ConfigError("The chat template leaves out what the user says.")

    def _tries_tools(self) -> bool:
        """Return whether definitions, calls and results all appear; note what stands in place of no content."""
        if not self._renders([_USER], "tool", [_TOOL]):
            return False
        for self._empty in ("", None):
            turn: list[Message] = [{"role": "assistant", "content": self._empty, "tool_calls": [_CALL]}]
            result = {"role": "tool", "content": f"{MARK}result", "tool_call_id": _CALL["id"], "name": f"{MARK}called"}
            conversation: list[Message] = [_USER, *turn, result]
            if all(self._renders(conversation, name, [_TOOL]) for name in ("called", "value", "result")):
                return True
        return False

    def _renders(self, messages: Sequence[Message], name: str, tools: Sequence[Any] | None = None) -> bool:
        try:
            return f"{MARK}{name}" in self._render(messages, tools, {"add_generation_prompt": True})
        except Exception:  # noqa: BLE001 - it does not
            return False

    def _render(self, messages: Sequence[Message], tools: Sequence[Any] | None, variables: Mapping[str, Any]) -> str:
        template = self._plain if tools is None else self._with_tools
        values = {**variables, **self._tokens, "messages": messages, "tools": tools}
        return template.render(copy.deepcopy(values))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        variables: Mapping[str, Any] | None = None,
        begins_answer: bool = True,
    ) -> str:
        """Return a conversation as text.

        Args:
            messages: With "role" and "content", a text or None; calls of tools with "arguments" as objects.
            tools: Definitions, in OpenAI's form.
            variables: Further variables of the template.
            begins_answer: End with the beginning of the next message.

        Raises:
            ApiError: The template refuses the conversation.
        """
        given = dict(variables or {})
        taken = sorted(RESERVED & given.keys())
        if taken:
            raise invalid(f"{taken[0]} is set by the server.", param=f"chat_template_kwargs.{taken[0]}")
        prepared, known = self._prepared(messages, tools)
        try:
            return self._render(prepared, known, {**given, "add_generation_prompt": begins_answer})
        except Exception as error:  # noqa: BLE001 - a template is a program
            raise _refused(error) from None

    def _prepared(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> tuple[Sequence[Message], Sequence[Any] | None]:
        """Return messages and tools as the template knows them."""
        prepared: list[Message] = [dict(message) for message in messages]
        known = list(tools) if tools and self.knows_tools else None
        if not self.knows_tools:
            prepared = as_text.told(prepared, tools)
        for message in prepared:
            if message.get("content") is None:
                message["content"] = self._empty if message.get("tool_calls") else ""
        return (prepared if self.knows_system else _without_system(prepared)), known


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Put what the system says before what the user says first."""
    said = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    rest = [message for message in messages if message["role"] != "system"]
    if not said:
        return rest
    for i, message in enumerate(rest):
        if message["role"] == "user":
            rest[i] = {**message, "content": f"{said}\n\n{message['content']}"}
            return rest
    return [{"role": "user", "content": said}, *rest]


def _refused(error: Exception) -> ApiError:
    return invalid(f"The model's chat template refuses this conversation: {explained(error)}.", param="messages")


def template_of(model: Model, override: str | None) -> ChatTemplate | None:
    """Return the template to use; None where there is none.

    Args:
        model: Its file may have one, and a second one for tools.
        override: A template in its place, or "none".

    Raises:
        ConfigError: It is broken; the message says whose it is, and the way out.
    """
    if override == "none":
        return None
    source, tool_source = (override, None) if override else (model.chat_template(), model.chat_template("tool_use"))
    if source is None:
        return None
    vocab = model.vocab
    bos, eos = (
        "" if token is None else vocab.pieces([token], special=True)[0].decode("utf-8", "replace")
        for token in (vocab.bos, vocab.eos)
    )
    try:
        return ChatTemplate(source, tool_source=tool_source, bos=bos, eos=eos)
    except ConfigError as error:
        whose = "given with --chat-template" if override else f"in {model.path.name}"
        hint = "" if override else " Give another one with --chat-template-file, or none with --chat-template none."
        raise ConfigError(f"{error} It is the one {whose}.{hint}") from None
