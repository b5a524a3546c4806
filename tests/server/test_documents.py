"""docs/reference/server.md has every endpoint, field, metric and error code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspec.server import errors, openapi
from pyspec.server.bodies.chat import ChatBody
from pyspec.server.bodies.sampling import SamplingFields
from pyspec.server.bodies.text import CompletionBody, LlamaCompletionBody
from tests.server.asgi import Client

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "server.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`]+)`", PAGE))
NAMED = {word for part in CODE for word in re.findall(r"[\w.:]+", part)}
NEED_NO_WORD = {"prompt", "seed", "stream", "return_tokens", "ignore_eos"}


def test_every_endpoint_is_there() -> None:
    found = {f"{method.upper()} {path}" for path, entry in openapi.document()["paths"].items() for method in entry}
    assert {part for part in CODE if part.startswith(("GET ", "POST "))} - {"GET /openapi.json"} == found


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, LlamaCompletionBody])
def test_every_field_is_there(body: type[SamplingFields]) -> None:
    fields = {field.alias or name for name, field in body.model_fields.items()}
    fields -= {name for name in fields if name.startswith("speculative.")}
    assert fields - SamplingFields.model_fields.keys() - NEED_NO_WORD <= NAMED | {"stream_options"}


def test_every_metric_is_there(client: Client) -> None:
    client.send("/v1/completions", {"prompt": "Hi"})
    text = client.send("/metrics").body.decode()
    found = set(re.findall(r"^# TYPE (\S+) (?:counter|histogram|gauge)$", text, re.MULTILINE))
    found = {name for name in found if not name.endswith("_created")}
    assert {name for name in NAMED if name.startswith("pyspec:") and name != "pyspec:"} == found


def test_every_code_is_there() -> None:
    package = Path(errors.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', sources)) | {code for _, code in errors._ASKED_WRONGLY if code}
    assert codes <= NAMED
    assert {"busy", "unknown_parameter"} <= codes
