"""What the output must look like: response formats, schemas, grammars."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.asgi import Client
from tests.server.fakes import FakeEngine
from tests.server.test_tools import allows

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
RIGHT, WRONG = '{"n": 1}', '{"m": 1}'


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"grammar": 'root ::= "{\\"n\\": " [0-9] "}"'},
        {"regex": r'\{"n": [0-9]\}'},
        {"lark": 'start: "{\\"n\\": " /[0-9]/ "}"'},
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/completions"])
def test_each_notation_reaches_the_engine(
    client: Client, engine: FakeEngine, fields: dict[str, Any], path: str
) -> None:
    prompt = {"messages": HELLO} if path == PATH else {"prompt": "Hello"}
    answer = client.send(path, {**prompt, **fields})
    assert answer.status == 200, answer.body
    grammar = engine.requests[0].settings["grammar"]
    assert allows(grammar, RIGHT)
    assert not allows(grammar, WRONG)


def test_any_object_is_a_format(client: Client, engine: FakeEngine) -> None:
    assert client.send(PATH, {"messages": HELLO, "response_format": {"type": "json_object"}}).status == 200
    grammar = engine.requests[0].settings["grammar"]
    assert allows(grammar, WRONG)
    assert not allows(grammar, "[1]")


def test_text_is_no_format(client: Client, engine: FakeEngine) -> None:
    assert client.send(PATH, {"messages": HELLO, "response_format": {"type": "text"}}).status == 200
    assert "grammar" not in engine.requests[0].settings


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_object"}, "regex": "a"},
        {"json_schema": {"type": "nonsense"}},
        {"json_schema": {"$ref": "file:///etc/passwd"}},
        {"json_schema": {"$ref": "http://127.0.0.1:1/schema"}},
        {"json_schema": []},
        {"grammar": "root ::= other"},
        {"grammar": ""},
        {"regex": "("},
        {"lark": "start: ("},
        {"lark": '%import "/etc/passwd"\nstart: "a"'},
    ],
)
def test_wrong_formats_are_refused(client: Client, engine: FakeEngine, fields: dict[str, Any]) -> None:
    answer = client.send(PATH, {"messages": HELLO, **fields})
    assert answer.status == 400, answer.body
    assert answer.error["type"] == "invalid_request_error"
    assert "root:" not in answer.error["message"]
    assert engine.requests == []
