"""A line for each request, for people or for programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from pyspec.server import logs
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import FakeEngine, Script

PATH = "/v1/completions"
HI = {"prompt": "My secret prompt"}


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What a server writes; the logging of other tests is left as it was."""
    package = logging.getLogger("pyspec")
    server, uvicorn = logging.getLogger(logs.LOGGER), logging.getLogger("uvicorn.error")
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in (package, server, uvicorn)]
    handler = Lines()
    package.handlers = [handler]
    yield handler
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_json_lines_can_be_read(client: Client, lines: Lines) -> None:
    logs.set_up(as_json=True, level=logging.INFO)
    client.send(PATH, {**HI, "max_tokens": 4}, headers={"x-request-id": "abc-1"})
    (line,) = map(json.loads, lines.lines)
    assert line.pop("ms") >= 0
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "pyspec.server",
        "message": "request",
        "method": "POST",
        "endpoint": PATH,
        "status": 200,
        "id": "abc-1",
        "prompt_tokens": 17,
        "tokens": 4,
        "accepted": 2,
        "finish": "length",
    }


def test_text_lines_are_one_line_each(client: Client, lines: Lines) -> None:
    logs.set_up(as_json=False, level=logging.INFO)
    client.send(PATH, HI)
    client.send("/x\nINFO forged: line=1")
    first, second = lines.lines
    assert first.startswith(f"INFO pyspec.server: request method=POST endpoint={PATH} status=200 ms=")
    assert "endpoint=unknown status=404" in second
    assert "forged" not in second
    assert "\n" not in first + second


def test_values_cannot_pass_for_other_fields(lines: Lines) -> None:
    logs.set_up(as_json=False, level=logging.INFO)
    fields = {"a": 'x" b=1', "c": "two words", "d": "line\nbreak", "e": "", "f": "plain"}
    logging.getLogger(logs.LOGGER).info("said", extra={"fields": fields})
    assert lines.lines == [
        r'INFO pyspec.server: said a="x\" b=1" c="two words" d="line\nbreak" e="" f=plain',
    ]


def test_prompts_and_keys_are_not_logged(start: Start, lines: Lines) -> None:
    logs.set_up(as_json=True, level=logging.DEBUG)
    client = start(api_keys=["hidden"])
    client.send(PATH, HI, headers={"x-api-key": "hidden"})
    client.send(PATH, HI, headers={"x-api-key": "hidden2"})
    client.send(PATH, {"prompt": ["secret", 5]}, headers={"x-api-key": "hidden"})
    assert [json.loads(line)["status"] for line in lines.lines] == [200, 401, 400]
    assert not any(word in line for line in lines.lines for word in ("secret", "hidden"))


def test_a_failure_is_logged_with_its_cause(client: Client, engine: FakeEngine, lines: Lines) -> None:
    logs.set_up(as_json=True, level=logging.INFO)
    engine.script = Script(error=RuntimeError("the inside"))
    answer = client.send(PATH, HI)
    failed, request = map(json.loads, lines.lines)
    assert "RuntimeError: the inside" in failed["traceback"]
    assert failed["id"] == request["id"] == answer.headers["x-request-id"]
    assert (request["status"], request["error"], request["finish"]) == (500, "internal_error", "error")


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", "a\tb", "<script>"])
def test_ids_that_are_not_sane_are_replaced(client: Client, given: str) -> None:
    answer = client.send("/health", headers={"x-request-id": given})
    assert answer.headers["x-request-id"] != given
    assert len(answer.headers["x-request-id"]) == 16


def test_every_answer_has_an_id(start: Start) -> None:
    client = start(api_keys=["one"])
    answers = [client.send("/health"), client.send("/nothing"), client.send(PATH, HI), client.send("/v1/models")]
    assert [answer.status for answer in answers] == [200, 401, 401, 401]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4


def test_uvicorns_complaints_go_the_same_way(lines: Lines) -> None:
    logs.set_up(as_json=True)
    logging.getLogger("uvicorn.error").info("unimportant")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert [json.loads(line)["message"] for line in lines.lines] == ["Invalid HTTP request received."]
