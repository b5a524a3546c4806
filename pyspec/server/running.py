"""A server on a socket, from its start to its orderly end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType

import uvicorn

from pyspec.errors import ConfigError
from pyspec.server.about import drafters, is_auto
from pyspec.server.app import create_app
from pyspec.server.connections import LONGEST_HEAD, impatient
from pyspec.server.security import is_loopback
from pyspec.server.service import Service

_logger = logging.getLogger("pyspec.server")


class Server(uvicorn.Server):
    """uvicorn's server, which tells the service when it is asked to stop, and leaves the process alive.

    Args:
        service: What to serve.
        on_start: Called when it can be reached.

    Attributes:
        stopped_by: The signal that ended it, or None.
    """

    def __init__(self, service: Service, on_start: Callable[[], None]) -> None:
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http=impatient(service.settings.body_timeout),
            h11_max_incomplete_event_size=LONGEST_HEAD,
            timeout_graceful_shutdown=max(1, round(service.settings.shutdown_timeout)),
        )
        super().__init__(config)
        self.stopped_by: int | None = None
        self._service = service
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started:
            self._on_start()

    def stop(self) -> None:
        """Take no more requests, and end when those under way have. Any thread may call it."""
        self._service.stopping = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal; a second one does not wait."""
        del frame
        if self.stopped_by is not None:
            self.force_exit = True
        self.stopped_by = sig
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Listen to signals; uvicorn's own would raise them again at the end, which kills the process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _signals() -> list[int]:
    """Return the signals that end a server; a terminal that closes does, unless that is ignored, as by nohup."""
    hang_up = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # Windows has none
    return [signal.SIGINT, signal.SIGTERM, *(n for n in hang_up if signal.getsignal(n) is not signal.SIG_IGN)]


def bind(host: str, port: int) -> socket.socket:
    """Return a socket with an address, on which nobody listens yet; port 0 takes a free one.

    Raises:
        ConfigError: The address cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise _cannot_bind(host, port, error) from None
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that was just ended is no obstacle
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_bind(host, port, error) from None
    return bound


def _cannot_bind(host: str, port: int, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"host {host!r} and port {port} cannot be used: {reason}.")


def address_of(bound: socket.socket) -> str:
    """Return a socket's address as a URL."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(service: Service, bound: socket.socket, on_start: Callable[[str], None] | None = None) -> int | None:
    """Serve until a signal, and return it.

    Args:
        service: What to serve.
        bound: Where; closed at the end.
        on_start: Told the address when it can be reached.
    """
    address = address_of(bound)
    if not service.settings.api_keys and not is_loopback(bound.getsockname()[0]):
        _logger.warning("anybody who reaches this address may use the server; --api-key asks for a key")

    def announce() -> None:
        names = ",".join(drafters(service)) or "none"
        fields = {"address": address, "model": service.model, "drafters": names, "auto": is_auto(service)}
        _logger.info("listening", extra={"fields": fields})
        if on_start is not None:
            on_start(address)

    server = Server(service, announce)
    with bound:
        server.run([bound])
    _logger.info("stopped")
    return server.stopped_by
