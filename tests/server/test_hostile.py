"""Requests that are meant to keep the server busy: each is refused before it costs much."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from pyspec.server.bodies.chat import ChatBody
from pyspec.server.bodies.text import CompletionBody, DetokenizeBody, LlamaCompletionBody
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import ByteVocab, FakeEngine

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MANY = 1000
STRANGERS = {f"field{i}": i for i in range(MANY)}
FAULTY: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (CompletionBody, {"prompt": [{}] * MANY}),
    (CompletionBody, {"prompt": [[{}] * MANY] * MANY}),
    (CompletionBody, {"prompt": "Hi", "stop": [1] * MANY}),
    (CompletionBody, {"prompt": "Hi", "logit_bias": [["a", "b"]] * MANY}),
    (CompletionBody, {"prompt": "Hi", "speculative": STRANGERS}),
    (CompletionBody, {"prompt": "Hi", **STRANGERS}),
    (LlamaCompletionBody, {"prompt": [{}] * MANY}),
    (DetokenizeBody, {"tokens": [-1] * MANY}),
    (ChatBody, {"messages": [{"role": "nobody"}] * MANY}),
    (ChatBody, {"messages": [{"role": "user", "content": [{"type": "image"}] * MANY}]}),
    (ChatBody, {"messages": [{"role": "user"}], "tools": [{}] * MANY}),
]


@pytest.mark.parametrize(("kind", "data"), FAULTY, ids=[f"{kind.__name__}-{i}" for i, (kind, _) in enumerate(FAULTY)])
def test_of_many_faults_few_are_explained(kind: type[BaseModel], data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(data)
    assert caught.value.error_count() < 20


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
def test_a_text_that_cannot_fit_is_not_even_read(
    client: Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(ByteVocab, "tokenize", None)
    text = "x" * (engine.n_ctx_seq * len("<|im_start|>") + 1)
    for said in (text, [{"type": "text", "text": text}]) if path == CHAT else (text,):
        body = {"messages": [{"role": "user", "content": said}]} if path == CHAT else {"prompt": said}
        answer = client.send(path, body)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("path", [TEXT, NATIVE])
def test_token_ids_that_cannot_fit_do_not_reach_the_engine(client: Client, engine: FakeEngine, path: str) -> None:
    fits = client.send(path, {"prompt": [65] * engine.n_ctx_seq, "max_tokens": 1})
    assert fits.status == 200
    answer = client.send(path, {"prompt": [65] * (engine.n_ctx_seq + 1), "max_tokens": 1})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert len(engine.requests) == 1


def test_many_prompts_are_counted_before_they_are_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteVocab, "tokenize", None)
    assert client.send(TEXT, {"prompt": ["Hi"] * 17}).error["param"] == "n"


def test_names_of_special_tokens_are_limited(client: Client) -> None:
    assert client.send("/tokenize", {"content": "<s>" * 10_000}).json() == {"tokens": [256] * 10_000}
    answer = client.send("/tokenize", {"content": "<s>" * 10_001})
    assert answer.status == 400
    assert "names of special tokens" in answer.error["message"]
    assert client.send("/tokenize", {"content": "<s>" * 10_001, "parse_special": False}).status == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"prompt": "Hi", "logprobs": 21}, "logprobs"),
        (TEXT, {"prompt": "Hi", "logit_bias": {str(i): 1.0 for i in range(16385)}}, "logit_bias"),
        (TEXT, {"prompt": "Hi", "logit_bias": [[1, 1.0]] * 16385}, "logit_bias"),
        (TEXT, {"prompt": "Hi", "dry_sequence_breakers": ["x"] * 9}, "dry_sequence_breakers"),
        (TEXT, {"prompt": "Hi", "dry_sequence_breakers": ["x" * 17]}, "dry_sequence_breakers.0"),
        ("/tokenize", {"content": "x" * ((1 << 20) + 1)}, "content"),
        ("/detokenize", {"tokens": [65] * ((1 << 20) + 1)}, "tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_costs_more_than_it_weighs_is_limited(
    client: Client, engine: FakeEngine, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = client.send(path, fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert len(answer.error["message"]) < 200
    assert engine.requests == []


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE, "/tokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"prompt":' * 100_000,
        b'{"prompt": "\\ud800"}',
        '{"prompt": "Hi"}'.encode("utf-16"),
        b'{"prompt": "\xff"}',
        b"",
        b"null",
    ],
    ids=["deep-list", "deep-object", "half-pair", "utf-16", "no-utf-8", "nothing", "null"],
)
def test_what_is_no_json_object_is_refused(client: Client, path: str, body: bytes) -> None:
    answer = client.send(path, body, headers={"content-type": "application/json"})
    assert answer.status == 400
    assert len(json.dumps(answer.error)) < 400


def test_a_body_that_does_not_come_ends_the_connection(start: Start) -> None:
    import asyncio

    async def play() -> None:
        exchange = start(body_timeout=0.05).begin(TEXT, [b'{"prompt"'], complete=False)
        await exchange.task
        assert (exchange.answer.status, exchange.answer.headers["connection"]) == (408, "close")

    asyncio.run(play())
