"""llama.cpp's endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.engine import Result
from pyspec.server import counting
from pyspec.speculation import GenerationStats
from tests.server.asgi import Client
from tests.server.fakes import BOS, FakeEngine, Script

PATH = "/completion"


def test_text_is_continued(client: Client, engine: FakeEngine) -> None:
    told = client.send(PATH, {"prompt": "Hi"}).json()
    assert told["content"] == "Hello, world!"
    assert (told["stop"], told["stop_type"], told["truncated"]) == (True, "eos", False)
    assert (told["tokens_predicted"], told["tokens_evaluated"], told["tokens"]) == (14, 3, [])
    assert engine.requests[0].prompt == [BOS, *b"Hi"]


def test_timings_are_those_that_its_clients_know(client: Client) -> None:
    timings = client.send(PATH, {"prompt": "Hi", "n_predict": 6}).json()["timings"]
    assert timings.pop("predicted_ms") == pytest.approx(10)  # the second round of the fake
    assert timings == {
        "cache_n": 0,
        "prompt_n": 3,
        "prompt_ms": 0.0,
        "prompt_per_token_ms": 0.0,
        "prompt_per_second": 0.0,
        "predicted_n": 6,
        "predicted_per_token_ms": pytest.approx(10 / 3),
        "predicted_per_second": pytest.approx(300),
        "draft_n": 4,
        "draft_n_accepted": 4,
    }


def test_one_token_has_a_rate_too() -> None:
    stats = GenerationStats(n_prompt=4, n_first=1, prompt_seconds=0.2)
    told = counting.timings(Result(tokens=[5], prompt_tokens=[1, 2, 3, 4], stats=stats))
    assert [told["predicted_ms"], told["predicted_per_token_ms"]] == pytest.approx([200, 200])
    assert [told["predicted_per_second"], told["prompt_per_second"]] == pytest.approx([5, 20])
    nothing = counting.timings(Result(prompt_tokens=[1], stats=GenerationStats(prompt_seconds=0.2)))
    assert (nothing["predicted_ms"], nothing["predicted_per_second"]) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [({"n_predict": 3}, "limit", "Hel"), ({"stop": ["o"]}, "word", "Hell"), ({"max_tokens": 2}, "limit", "He")],
)
def test_the_end_has_a_kind(client: Client, fields: dict[str, Any], kind: str, text: str) -> None:
    told = client.send(PATH, {"prompt": "Hi", **fields}).json()
    assert (told["stop_type"], told["content"]) == (kind, text)


def test_a_stream_says_the_same(client: Client) -> None:
    answer = client.send(PATH, {"prompt": "Hi", "stream": True})
    assert b"[DONE]" not in answer.body
    *events, last = answer.events()
    assert "".join(event["content"] for event in (*events, last)) == "Hello, world!"
    assert [event["stop"] for event in (*events, last)] == [False] * len(events) + [True]
    assert [event["tokens_predicted"] for event in events] == [3, 6, 9, 12, 13]
    assert bytes(token for event in events for token in event["tokens"]) == b"Hello, world!"
    assert last["timings"]["predicted_n"] == 14


def test_several_prompts_are_refused_not_joined(client: Client, engine: FakeEngine) -> None:
    refused = client.send(PATH, {"prompt": ["one", "two"]})
    assert refused.status == 400
    assert "/v1/completions" in refused.json()["error"]["message"]
    assert engine.requests == []


def test_a_prompt_may_be_mixed(client: Client, engine: FakeEngine) -> None:
    client.send(PATH, {"prompt": ["a", 7, "b"]})
    client.send(PATH, {"prompt": [7, "b"]})
    assert [request.prompt for request in engine.requests] == [[BOS, ord("a"), 7, ord("b")], [7, ord("b")]]


def test_tokens_and_probabilities_are_told(client: Client) -> None:
    told = client.send(PATH, {"prompt": "Hi", "n_predict": 1, "n_probs": 2, "return_tokens": True}).json()
    assert told["tokens"] == [ord("H")]
    assert told["completion_probabilities"] == [
        {
            "id": 72,
            "token": "H",
            "logprob": -0.25,
            "bytes": [72],
            "top_logprobs": [
                {"id": 72, "token": "H", "logprob": -0.25, "bytes": [72]},
                {"id": 63, "token": "?", "logprob": -2.0, "bytes": [63]},
            ],
        }
    ]


def test_drafting_may_be_said_in_dots(client: Client, engine: FakeEngine) -> None:
    client.send(PATH, {"prompt": "Hi", "speculative.n_max": 3, "speculative": {"types": "fake", "n_max": 9}})
    drafting = engine.requests[0].settings["drafting"]
    assert (drafting.names, drafting.n_max) == (("fake",), 3)


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"id_slot": 1}, 400), ({"post_sampling_probs": True}, 501), ({"n_probs": 21}, 400), ({"n_predict": -2}, 400)],
)
def test_what_is_not_done_is_said(client: Client, fields: dict[str, Any], status: int) -> None:
    answer = client.send(PATH, {"prompt": "Hi", **fields})
    assert answer.status == status
    assert answer.error["message"]


@pytest.mark.parametrize("text", ["", "Hi", "é", "<|im_end|>", "a\0b", "\N{GRINNING FACE}" * 100])
def test_tokens_and_text_are_each_others_reverse(client: Client, text: str) -> None:
    tokens = client.send("/tokenize", {"content": text}).json()["tokens"]
    assert client.send("/detokenize", {"tokens": tokens}).json() == {"content": text}


def test_tokenizing_follows_its_options(client: Client) -> None:
    def tokens(**fields: object) -> object:
        return client.send("/tokenize", {"content": "<s>", **fields}).json()["tokens"]

    assert tokens() == [BOS]
    assert tokens(add_special=True) == [BOS, BOS]
    assert tokens(parse_special=False) == list(b"<s>")
    assert tokens(with_pieces=True) == [{"id": BOS, "piece": "<s>"}]
    pieces = client.send("/tokenize", {"content": "é", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]


@pytest.mark.parametrize("tokens", [[260], [-1], ["a"], [1.0], "12", None, [2**40]])
def test_wrong_tokens_are_refused(client: Client, tokens: object) -> None:
    assert client.send("/detokenize", {"tokens": tokens}).status == 400
    assert client.send("/completion", {"prompt": "Hi", "n_predict": tokens}).status == (200 if tokens is None else 400)


def test_a_full_context_is_said(client: Client, engine: FakeEngine) -> None:
    from pyspec.errors import ContextFullError

    engine.refuses = ContextFullError("The prompt has 9 tokens; the context has room for 8. Use a larger n_ctx.")
    answer = client.send(PATH, {"prompt": "Hi"})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    engine.refuses, engine.script = None, Script()
    assert client.send(PATH, {"prompt": "Hi"}).status == 200
