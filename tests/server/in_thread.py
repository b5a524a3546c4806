"""A server on a real socket, in a thread of the test."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from pyspec.server import ServerSettings
from pyspec.server.app import make_service
from pyspec.server.running import Server, address_of, bind
from pyspec.server.service import ServedEngine


class Running:
    """A server that runs from here to the end of the ``with`` block.

    Args:
        engine: What it serves.
        settings: Those of ``ServerSettings``.

    Attributes:
        address: Its URL.
    """

    def __init__(self, engine: ServedEngine, **settings: Any) -> None:
        self.service = make_service(engine, ServerSettings(**settings))
        self.bound = bind("127.0.0.1", 0)
        self.address = address_of(self.bound)
        started = threading.Event()
        self.server = Server(self.service, started.set)
        self.thread = threading.Thread(target=self.server.run, args=([self.bound],))
        self.thread.start()
        assert started.wait(60)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()
        self.thread.join()
        self.bound.close()
