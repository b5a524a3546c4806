"""Tools: told to models whose template does not know them, and forced where the client wants a call.

A model that was never told how to call a function is told in its system message, in the form that Hermes and Qwen use::

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspec.llama.grammar import Grammar
from pyspec.server.bodies.chat import ChatBody, ToolChoice
from pyspec.server.errors import invalid

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_INTRODUCTION = (
    "You may call functions. These are their signatures, in JSON:\n<tools>\n{definitions}\n</tools>\n"
    "To call one, answer with its name and its arguments as JSON, between these tags:\n"
    f'{OPENING}\n{{{{"name": "the name", "arguments": {{{{"argument": "value"}}}}}}}}\n{CLOSING}'
)


def offered(body: ChatBody) -> list[dict[str, Any]]:
    """Return the definitions of the functions that the model may call."""
    if body.tool_choice == "none" or not body.tools:
        return []
    return [tool.model_dump(exclude_unset=True) for tool in body.tools]


def forced(body: ChatBody) -> list[dict[str, Any]]:
    """Return the definitions of the functions of which one must be called; none where the model may choose.

    Raises:
        ApiError: The one that must be called is not defined.
    """
    definitions = offered(body)
    if body.tool_choice in (None, "none", "auto"):
        return []
    if isinstance(body.tool_choice, ToolChoice):
        name = body.tool_choice.function.name
        definitions = [tool for tool in definitions if tool["function"]["name"] == name]
        if not definitions:
            raise invalid(f"tool_choice names {name!r}, which is not among the tools.", param="tool_choice")
    if not definitions:
        raise invalid("tool_choice demands a call, and there are no tools.", param="tool_choice")
    return definitions


def call_grammar(definitions: Sequence[Mapping[str, Any]]) -> Grammar:
    """Return the grammar of a call of one of these functions, as ``{"name": ..., "arguments": {...}}``."""
    choices = [_call_schema(tool["function"], f"#/anyOf/{i}") for i, tool in enumerate(definitions)]
    return Grammar.json_schema({"anyOf": choices})


def _call_schema(function: Mapping[str, Any], place: str) -> dict[str, Any]:
    arguments = function.get("parameters") or {"type": "object"}
    if "properties" in arguments:  # a function has no arguments but those it declares
        arguments = {"additionalProperties": False, **arguments}
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(arguments, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references into itself are right after it became part of another one."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"{place}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }


def told(messages: Sequence[dict[str, Any]], definitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation in which tools, calls and results are text."""
    written: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(written, message.get("content") or "")
        elif message.get("tool_calls"):
            calls = "\n".join(map(_written, message["tool_calls"]))
            said = message.get("content")
            written.append({"role": message["role"], "content": f"{said}\n{calls}" if said else calls})
        else:
            written.append(message)
    if not definitions:
        return written
    introduction = _INTRODUCTION.format(definitions="\n".join(_json(tool["function"]) for tool in definitions))
    if written and written[0]["role"] == "system":
        first = written[0]
        return [{**first, "content": f"{first.get('content') or ''}\n\n{introduction}".lstrip()}, *written[1:]]
    return [{"role": "system", "content": introduction}, *written]


def _add_result(written: list[dict[str, Any]], content: str) -> None:
    """Add a result as the user's message; those of one turn become one message, because roles must alternate."""
    text = f"<tool_response>\n{content}\n</tool_response>"
    if written and written[-1].get("tool_results"):
        written[-1]["content"] += f"\n{text}"
    else:
        written.append({"role": "user", "content": text, "tool_results": True})


def _written(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return f"{OPENING}\n{_json({'name': function['name'], 'arguments': function['arguments']})}\n{CLOSING}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
