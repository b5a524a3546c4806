"""Errors: OpenAI's form, the right status, and nothing about the inside."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec import errors
from pyspec.server.errors import translated
from tests.server.asgi import Client
from tests.server.fakes import FakeEngine, Script

PATH = "/v1/completions"
INSIDE = "/home/somebody/models/big.gguf"


def test_unknown_fields_are_errors_that_help(client: Client, engine: FakeEngine) -> None:
    answer = client.send(PATH, {"prompt": "Hi", "temprature": 1})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unknown_parameter", "temprature")
    assert "Did you mean temperature?" in answer.error["message"]
    nested = client.send(PATH, {"prompt": "Hi", "stream_options": {"include_usge": True}})
    assert nested.error["param"] == "stream_options.include_usge"
    assert engine.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "Hi", "stop": 5}, "stop"),
        ({"prompt": "Hi", "stop": ["a", 5]}, "stop.1"),
        ({"prompt": "Hi", "speculative": {"n_max": "3"}}, "speculative.n_max"),
        ({"prompt": "Hi", "speculative": {"types": "nobody"}}, "speculative.types"),
        ({"prompt": "Hi", "speculative": {"rule": "nothing"}}, "speculative.rule"),
        ({"prompt": "Hi", "temperature": -1}, "temperature"),
        ({"prompt": "Hi", "top_p": 2}, "top_p"),
        ({"prompt": [1, "a"]}, "prompt.1"),
    ],
)
def test_an_error_names_the_field(client: Client, body: dict[str, Any], param: str) -> None:
    answer = client.send(PATH, body)
    assert (answer.status, answer.error["param"], answer.error["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "Hi", "temperature": NaN}',
        b'{"prompt": "Hi", "temperature": 1e999}',
        b'{"prompt": "Hi", "seed": 1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[]",
        b'"Hi"',
        b"null",
        b'{"prompt": "Hi"} more',
    ],
)
def test_what_is_no_json_object_is_refused(client: Client, body: bytes) -> None:
    answer = client.send(PATH, body, headers={"content-type": "application/json"})
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_other_types_are_refused(client: Client, kind: str) -> None:
    assert client.send(PATH, b'{"prompt": "Hi"}', headers={"content-type": kind}).status == 415
    fine = client.send(PATH, b'{"prompt": "Hi"}', headers={"content-type": "Application/JSON; charset=utf-8"})
    assert fine.status == 200


def test_wrong_paths_and_methods(client: Client) -> None:
    nowhere = client.send("/v1/nothing", {"prompt": "Hi"})
    assert (nowhere.status, nowhere.error["code"]) == (404, "not_found")
    wrong = client.send(PATH)
    assert (wrong.status, wrong.error["code"], wrong.headers["allow"]) == (405, "method_not_allowed", "POST")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BusyError("slot 3 of 4"), 429, "busy"),
        (errors.ContextFullError("The prompt has 9 tokens."), 400, "context_length_exceeded"),
        (errors.GrammarError("No such rule."), 400, "invalid_grammar"),
        (errors.TokenError("Token 7 is outside."), 400, "invalid_token"),
        (errors.ConfigError("top_k must be a number."), 400, None),
        (errors.UnsupportedError("This rule cannot work."), 400, "not_supported"),
        (errors.ClosedError("The engine is closed."), 503, "shutting_down"),
        (errors.DeadlineError("took longer"), 504, "timeout"),
        (errors.DecodeError(INSIDE), 500, "internal_error"),
        (errors.DrafterError(INSIDE), 500, "internal_error"),
        (errors.NativeError(INSIDE), 500, "internal_error"),
        (errors.ModelNotFoundError(INSIDE), 500, "internal_error"),
        (errors.BrokenError(INSIDE), 500, "internal_error"),
        (RuntimeError(INSIDE), 500, "internal_error"),
        (OSError(INSIDE), 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_what_the_engine_raises_becomes_an_answer(
    client: Client, engine: FakeEngine, error: Exception, status: int, code: str | None, when: str
) -> None:
    if when == "at once":
        engine.refuses = error
    else:
        engine.script = Script(error=error)
    answer = client.send(PATH, {"prompt": "Hi"})
    assert (answer.status, answer.error["code"]) == (status, code)
    assert INSIDE not in answer.body.decode()
    assert engine.running == set()  # whatever happened, no slot is kept


def test_every_exception_has_a_status() -> None:
    for name in errors.__all__:
        shown = translated(getattr(errors, name)(INSIDE))
        assert 400 <= shown.status < 600
        if shown.status >= 500:
            assert INSIDE not in shown.message


def test_an_error_in_a_stream_is_an_event(client: Client, engine: FakeEngine) -> None:
    engine.script = Script(text="abcdef", error=errors.DecodeError(INSIDE))
    answer = client.send(PATH, {"prompt": "Hi", "stream": True})
    *events, last = answer.events()
    assert answer.status == 200
    assert "".join(event["choices"][0]["text"] for event in events) == "abcdef"
    assert last["error"]["code"] == "internal_error"
    assert b"[DONE]" not in answer.body
    assert INSIDE not in answer.body.decode()


def test_one_error_ends_all_generations_of_a_request(client: Client, engine: FakeEngine) -> None:
    engine.script = lambda request: Script(error=errors.DecodeError("x")) if request.text.endswith("b") else Script()
    assert client.send(PATH, {"prompt": ["a", "b"]}).status == 500
    assert engine.running == set()


def test_a_long_message_is_cut(client: Client) -> None:
    answer = client.send(PATH, {"prompt": "Hi", "x" * 5000: 1})
    assert len(answer.error["message"]) < 1100


def test_a_handler_that_is_broken_leaks_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine
) -> None:
    def broken(*_: object, **__: object) -> list[int]:
        raise ZeroDivisionError(INSIDE)

    monkeypatch.setattr(engine.model.vocab, "tokenize", broken)
    answer = client.send(PATH, {"prompt": "Hi"})
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert INSIDE not in answer.body.decode()
