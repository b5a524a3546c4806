"""Tools: what the model is told, what it may and must say, and how a call is found in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspec.llama.grammar import Grammar
from pyspec.server.tool_calls import CallReader
from pyspec.server.tools import call_grammar
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import ByteVocab, FakeEngine, Script

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
KNOWS_TOOLS = """
{%- for tool in tools or [] %}TOOL {{ tool | tojson }}
{% endfor %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}CALL {{ call.function.name }} {{ call.function.arguments.items() | list }}
{% endfor %}
{% endfor %}"""


def message(client: Client, **fields: Any) -> tuple[dict[str, Any], str]:
    answer = client.send(PATH, {"messages": HELLO, "tools": [WEATHER, TIME], **fields})
    assert answer.status == 200, answer.body
    choice = answer.json()["choices"][0]
    return choice["message"], choice["finish_reason"]


def called(calls: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


# What the model is told


def test_a_template_without_tools_gets_them_as_text(client: Client, engine: FakeEngine) -> None:
    message(client)
    told = engine.requests[0].text
    assert "<|im_start|>system\n" in told
    assert json.dumps(WEATHER["function"]) in told
    assert "<tool_call>" in told
    message(client, tool_choice="none")
    assert "weather" not in engine.requests[1].text


def test_a_system_message_is_kept(client: Client, engine: FakeEngine) -> None:
    message(client, messages=[{"role": "system", "content": "Be short."}, *HELLO])
    assert engine.requests[0].text.count("system\n") == 1
    assert "Be short.\n\nYou may call" in engine.requests[0].text


def test_calls_and_results_of_former_turns_are_told(client: Client, engine: FakeEngine) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]
    message(
        client,
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "2", "content": "warm"},
        ],
    )
    told = engine.requests[0].text
    assert f"assistant\n{TAGGED}<|im_end|>" in told
    assert "user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response><|im_end|>" in told


def test_a_template_with_tools_is_used_as_it_is(start: Start, engine: FakeEngine) -> None:
    client = start(chat_template=KNOWS_TOOLS)
    calls = [{"id": "1", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]
    turn = {"role": "assistant", "tool_calls": calls}
    message(client, messages=[*HELLO, turn, {"role": "tool", "tool_call_id": "1", "content": "sunny"}])
    told = engine.requests[0].text
    assert f"TOOL {json.dumps(WEATHER)}" in told
    assert "CALL weather [('city', 'Paris')]" in told  # arguments are an object for it
    assert "tool: sunny" in told
    assert "<tool_call>" not in told


# What it says


def test_a_call_is_found(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=f"Let me see. {TAGGED}")
    said, reason = message(client)
    assert (said["content"], reason) == ("Let me see. ", "tool_calls")
    assert called(said["tool_calls"]) == [("weather", {"city": "Paris"})]


def test_calls_come_in_a_stream(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=f"Well. {TAGGED}\n{TAGGED}")
    events = client.send(PATH, {"messages": HELLO, "tools": [WEATHER], "stream": True}).events()
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call.pop("index") for call in calls] == [0, 1]
    assert called(calls) == [("weather", {"city": "Paris"})] * 2
    assert "".join(delta.get("content") or "" for delta in deltas) == "Well. "
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_only_one_call_where_no_more_are_wanted(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=TAGGED * 2)
    assert len(message(client, parallel_tool_calls=False)[0]["tool_calls"]) == 1
    assert len(message(client)[0]["tool_calls"]) == 2


def test_without_tools_everything_is_text(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=TAGGED)
    ways: tuple[dict[str, Any], ...] = ({"tools": None}, {"tools": []}, {"tool_choice": "none"})
    for fields in ways:
        assert message(client, **fields) == ({"role": "assistant", "content": TAGGED, "refusal": None}, "stop")


def test_a_call_that_was_cut_off_is_none(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=TAGGED)
    said, reason = message(client, max_tokens=30)
    assert (said["content"], reason) == (TAGGED[:30], "length")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, 1),
        (f"  {CALL}\n", 1),
        (f"[{CALL}, {CALL}]", 2),
        (f"{CALL}\n{CALL}", 2),
        ('{"name": "weather", "parameters": {"city": "Rome"}}', 1),
        ('{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}', 1),
        ('{"name": "other", "arguments": {}}', 0),
        ('{"name": ["weather"], "arguments": {}}', 0),
        ('{"name": "weather", "arguments": 5}', 0),
        ('{"name": "weather", "arguments": {"x": 1e999}}', 0),
        ('{"name": "weather", "arguments": {"x": NaN}}', 0),
        ("[" * 5000, 0),
        ("[]", 0),
        ("{}", 0),
        ("5", 0),
        ("", 0),
        (f"{CALL} and text", 0),
        ("<tool_call>no</tool_call>", 0),
        (f"<tool_call>{CALL}", 1),  # the closing tag may be a token without text
        ("<tool_call>", 0),
        ("a < b <tool", 0),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_reading_is_the_same_in_any_pieces(text: str, expected: int, size: int) -> None:
    reader = CallReader(["weather"])
    parts = [reader.push(text[i : i + size]) for i in range(0, len(text), size)]
    parts.append(reader.finish())
    calls = [call for part in parts for call in part.calls]
    assert len(calls) == reader.n_calls == expected
    assert all(call["function"]["name"] == "weather" for call in calls)
    if not expected:
        assert "".join(part.text for part in parts) == text  # nothing is lost


def test_half_of_a_surrogate_pair_does_no_harm(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=r'{"name": "weather", "arguments": {"city": "\ud800"}}')
    assert called(message(client)[0]["tool_calls"]) == [("weather", {"city": "?"})]


# What it must say


def allows(grammar: Grammar, text: str) -> bool:
    state = grammar.compile(ByteVocab()).start()  # type: ignore[arg-type]
    tokens = list(text.encode())
    if state.legal_prefix(tokens) < len(tokens):
        return False
    for token in tokens:
        state.accept(token)
    return state.may_end


def test_a_call_can_be_demanded(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=CALL)
    said, reason = message(client, tool_choice="required")
    assert (said["content"], reason) == (None, "tool_calls")
    grammar = engine.requests[0].settings["grammar"]
    assert allows(grammar, CALL)
    assert allows(grammar, '{"name": "time", "arguments": {}}')
    assert not allows(grammar, '{"name": "weather", "arguments": {}}')
    assert not allows(grammar, "Hello")


def test_a_certain_call_can_be_demanded(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=CALL)
    choice = {"type": "function", "function": {"name": "weather"}}
    message(client, tool_choice=choice)
    grammar = engine.requests[0].settings["grammar"]
    assert allows(grammar, CALL)
    assert not allows(grammar, '{"name": "time", "arguments": {}}')
    assert json.dumps(TIME["function"]) not in engine.requests[0].text


def test_a_demanded_call_has_no_arguments_that_were_not_declared(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text=CALL)
    message(client, tool_choice="required")
    grammar = engine.requests[0].settings["grammar"]
    assert not allows(grammar, CALL.replace("}}", ', "more": 1}}'))
    function: Any = WEATHER["function"]
    parameters = {**function["parameters"], "additionalProperties": True}
    open_one = {"function": {**function, "parameters": parameters}}
    assert allows(call_grammar([open_one]), CALL.replace("}}", ', "more": 1}}'))


def test_references_in_a_schema_stay_right() -> None:
    parameters = {
        "type": "object",
        "properties": {"point": {"$ref": "#/$defs/point"}},
        "required": ["point"],
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    }
    grammar = call_grammar([TIME, {"type": "function", "function": {"name": "draw", "parameters": parameters}}])
    assert allows(grammar, '{"name": "draw", "arguments": {"point": {"x": 1}}}')
    assert not allows(grammar, '{"name": "draw", "arguments": {"point": {}}}')


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool_choice": "required", "response_format": {"type": "json_object"}},
        {"tool_choice": "sometimes"},
        {"tools": [{"type": "retrieval"}]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tools": [{"type": "function", "function": {}}]},
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "nonsense"}}}]},
    ],
)
def test_wrong_tools_are_refused(client: Client, engine: FakeEngine, fields: dict[str, Any]) -> None:
    needs_grammar = {"tool_choice": "required"} if "nonsense" in str(fields) else {}
    answer = client.send(PATH, {"messages": HELLO, "tools": [WEATHER], **fields, **needs_grammar})
    assert answer.status == 400, answer.body
    assert answer.error["message"]
    assert engine.requests == []
