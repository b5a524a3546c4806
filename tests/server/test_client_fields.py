"""Fields of other servers' clients: honoured, without effect, or refused by name; and what answers say for them."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.llama.grammar import Grammar
from tests.pairs import OpenZoo, Pair
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import BOS, FakeEngine
from tests.server.real import client_of, real_engine

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": "Hi"},
    NATIVE: {"prompt": "Hi"},
}
ALL = pytest.mark.parametrize("path", BODIES)


@ALL
def test_ends_reach_the_engine(client: Client, engine: FakeEngine, path: str) -> None:
    fields = {"stop_token_ids": [7, 9], "min_tokens": 5, "repetition_penalty": 1.3}
    assert client.send(path, {**BODIES[path], **fields}).status == 200
    settings = engine.requests[0].settings
    assert (settings["stop_tokens"], settings["min_tokens"]) == ([7, 9], 5)
    assert (settings["sampling"].repeat_penalty, settings["sampling"].repeat_last_n) == (1.3, 1 << 20)


@ALL
def test_nothing_is_said_where_nothing_is_asked(client: Client, engine: FakeEngine, path: str) -> None:
    fields: dict[str, Any] = {"stop_token_ids": [], "min_tokens": 0, "repetition_penalty": None}
    assert client.send(path, {**BODIES[path], **fields}).status == 200
    assert not engine.requests[0].settings.keys() & {"stop_tokens", "min_tokens", "grammar"}
    assert engine.requests[0].settings["sampling"].repeat_last_n == 64


def test_the_penalty_looks_as_far_back_as_is_said(client: Client, engine: FakeEngine) -> None:
    fields = {"repetition_penalty": 1.3, "repeat_penalty": 1.3, "repeat_last_n": 32}
    assert client.send(TEXT, {"prompt": "Hi", **fields}).status == 200
    assert engine.requests[0].settings["sampling"].repeat_last_n == 32


SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}}


@ALL
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"guided_json": SCHEMA}, Grammar.json_schema(SCHEMA)),
        ({"guided_json": '{"type": "string"}'}, Grammar.json_schema('{"type": "string"}')),
        ({"guided_regex": "a+"}, Grammar.regex("a+")),
        ({"guided_choice": ["a.b", "c-d"]}, Grammar.regex(r"a\.b|c\-d")),
        ({"guided_grammar": 'root ::= "a"'}, Grammar.gbnf('root ::= "a"')),
        ({"guided_grammar": 'start: "a"'}, Grammar.lark('start: "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar.json_schema(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, Grammar.regex("a+")),
        ({"structured_outputs": {"choice": ["x"]}}, Grammar.regex("x")),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, Grammar.gbnf('root ::= "a"')),
        ({"structured_outputs": {"json_object": True}}, Grammar.json()),
    ],
)
def test_forms_of_the_output(
    client: Client, engine: FakeEngine, path: str, fields: dict[str, Any], grammar: Grammar
) -> None:
    answer = client.send(path, {**BODIES[path], **fields})
    assert answer.status == 200, answer.body
    assert engine.requests[0].settings["grammar"] == grammar


def test_a_choice_is_taken_literally(open_zoo: OpenZoo) -> None:
    choices = ["a.b*c", "x|y", "(1)", "d-e #~&", "é\n{}[]^$\\"]
    with real_engine(open_zoo, Pair("target-llama", "none"), plain=True) as engine:
        client = client_of(engine)
        for choice in choices:
            assert client.send(TEXT, {"prompt": "Hi", "guided_choice": [choice]}).json()["choices"][0]["text"] == choice


@pytest.mark.parametrize(
    ("samplers", "off"),
    [
        (["top_k", "temperature"], {"top_k": 5, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "temperature": 0.7}),
        (["penalties", "typical_p"], {"top_k": 0, "repeat_penalty": 1.1, "typical_p": 0.8, "temperature": 1.0}),
        ([], {"top_k": 0, "top_p": 1.0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "top_n_sigma": -1.0}),
    ],
)
def test_samplers_that_are_left_out_are_off(
    client: Client, engine: FakeEngine, samplers: list[str], off: dict[str, float]
) -> None:
    fields = {"top_k": 5, "typical_p": 0.8, "repeat_penalty": 1.1, "temperature": 0.7, "dry_multiplier": 0.5}
    assert client.send(NATIVE, {"prompt": "Hi", **fields, "samplers": samplers}).status == 200
    sampling = engine.requests[0].settings["sampling"]
    assert {name: getattr(sampling, name) for name in off} == off


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"verbosity": "low", "modalities": ["text"], "prediction": {"type": "content", "content": "x"}}),
        (TEXT, {"skip_special_tokens": True, "spaces_between_special_tokens": False, "use_beam_search": False}),
        (TEXT, {"include_stop_str_in_output": False, "prompt_cache_retention": "24h", "best_of": 1}),
        (NATIVE, {"n_keep": 5, "n_discard": 0, "min_keep": 0, "n_indent": 0, "t_max_predict_ms": -1, "id_slot": -1}),
        (NATIVE, {"return_progress": False, "timings_per_token": False, "post_sampling_probs": False}),
    ],
)
def test_what_changes_nothing_has_no_effect(
    client: Client, engine: FakeEngine, path: str, fields: dict[str, Any]
) -> None:
    assert client.send(path, BODIES[path]).status == 200
    answer = client.send(path, {**BODIES[path], **fields})
    assert answer.status == 200, answer.body
    assert engine.requests[0].settings == engine.requests[1].settings


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"stop_token_ids": [-1]}, "stop_token_ids"),
        (TEXT, {"stop_token_ids": list(range(257))}, "stop_token_ids"),
        (TEXT, {"min_tokens": -1}, "min_tokens"),
        (TEXT, {"min_tokens": 3, "stop": "x"}, "min_tokens"),
        (TEXT, {"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repetition_penalty"),
        (TEXT, {"guided_choice": []}, "choice"),
        (TEXT, {"structured_outputs": {"yaml": "x"}}, "structured_outputs.yaml"),
        (TEXT, {"guided_regex": "a", "guided_json": {}}, None),
        (TEXT, {"guided_regex": "("}, None),
        (NATIVE, {"samplers": ["temperature", "top_k"]}, "samplers"),
        (NATIVE, {"samplers": ["top_k", "top_k"]}, "samplers"),
        (NATIVE, {"samplers": ["infill"]}, "samplers"),
        (NATIVE, {"samplers": ["top_k"], "mirostat": 2}, "samplers"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"verbosity": "loud"}, "verbosity"),
        (CHAT, {"skip_special_tokens": False}, "skip_special_tokens"),
        (CHAT, {"use_beam_search": True}, "use_beam_search"),
        (TEXT, {"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        (TEXT, {"best_of": 2}, "best_of"),
        (NATIVE, {"t_max_predict_ms": 100}, "t_max_predict_ms"),
        (NATIVE, {"n_discard": 5}, "n_discard"),
        (NATIVE, {"min_keep": 1}, "min_keep"),
        (NATIVE, {"timings_per_token": True}, "timings_per_token"),
        (NATIVE, {"id_slot": 0}, "id_slot"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    client: Client, engine: FakeEngine, path: str, fields: dict[str, Any], param: str | None
) -> None:
    answer = client.send(path, {**BODIES[path], **fields})
    assert (answer.status, engine.requests) == (400, [])
    assert param is None or (answer.error["param"] or "").startswith(param), answer.body


def test_how_much_is_kept_is_the_servers(client: Client, engine: FakeEngine) -> None:
    engine.n_keep = 8
    assert client.send(NATIVE, {"prompt": "Hi", "n_keep": 8}).status == 200
    answer = client.send(NATIVE, {"prompt": "Hi", "n_keep": 9})
    assert (answer.status, answer.error["param"]) == (400, "n_keep")


# Answers


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_fingerprint_changes_with_the_model(start: Start, engine: FakeEngine, path: str) -> None:
    first, again = (start().send(path, BODIES[path]).json()["system_fingerprint"] for _ in range(2))
    streamed = start().send(path, {**BODIES[path], "stream": True}).events()
    engine.model.identity = "other"
    other = start().send(path, BODIES[path]).json()["system_fingerprint"]
    assert first == again != other
    assert {event["system_fingerprint"] for event in streamed} == {first}


@pytest.mark.parametrize("stream", [False, True])
def test_llamas_answer_ends_with_what_was_asked(client: Client, stream: bool) -> None:  # noqa: FBT001
    fields = {"stop": ["zz", "o, w", "lo, wo"], "temperature": 0.5, "seed": 3, "n_probs": 2, "stream": stream}
    answer = client.send(NATIVE, {"prompt": "Hi", **fields})
    told = answer.events()[-1] if stream else answer.json()
    assert (told["stop_type"], told["stopping_word"]) == ("word", "o, w")
    assert told["prompt"] == "<s>Hi"
    assert (told["tokens_evaluated"], told["truncated"]) == (len([BOS, *b"Hi"]), False)
    settings = told["generation_settings"]
    assert (settings["temperature"], settings["seed"], settings["n_predict"]) == (0.5, 3, -1)
    assert (settings["stop"], settings["n_probs"], settings["stream"]) == (fields["stop"], 2, stream)


def test_without_a_stop_there_is_no_stopping_word(client: Client) -> None:
    assert client.send(NATIVE, {"prompt": "Hi", "stop": ["zz"]}).json()["stopping_word"] == ""


def test_a_real_engine_takes_them(open_zoo: OpenZoo) -> None:
    with real_engine(open_zoo, Pair("target-llama", "ngram-simple")) as engine:
        client = client_of(engine)
        plain = client.send(NATIVE, {"prompt": "Hi", "n_predict": 30, "return_tokens": True}).json()
        end = plain["tokens"][20]
        n_tokens = plain["tokens"].index(end) + 1
        fields = {"n_predict": 30, "return_tokens": True, "stop_token_ids": [end]}
        told = client.send(NATIVE, {"prompt": "Hi", **fields}).json()
        assert (told["tokens"], told["stop_type"]) == (plain["tokens"][:n_tokens], "eos")
        assert len(client.send(NATIVE, {"prompt": "Hi", **fields, "min_tokens": n_tokens}).json()["tokens"]) > n_tokens
        wrong = client.send(NATIVE, {"prompt": "Hi", "stop_token_ids": [10**6]})
        assert (wrong.status, wrong.error["code"]) == (400, "invalid_token")
