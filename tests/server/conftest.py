"""Servers of a fake engine, called inside the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspec.server import ServerSettings
from pyspec.server.app import create_app, make_service
from tests.server.asgi import Client
from tests.server.fakes import FakeEngine, as_served

Start = Callable[..., Client]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def start(engine: FakeEngine) -> Start:
    """Return a client of a server with these settings."""

    def started(**settings: Any) -> Client:
        return Client(create_app(make_service(as_served(engine), ServerSettings(**settings))))

    return started


@pytest.fixture
def client(start: Start) -> Client:
    return start()
