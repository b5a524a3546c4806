"""No request that the server's own description allows, or just does not allow, makes it fail.

Requests are made by schemathesis from ``/openapi.json`` and sent over a socket; they are the same in each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pyspec.server import openapi
from pyspec.server.endpoints import ENDPOINTS
from tests.pairs import OpenZoo, Pair
from tests.server.fakes import CHATML, FakeEngine
from tests.server.in_thread import Running
from tests.server.real import real_engine

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_dict(openapi.document())
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (found.ok() for found in SCHEMA.get_all_operations())  # type: ignore[union-attr]
}
N_EXAMPLES = 25


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Running(FakeEngine(), max_tokens=20, timeout=30, pooling="mean") as running:
        yield running.address


def test_the_description_is_read() -> None:
    assert len(OPERATIONS) == 19


KINDS = [
    (name, mode)
    for name, operation in OPERATIONS.items()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or operation.body  # nothing can be wrong about a request that says nothing
]


PATHS_TO_THE_ENGINE = {endpoint.path for endpoint in ENDPOINTS} - {"/apply-template"}  # and no aliases
KINDS_FOR_REAL = [(name, mode) for name, mode in KINDS if name.split(" ")[1].partition("{")[0] in PATHS_TO_THE_ENGINE]


@pytest.fixture(scope="module")
def real_address(open_zoo: OpenZoo, zoo: object) -> Iterator[str]:
    del zoo
    pair = Pair("target-llama", "ngram-simple,draft-simple", "draft-llama")
    settings = {"max_tokens": 20, "timeout": 30, "chat_template": CHATML, "pooling": "mean"}
    with real_engine(open_zoo, pair, n_slots=2) as engine, Running(engine, **settings) as running:
        yield running.address


@pytest.mark.parametrize(("name", "mode"), KINDS, ids=str)
def test_nothing_fails(address: str, name: str, mode: GenerationMode) -> None:
    send_examples(address, name, mode)


@pytest.mark.parametrize(("name", "mode"), KINDS_FOR_REAL, ids=str)
def test_nothing_fails_with_a_real_engine(real_address: str, name: str, mode: GenerationMode) -> None:
    send_examples(real_address, name, mode)


def send_examples(address: str, name: str, mode: GenerationMode) -> None:
    """Send what the description allows, or just does not allow; the answers must be as described."""

    @given(case=OPERATIONS[name].as_strategy(generation_mode=mode))
    @settings(
        max_examples=N_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        answer = case.call(base_url=address)
        assert answer.status_code != 500, (case.body, answer.text)
        case.validate_response(answer, checks=CHECKS)

    send()
