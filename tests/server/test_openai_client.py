"""The official client against ``pyspec serve``, with a real model, over a socket."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.server.serving import served

KEY = "key-of-the-test"
HELLO: list[Any] = [{"role": "user", "content": "Name three colours of the rainbow."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def address(smollm2: Path) -> Iterator[str]:
    flags = "-np 2 -c 2048 --no-kv-unified --alias small --spec-type ngram-simple --spec-ngram-simple-size-n 3"
    with served(smollm2, *flags.split(), "--spec-ngram-simple-size-m", "4", key=KEY) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai_client(address) as made:
        yield made


def openai_client(address: str, key: str = KEY) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(trust_env=False)  # no proxy
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, http_client=http, max_retries=0, timeout=120)


def ask(client: openai.OpenAI, messages: list[Any] = HELLO, **options: Any) -> Any:
    chosen = {"model": "small", "messages": messages, "max_tokens": 24, "temperature": 0, **options}
    return client.chat.completions.create(**chosen)


def test_chat(client: openai.OpenAI) -> None:
    answer = ask(client)
    assert answer.model == "small"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert 0 < answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_speculation_changes_nothing_and_is_reported(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Repeat: one two three four. one two three four. one two three four."}]
    speculated = ask(client, messages, max_tokens=60)
    plain = ask(client, messages, max_tokens=60, extra_body={"speculative": {"off": True}})
    assert speculated.choices[0].message.content == plain.choices[0].message.content
    assert plain.speculation["n_drafted"] == 0
    counts = speculated.speculation
    assert counts["valid"] is True
    assert counts["n_rounds"] + counts["n_accepted"] == speculated.usage.completion_tokens
    assert counts["drafters"]["ngram-simple"]["n_drafted"] == counts["n_drafted"]


def test_streaming(client: openai.OpenAI) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    *events, last = chunks
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text == whole.choices[0].message.content
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_several_answers_with_seeds(client: openai.OpenAI) -> None:
    def texts(seed: int) -> list[str]:
        answer = ask(client, n=2, temperature=1.5, seed=seed, max_tokens=16)
        return [choice.message.content for choice in answer.choices]

    first = texts(7)
    assert first[0] != first[1]
    assert texts(7) == first
    assert texts(8)[0] == first[1]


def test_stop(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    word = whole.split()[2]
    answer = ask(client, stop=word)
    assert answer.choices[0].message.content == whole[: whole.index(word)]
    assert answer.choices[0].finish_reason == "stop"


def test_log_probabilities(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # at temperature 0
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-6)
        assert entry.logprob <= 0
        values = [alternative.logprob for alternative in entry.top_logprobs]
        assert values == sorted(values, reverse=True)


def test_json_schema(client: openai.OpenAI) -> None:
    class Box(BaseModel):
        size: int
        colours: list[str]

    schema = {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "minimum": 0, "maximum": 99},
            "colours": {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 2},
        },
        "required": ["size", "colours"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "box", "strict": True, "schema": schema}}
    answer = ask(client, response_format=wanted, max_tokens=200)
    assert answer.choices[0].finish_reason == "stop"
    assert Box.model_validate_json(answer.choices[0].message.content).colours


def test_json_object(client: openai.OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=8)
    assert answer.choices[0].message.content.lstrip().startswith("{")


def test_the_clients_own_parsing(client: openai.OpenAI) -> None:
    class Answer(BaseModel):
        right: bool

    answer = client.chat.completions.parse(
        model="small", messages=HELLO, response_format=Answer, max_tokens=60, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = ask(client, messages, tools=[WEATHER], tool_choice=choice, max_tokens=80)
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    after = ask(client, [*messages, answer.choices[0].message, result], tools=[WEATHER], tool_choice="none")
    assert after.choices[0].message.content
    assert after.choices[0].message.tool_calls is None


def test_tools_in_a_stream(client: openai.OpenAI) -> None:
    chunks = list(ask(client, tools=[WEATHER], tool_choice="required", max_tokens=80, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [call.index for call in calls] == [0]
    assert json.loads(calls[0].function.arguments)["unit"] in ("C", "F")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_text_without_a_template(client: openai.OpenAI) -> None:
    options: Any = {"model": "small", "prompt": "1, 2, 3, 4,", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**options, echo=True)
    assert whole.choices[0].text.startswith("1, 2, 3, 4, 5")
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))
    assert whole.choices[0].text == options["prompt"] + streamed
    scored = client.completions.create(**options, logprobs=1).choices[0]
    assert scored.logprobs is not None
    assert "".join(scored.logprobs.tokens or []) == scored.text == streamed


def test_a_stream_that_is_closed_frees_its_slot(client: openai.OpenAI, address: str) -> None:
    stream = ask(client, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    next(chunk for chunk in stream if chunk.choices[0].delta.content)  # the first one comes before it has a slot
    assert any(slot["is_processing"] for slot in slots(address))
    stream.close()
    tick = threading.Event()
    while any(slot["is_processing"] for slot in slots(address)):
        tick.wait(0.01)
    assert ask(client).choices[0].message.content


def slots(address: str) -> Any:
    request = urllib.request.Request(f"{address}/slots", headers={"x-api-key": KEY})  # noqa: S310 - its own address
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


def test_streams_at_once_say_what_each_says_alone(client: openai.OpenAI, address: str) -> None:
    questions = ["Count to five.", "Name a fruit.", "What is 2 + 2?", "Say hello."]
    alone = [ask(client, [{"role": "user", "content": text}]).choices[0].message.content for text in questions]

    async def together() -> list[str]:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, http_client=http, max_retries=0) as many:
            return list(await asyncio.gather(*(said(many, text) for text in questions)))

    async def said(many: openai.AsyncOpenAI, text: str) -> str:
        stream = await many.chat.completions.create(
            model="small", messages=[{"role": "user", "content": text}], max_tokens=24, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(together()) == alone


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "pyspec"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, extra_body={"no_such_field": 1})
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "no_such_field")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, [{"role": "user", "content": "word " * 5000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError) as failed:
        client.embeddings.create(model="small", input="Hi")
    assert failed.value.status_code == 501
    with openai_client(address, "wrong") as stranger, pytest.raises(openai.AuthenticationError):
        ask(stranger)
