"""What clients ask a server about itself, and the paths that some of them know."""

from __future__ import annotations

import math
from typing import Any

import pytest

import pyspec
from pyspec.config import SamplingConfig
from pyspec.server import openapi
from pyspec.speculation.config import Speculation
from tests.pairs import OpenZoo
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import CHATML, FakeEngine
from tests.server.real import client_of

HELLO = [{"role": "user", "content": "Hello <|im_end|>"}]
BODIES: dict[str, dict[str, Any]] = {
    "/completions": {"prompt": "Hi"},
    "/chat/completions": {"messages": HELLO},
    "/embeddings": {"input": "Hi"},
}


@pytest.mark.parametrize("alias", [*BODIES, "/models"])
def test_an_alias_says_the_same(start: Start, alias: str) -> None:
    client = start(pooling="mean")
    body = BODIES.get(alias)
    found, expected = (client.send(path, body).json() for path in (alias, f"/v1{alias}"))
    for answer in (found, expected):
        for changing in ("id", "created"):
            answer.pop(changing, None)
    assert found == expected
    text = client.send("/metrics").body.decode()
    assert f'endpoint="/v1{alias}",status="200"}} 2.0' in text  # and counts as it


def test_health_alone_needs_no_key(start: Start) -> None:
    client = start(api_keys=["secret"])
    for path in openapi.document()["paths"]:
        status = client.send(path, BODIES.get(path.removeprefix("/v1"))).status
        assert (status == 200) if path in ("/health", "/v1/health") else (status == 401), path


def test_the_version(client: Client) -> None:
    told = client.send("/version").json()
    assert told["version"] == pyspec.__version__
    assert told["llama_cpp"].startswith("b")


def test_props_describe_the_server(start: Start) -> None:
    sampling = SamplingConfig(temperature=0.5, mirostat_ent=4.0, seed=7, logit_bias={5: -math.inf, 6: 1.5})
    told = start(sampling=sampling, max_tokens=9, aliases=["name"]).send("/props").json()
    defaults = told.pop("default_generation_settings")
    assert told.pop("build_info").startswith(f"pyspec {pyspec.__version__}, llama.cpp b")
    assert told == {
        "total_slots": 2,
        "model_alias": "name",
        "model_path": "fake.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": CHATML,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "drafters": ["fake"],
        "auto": False,
    }
    assert defaults["n_ctx"] == 1000
    params = defaults["params"]
    assert (params["temperature"], params["mirostat_tau"], params["seed"]) == (0.5, 4.0, 7)
    assert (params["n_predict"], params["max_tokens"], params["top_k"]) == (9, 9, 40)
    assert params["logit_bias"] == [{"token": 5, "bias": None}, {"token": 6, "bias": 1.5}]
    assert params["samplers"][0] == "penalties"


def test_props_of_a_server_that_leaves_all_open(start: Start, engine: FakeEngine) -> None:
    told = start(chat_template="none").send("/props").json()
    assert told["chat_template"] == ""
    assert told["model_alias"] == engine.model.path.name
    params = told["default_generation_settings"]["params"]
    assert (params["n_predict"], params["seed"]) == (-1, -1)


def test_props_tell_who_chooses(start: Start, engine: FakeEngine) -> None:
    assert start().send("/props").json()["auto"] is False
    engine.speculation = Speculation()
    assert start().send("/props").json()["auto"] is True
    engine.drafters.clear()  # a memory that cannot drop tokens leaves it nothing to choose from
    assert start().send("/props").json()["auto"] is False


@pytest.mark.native
@pytest.mark.parametrize(
    ("types", "told"), [(None, True), ("suffix", False), ("auto,ngram-mod", True), ("none", False)]
)
def test_an_engine_says_whether_it_chooses(open_zoo: OpenZoo, types: str | None, told: bool) -> None:  # noqa: FBT001 - a case
    with pyspec.Engine(open_zoo("target-llama"), speculation=pyspec.Speculation(types)) as engine:
        client = client_of(engine)
        assert client.send("/props").json()["auto"] is told
        for wanted in ("auto,suffix", ["suffix", "auto"]):
            refused = client.send("/v1/completions", {"prompt": "Hi", "speculative": {"types": wanted}})
            assert (refused.status, refused.json()["error"]["param"]) == (400, "speculative.types")
            assert "auto stands alone" in refused.json()["error"]["message"]
        assert (
            client.send("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "speculative": {"types": "auto"}}).status
            == 200
        )


def test_a_template_is_applied_as_for_an_answer(client: Client, engine: FakeEngine) -> None:
    text = client.send("/apply-template", {"messages": HELLO}).json()["prompt"]
    assert text == "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    client.send("/v1/chat/completions", {"messages": HELLO})
    assert engine.requests[0].text == f"<s>{text}"
    tool = {"type": "function", "function": {"name": "weather"}}
    assert "weather" in client.send("/apply-template", {"messages": HELLO, "tools": [tool]}).json()["prompt"]
    assert client.send("/apply-template", {"messages": []}).status == 400


def test_without_a_template_nothing_is_applied(start: Start) -> None:
    assert start(chat_template="none").send("/apply-template", {"messages": HELLO}).status == 501
