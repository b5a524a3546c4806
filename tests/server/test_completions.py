"""``/v1/completions``."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import BOS, EOS, FakeEngine, Script

PATH = "/v1/completions"


def test_text_is_continued(client: Client, engine: FakeEngine) -> None:
    answer = client.send(PATH, {"model": "any", "prompt": "Hi"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    told = answer.json()
    assert told["object"] == "text_completion"
    assert told["model"] == "fake.gguf"
    assert told["choices"] == [{"index": 0, "text": "Hello, world!", "logprobs": None, "finish_reason": "stop"}]
    assert engine.requests[0].prompt == [BOS, *b"Hi"]
    n_tokens = len("Hello, world!") + 1  # the end is a token
    assert told["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": n_tokens,
        "total_tokens": 3 + n_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_speculation_is_reported(client: Client) -> None:
    told = client.send(PATH, {"prompt": "Hi", "max_tokens": 7}).json()["speculation"]
    assert told == {
        "valid": True,
        "n_rounds": 3,
        "n_drafted": 4,
        "n_accepted": 4,
        "n_forced": 0,
        "acceptance": 1.0,
        "acceptance_length": pytest.approx(7 / 3),
        "lengths": {"1": 1, "3": 2},
        "drafters": {
            "fake": {
                "n_drafts": 2,
                "n_drafted": 4,
                "n_accepted": 4,
                "acceptance": 1.0,
                "acceptance_length": 3.0,
                "histogram": [0, 0, 2],
            }
        },
    }


@pytest.mark.parametrize("limit", [0, 1, 2, 4])
def test_the_limit_is_exact(client: Client, limit: int) -> None:
    choice = client.send(PATH, {"prompt": "Hi", "max_tokens": limit}).json()["choices"][0]
    assert choice["text"] == "Hello, world!"[:limit]
    assert choice["finish_reason"] == "length"


def test_the_servers_own_limit_holds_where_none_is_given(start: Start, engine: FakeEngine) -> None:
    client = start(max_tokens=2)
    assert client.send(PATH, {"prompt": "Hi"}).json()["choices"][0]["text"] == "He"
    assert client.send(PATH, {"prompt": "Hi", "max_tokens": -1}).json()["choices"][0]["text"] == "Hello, world!"
    assert [request.settings["max_tokens"] for request in engine.requests] == [2, None]


def test_stop_texts_cut_the_answer(client: Client, engine: FakeEngine) -> None:
    choice = client.send(PATH, {"prompt": "Hi", "stop": ["x", "lo, w"]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hel", "stop")
    assert client.send(PATH, {"prompt": "Hi", "stop": "wor"}).json()["choices"][0]["text"] == "Hello, "
    assert engine.requests[1].settings["stop"] == ["wor"]


def test_priority_and_the_time_limit_reach_the_engine(start: Start, engine: FakeEngine) -> None:
    client = start(timeout=12.5)
    for fields in ({}, {"priority": -3}):
        assert client.send(PATH, {"prompt": "Hi", **fields}).status == 200
    told = [(request.settings["priority"], request.settings["timeout"]) for request in engine.requests]
    assert told == [(0, 12.5), (-3, 12.5)]


@pytest.mark.parametrize("stop", [[""], ["x"] * 65, "x" * 1001])
def test_stop_texts_have_limits(client: Client, stop: object) -> None:
    answer = client.send(PATH, {"prompt": "Hi", "stop": stop})
    assert (answer.status, answer.error["param"]) == (400, "stop")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a<|im_end|>", [[BOS, ord("a"), 259]]),
        ([72, 105], [[72, 105]]),
        (["a", "b"], [[BOS, ord("a")], [BOS, ord("b")]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_is_text_or_tokens_or_several(
    client: Client, engine: FakeEngine, prompt: object, expected: list[list[int]]
) -> None:
    told = client.send(PATH, {"prompt": prompt}).json()
    assert [request.prompt for request in engine.requests] == expected
    assert [choice["index"] for choice in told["choices"]] == list(range(len(expected)))
    assert told["usage"]["prompt_tokens"] == sum(map(len, expected))


@pytest.mark.parametrize("prompt", [[], [[]], "", [True], [1.5], [-1], 5, None, [2**31], {}])
def test_other_prompts_are_refused(client: Client, prompt: object) -> None:
    answer = client.send(PATH, {"prompt": prompt})
    if prompt == "":  # BOS alone is a prompt
        assert answer.status == 200
        return
    assert answer.status == 400
    assert answer.error["param"].startswith("prompt")


def test_several_answers_have_seeds_of_their_own(client: Client, engine: FakeEngine) -> None:
    engine.script = lambda request: Script(text=f"seed {request.settings['sampling'].seed}")
    told = client.send(PATH, {"prompt": ["a", "b"], "n": 2, "temperature": 1.0, "seed": 2**32 - 1}).json()
    texts = [(choice["index"], choice["text"]) for choice in told["choices"]]
    assert texts == [(0, f"seed {2**32 - 1}"), (1, "seed 0"), (2, f"seed {2**32 - 1}"), (3, "seed 0")]
    assert told["usage"]["prompt_tokens"] == 4  # each prompt counts once


def test_too_many_answers_are_refused(start: Start, engine: FakeEngine) -> None:
    answer = start(max_choices=3).send(PATH, {"prompt": ["a", "b"], "n": 2})
    assert (answer.status, answer.error["param"], engine.requests) == (400, "n", [])


def test_a_stream_says_the_same(client: Client) -> None:
    body = {"prompt": ["a", "b"], "stream": True, "stop": "orl"}
    answer = client.send(PATH, body)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    texts, ends = ["", ""], []
    for event in answer.events():
        assert event.keys() == {"id", "object", "created", "model", "system_fingerprint", "choices"}
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert texts == ["Hello, w"] * 2
    assert ends == ["stop"] * 2


def test_a_stream_ends_with_usage_where_it_is_asked_for(client: Client) -> None:
    body = {"prompt": "Hi", "stream": True, "stream_options": {"include_usage": True}}
    *events, last = client.send(PATH, body).events()
    assert [event["usage"] for event in events] == [None] * len(events)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len("Hello, world!") + 1
    assert last["speculation"]["n_rounds"] == 6


def test_the_prompt_is_echoed(client: Client) -> None:
    body: dict[str, Any] = {"prompt": "Say: ", "echo": True}
    assert client.send(PATH, body).json()["choices"][0]["text"] == "Say: Hello, world!"
    events = client.send(PATH, {**body, "stream": True}).events()
    assert "".join(event["choices"][0]["text"] for event in events) == "Say: Hello, world!"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"suffix": "end"}, 501),
        ({"best_of": 2}, 400),
        ({"echo": True, "logprobs": 1}, 400),
        ({"prompt": None}, 400),
        ({"n": 0}, 400),
        ({"logprobs": -1}, 400),
        ({"max_tokens": -2}, 400),
        ({"temperature": "1"}, 400),
        ({"temperature": -1}, 400),
        ({"seed": -2}, 400),
        ({"stream": 1}, 400),
    ],
)
def test_what_is_not_done_is_said(client: Client, engine: FakeEngine, body: dict[str, Any], status: int) -> None:
    answer = client.send(PATH, {"prompt": "Hi", **body})
    assert answer.status == status
    assert answer.error["message"]
    assert engine.requests == []


def test_every_sampling_field_arrives(client: Client, engine: FakeEngine) -> None:
    plain = {
        "temperature": 0.5,
        "top_p": 0.6,
        "top_k": 7,
        "min_p": 0.01,
        "typical_p": 0.9,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.2,
        "xtc_threshold": 0.3,
        "dynatemp_range": 0.1,
        "dynatemp_exponent": 1.5,
        "repeat_penalty": 1.1,
        "repeat_last_n": 32,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "dry_multiplier": 0.8,
        "dry_base": 1.5,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 100,
        "seed": 11,
    }
    renamed = {"mirostat_tau": ("mirostat_ent", 4.0), "mirostat_eta": ("mirostat_lr", 0.2)}
    body = {**plain, "dry_sequence_breakers": ["\n"], **{name: value for name, (_, value) in renamed.items()}}
    answer = client.send(PATH, {"prompt": "Hi", **body})
    assert answer.status == 200, answer.body
    sampling = engine.requests[0].settings["sampling"]
    assert {name: getattr(sampling, name) for name in plain} == plain
    assert [getattr(sampling, name) for name, _ in renamed.values()] == [4.0, 0.2]
    assert tuple(sampling.dry_sequence_breakers) == ("\n",)


def test_biases_come_in_both_forms(client: Client, engine: FakeEngine) -> None:
    client.send(PATH, {"prompt": "Hi", "logit_bias": {"65": -100, "B": 2.5}})
    client.send(PATH, {"prompt": "Hi", "logit_bias": [[65, 1], ["BC", -1.5], [68, False]], "ignore_eos": True})
    first, second = (dict(request.settings["sampling"].logit_bias) for request in engine.requests)
    assert first == {65: -100.0, 66: 2.5}
    assert second == {65: 1.0, 66: -1.5, 67: -1.5, 68: -math.inf, EOS: -math.inf, 259: -math.inf}


@pytest.mark.parametrize(
    "key",
    ["1.5", "-1", "+1", "99999999999", "260", " 1", "1e3", "1_0", "nan", "-inf", "Infinity", "\u0661", "", "9" * 5000],
)
def test_a_number_that_is_no_token_is_no_text_either(client: Client, engine: FakeEngine, key: str) -> None:
    refused = client.send(PATH, {"prompt": "Hi", "logit_bias": {"65": 1, key: 3}})
    assert (refused.status, refused.json()["error"]["param"]) == (400, "logit_bias")
    assert len(refused.body) < 500
    assert not engine.requests


def test_text_that_is_no_number_is_text(client: Client, engine: FakeEngine) -> None:
    biases = [{"1.2.3": 1}, {"0x1": 1}, {"-": 1}, {" ": 1}, [["1.5", 1]], [["65", 1]], {"007": 1, "259": 1}]
    for bias in biases:
        assert client.send(PATH, {"prompt": "Hi", "logit_bias": bias}).status == 200, bias
    found = [set(request.settings["sampling"].logit_bias) for request in engine.requests]
    assert found == [*({*text.encode()} for text in ("1.2.3", "0x1", "-", " ", "1.5", "65")), {7, 259}]
    assert client.send(PATH, {"prompt": "Hi", "logit_bias": [["", 1]]}).status == 400


def test_drafting_arrives(client: Client, engine: FakeEngine) -> None:
    for wanted in (
        {"types": "fake", "n_max": 3, "n_min": 1, "p_min": 0.5, "rule": "coupled"},
        {"types": ["fake"]},
        {"off": True},
        {"types": "none"},
    ):
        assert client.send(PATH, {"prompt": "Hi", "speculative": wanted}).status == 200
    first, second, off, none = (request.settings["drafting"] for request in engine.requests)
    assert (first.names, first.n_max, first.n_min, first.p_min) == (("fake",), 3, 1, 0.5)
    assert engine.requests[0].settings["rule"] == "coupled"
    assert (second.names, second.n_max, engine.requests[1].settings["rule"]) == (("fake",), None, None)
    assert off.names == none.names == ()


@pytest.mark.parametrize(
    "wanted",
    [
        {"types": ["other"]},
        {"off": True, "types": "fake"},
        {"n_max": 1, "n_min": 2},
        {"rule": "x"},
        {"p_min": 2},
        {"nmax": 1},
    ],
)
def test_wrong_drafting_is_refused(client: Client, wanted: dict[str, Any]) -> None:
    assert client.send(PATH, {"prompt": "Hi", "speculative": wanted}).status == 400
