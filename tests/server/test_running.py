"""A server on a real socket, from its start to its orderly end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from pyspec.errors import ConfigError
from pyspec.server.app import make_service
from pyspec.server.logs import TextFormatter
from pyspec.server.running import Server, address_of, bind, serve
from pyspec.speculation.config import Speculation
from tests.server.fakes import FakeEngine, Script, as_served
from tests.server.in_thread import Running

PATH = "/v1/completions"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(address: str, body: object, *, stream: bool = False) -> Any:
    request = urllib.request.Request(  # noqa: S310 - the test's own address
        address + PATH, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer = OPENER.open(request, timeout=60)
    if stream:
        return answer
    with answer:
        return json.load(answer)


def wait_for(condition: Callable[[], object]) -> None:
    tick = threading.Event()
    while not condition():
        tick.wait(0.002)


class ThreadGate:
    """What the rounds wait for; a test opens it from its own thread."""

    def __init__(self) -> None:
        self.opened = False

    async def wait(self) -> None:
        import asyncio

        while not self.opened:  # noqa: ASYNC110 - an event of asyncio belongs to one loop
            await asyncio.sleep(0.002)


def test_a_request_over_a_socket(engine: FakeEngine) -> None:
    with Running(engine) as running:
        assert post(running.address, {"prompt": "Hi"})["choices"][0]["text"] == "Hello, world!"
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(running.address, {"prompt": 5})
        with caught.value as answer:
            assert (answer.code, json.load(answer)["error"]["param"]) == (400, "prompt")
            assert "server" not in answer.headers


def test_a_client_that_hangs_up_frees_its_slot(engine: FakeEngine) -> None:
    engine.script = Script(gate=ThreadGate())
    with Running(engine) as running:
        answer = post(running.address, {"prompt": "Hi", "stream": True}, stream=True)
        assert answer.readline().startswith(b"data: ")
        assert len(engine.running) == 1
        answer.close()
        wait_for(lambda: not engine.running)
        assert engine.n_closed == 1


def test_what_runs_is_finished_at_the_end(engine: FakeEngine) -> None:
    gate = ThreadGate()
    engine.script = Script(gate=gate)
    with Running(engine) as running:
        with post(running.address, {"prompt": "Hi", "stream": True}, stream=True) as answer:
            running.server.stop()
            assert running.service.stopping
            gate.opened = True
            assert b"[DONE]" in answer.read()
        running.thread.join()
        with pytest.raises(urllib.error.URLError):
            post(running.address, {"prompt": "Hi"})


def test_what_takes_too_long_at_the_end_is_broken_off(engine: FakeEngine) -> None:
    engine.script = Script(gate=ThreadGate())
    with Running(engine, shutdown_timeout=0.1) as running:
        with post(running.address, {"prompt": "Hi", "stream": True}, stream=True) as answer:
            answer.readline()
            running.server.stop()
            running.thread.join()
        assert engine.running == set()


@pytest.mark.parametrize("part", [b"", b"POST /v1/completions HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-"])
def test_who_sends_half_a_head_is_not_waited_for(engine: FakeEngine, part: bytes) -> None:
    with Running(engine, body_timeout=0.05) as running, socket.create_connection(running.bound.getsockname()) as client:
        client.settimeout(60)
        client.sendall(part)
        assert client.recv(1) == b""


def test_nor_who_sends_it_after_an_answer(engine: FakeEngine) -> None:
    with Running(engine, body_timeout=0.3) as running, socket.create_connection(running.bound.getsockname()) as client:
        client.settimeout(60)
        asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.sendall(asked + asked + b"GET /he")  # two whole ones
        heard = b""
        while part := client.recv(1000):
            heard += part
        assert heard.count(b"HTTP/1.1 200") == 2


def test_an_answer_may_take_longer_than_a_head(engine: FakeEngine) -> None:
    engine.script = Script(delay=0.1)  # before each of its six rounds
    with Running(engine, body_timeout=0.05) as running:
        for _ in range(2):
            assert post(running.address, {"prompt": "Hi"})["choices"][0]["text"] == "Hello, world!"


@pytest.mark.parametrize("auto", [False, True])
def test_it_says_which_drafters_there_are(
    engine: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    auto: bool,  # noqa: FBT001 - a case
) -> None:
    engine.speculation = Speculation("auto" if auto else "fake")
    monkeypatch.setattr(Server, "run", lambda self, _sockets: self._on_start())
    with caplog.at_level("INFO", "pyspec.server"), bind("127.0.0.1", 0) as bound:
        serve(make_service(as_served(engine)), bound)
    (line,) = [record for record in caplog.records if record.message == "listening"]
    fields = line.fields  # type: ignore[attr-defined]
    assert (fields["drafters"], fields["auto"]) == ("fake", auto)
    assert TextFormatter().format(line).endswith(f" drafters=fake auto={'true' if auto else 'false'}")


SERVE = """
import signal

for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # who starts this may ignore them
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_DFL)

from pyspec.server.app import make_service
from pyspec.server.logs import TextFormatter
from pyspec.server.running import bind, serve
from tests.server.fakes import FakeEngine, as_served

print(serve(make_service(as_served(FakeEngine())), bind("127.0.0.1", 0), lambda address: print(address, flush=True)))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_it_in_order(name: str) -> None:
    number = signal.Signals[name]
    with subprocess.Popen([sys.executable, "-W", "error", "-c", SERVE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert post(address, {"prompt": "Hi"})["choices"][0]["text"] == "Hello, world!"
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stdout.read() == f"{int(number)}\n"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("ignored", [False, True])
def test_nohup_is_respected(engine: FakeEngine, ignored: bool) -> None:  # noqa: FBT001 - a case
    server = Server(make_service(as_served(engine)), lambda: None)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with server.capture_signals():
            assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) is ignored
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_address_that_is_taken_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"host '127.0.0.1' and port {port} cannot be used"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["not a host", "x" * 300, "256.0.0.1", "a\0b"])
def test_an_address_that_is_none_is_an_error(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        bind(host, 0)


def test_nobody_can_connect_before_the_model_is_there() -> None:
    with bind("127.0.0.1", 0) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=10).close()


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_the_address_is_a_url(host: str, shown: str) -> None:
    with bind(host, 0) as bound:
        assert address_of(bound) == f"{shown}{bound.getsockname()[1]}"
