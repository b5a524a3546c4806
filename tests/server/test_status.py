"""Models, health, slots, metrics, and the server's own description."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyspec.engine import Result
from pyspec.server.metrics import Metrics
from pyspec.speculation import Finish, GenerationStats
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import FakeEngine, Script

COMPLETIONS = "/v1/completions"


def samples(client: Client) -> dict[str, float]:
    """Every metric as ``name{labels}``."""
    answer = client.send("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def test_the_model_is_listed_under_all_its_names(start: Start) -> None:
    client = start(aliases=["first", "team/second"])
    told = client.send("/v1/models").json()
    assert told["object"] == "list"
    assert [entry["id"] for entry in told["data"]] == ["first", "team/second"]
    assert told["data"][0]["meta"] == {"n_vocab": 260, "n_ctx_train": 1000, "n_embd": 8, "n_params": 123, "size": 456}
    assert client.send("/v1/models/first").json() == told["data"][0]
    assert client.send("/v1/models/team/second").json() == told["data"][1]
    assert client.send(COMPLETIONS, {"prompt": "Hi"}).json()["model"] == "first"


def test_without_a_name_it_is_the_files(client: Client) -> None:
    assert client.send("/v1/models").json()["data"][0]["id"] == "fake.gguf"  # and not its folder
    answer = client.send("/v1/models/other")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


def test_health(client: Client) -> None:
    assert client.send("/health").json() == {"status": "ok"}
    client.app.state.service.stopping = True  # type: ignore[attr-defined]
    assert client.send("/health").status == 503


def test_slots_tell_what_they_do_and_not_what_is_said(start: Start, engine: FakeEngine) -> None:
    async def play() -> None:
        gate = asyncio.Event()
        engine.script = Script(gate=gate)
        client = start()
        exchange = client.begin(COMPLETIONS, {"prompt": "Secret"})
        await exchange.until(lambda: engine.running)
        answer = await client.asend("/slots")
        assert [(slot["state"], slot["is_processing"]) for slot in answer.json()] == [
            ("generating", True),
            ("idle", False),
        ]
        assert b"Secret" not in answer.body
        gate.set()
        await exchange.task

    asyncio.run(play())


@pytest.mark.parametrize("path", ["/slots", "/metrics"])
def test_what_is_switched_off_says_so(start: Start, path: str) -> None:
    answer = start(**{path[1:]: False}).send(path)
    assert (answer.status, answer.error["code"]) == (501, "not_supported")


def test_metrics_add_up(client: Client, engine: FakeEngine) -> None:
    answers = [client.send(COMPLETIONS, {"prompt": "Hi", "max_tokens": limit}).json() for limit in (4, 5, 100)]
    engine.script = Script(error=RuntimeError("broken"))
    assert client.send(COMPLETIONS, {"prompt": "Hi"}).status == 500
    assert client.send(COMPLETIONS, {"prompt": 5}).status == 400
    found = samples(client)
    n_emitted = sum(answer["usage"]["completion_tokens"] for answer in answers) + 13
    assert found["pyspec:generation_tokens_total"] == n_emitted
    assert found["pyspec:prompt_tokens_total"] == 12
    assert found["pyspec:engine_requests_total"] == 4
    assert found[f"pyspec:http_requests_total[{COMPLETIONS}][200]"] == 3
    assert found[f"pyspec:http_requests_total[{COMPLETIONS}][400]"] == 1
    assert found[f"pyspec:http_requests_total[{COMPLETIONS}][500]"] == 1
    assert found["pyspec:request_success_total[length]"] == 2
    assert found["pyspec:request_success_total[stop]"] == 1
    assert found["pyspec:request_success_total[error]"] == 1
    n_drafts = found["pyspec:spec_decode_num_drafts_total[fake]"]
    assert n_drafts == found["pyspec:spec_decode_num_draft_tokens_per_pos_total[fake][0]"]
    for kind in ("draft", "accepted"):
        per_position = [value for name, value in found.items() if f"num_{kind}_tokens_per_pos_total[fake]" in name]
        assert found[f"pyspec:spec_decode_num_{kind}_tokens_total[fake]"] == sum(per_position) > 0
    n_accepted = found["pyspec:spec_decode_num_accepted_tokens_total[fake]"]
    assert found["pyspec:rounds_total"] + n_accepted == n_emitted
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert found[f"pyspec:{name}_seconds_count"] == 4
    assert found["pyspec:num_requests_running"] == found["pyspec:num_requests_waiting"] == 0
    assert found["pyspec:num_slots"] == 2


def test_who_left_the_queue_waited_for_no_slot(engine: FakeEngine) -> None:
    metrics = Metrics(engine)
    for result in (
        Result(finish=Finish.CANCELLED),
        Result(finish=Finish.CANCELLED, stats=GenerationStats(queue_seconds=3.0)),
        Result(finish=Finish.EOG, tokens=[1]),
    ):
        metrics.meter().end(result)
    text = metrics.render().decode()
    assert "pyspec:request_queue_time_seconds_count 2.0" in text
    assert "pyspec:request_queue_time_seconds_sum 3.0" in text
    assert "pyspec:e2e_request_latency_seconds_count 3.0" in text


def test_latencies_between_tokens_are_counted_per_token(client: Client) -> None:
    client.send(COMPLETIONS, {"prompt": "Hi"})
    assert samples(client)["pyspec:inter_token_latency_seconds_count"] == 13  # of 14 tokens


def test_each_server_counts_for_itself(start: Start, engine: FakeEngine) -> None:
    first, second = start(), start()
    first.send(COMPLETIONS, {"prompt": "Hi"})
    assert samples(first)["pyspec:e2e_request_latency_seconds_count"] == 1
    assert samples(second)["pyspec:e2e_request_latency_seconds_count"] == 0
    assert len(engine.requests) == 1


def test_unknown_paths_do_not_become_labels(client: Client) -> None:
    client.send("/nothing/here")
    found = samples(client)
    assert not any("nothing" in name for name in found)
    assert found["pyspec:http_requests_total[unknown][404]"] == 1


# The description


def test_the_description_has_every_path(client: Client) -> None:
    told = client.send("/openapi.json").json()
    assert told["openapi"].startswith("3.1")
    assert set(told["paths"]) == {
        "/apply-template",
        "/chat/completions",
        "/completion",
        "/completions",
        "/embeddings",
        "/models",
        "/props",
        "/v1/health",
        "/version",
        "/detokenize",
        "/health",
        "/metrics",
        "/slots",
        "/tokenize",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{model}",
    }
    public = {path for path, entry in told["paths"].items() for each in entry.values() if "security" not in each}
    assert public == {"/health", "/v1/health"}


def test_every_reference_of_the_description_leads_somewhere(client: Client) -> None:
    answer = client.send("/openapi.json")
    told = answer.json()
    references = set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', answer.body.decode()))
    assert "ChatBody" in references
    assert references <= set(told["components"]["schemas"])
