"""``pyspec serve``: its flags, and what goes wrong before the first request."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspec.cli import serve as command
from pyspec.config import SamplingConfig
from pyspec.server import ServerSettings, running
from pyspec.server.service import Service
from tests.cli.conftest import Run
from tests.server.fakes import CHATML, FakeEngine


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the loggers as they were."""
    loggers = [logging.getLogger(name) for name in ("pyspec.server", "uvicorn.error")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


class Served:
    """What would have been served.

    Attributes:
        engine: What was asked of it.
    """

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.options: dict[str, Any] = {}
        self.settings = ServerSettings()
        self.port = 0
        self.stopped_by: int | None = None

    @contextlib.contextmanager
    def open(self, *_: object, **options: Any) -> Iterator[FakeEngine]:
        self.options = options
        yield self.engine

    def serve(self, service: Service, bound: socket.socket, on_start: Callable[[str], None]) -> int | None:
        self.settings = service.settings
        self.port = bound.getsockname()[1]
        on_start(running.address_of(bound))
        return self.stopped_by


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Replace the model and the loop of the server; what lies between is tested."""
    fake = Served()
    monkeypatch.setattr(command, "opened_engine", fake.open)
    monkeypatch.setattr(running, "serve", fake.serve)
    monkeypatch.delenv("PYSPEC_API_KEY", raising=False)
    return fake


def test_the_defaults_are_safe(run: Run, served: Served) -> None:
    ran = run("serve", "-m", "x", "--port", "0")
    assert ran.code == 0
    assert ran.out == f"http://127.0.0.1:{served.port}\n"
    settings = served.settings
    assert settings.allowed_hosts == ("localhost", "127.0.0.1", "::1", "127.0.0.1")
    assert settings == ServerSettings(allowed_hosts=settings.allowed_hosts)
    assert served.options == {"n_slots": 4, "n_queue": 64, "n_keep": None}


def test_every_flag_arrives(run: Run, served: Served, tmp_path: Path) -> None:
    keys, template = tmp_path / "keys", tmp_path / "template"
    keys.write_text("two\n\n three \n", encoding="utf-8")
    template.write_text(CHATML, encoding="utf-8")
    flags = "--host localhost --port 0 -a first,second --api-key one --allow-host me --cors-origin https://page.example"
    flags += " --no-slots --no-metrics -np 2 --queue 3 --cache-ram 5 -n 7 --max-prompt 8 --max-choices 9"
    flags += " --pooling last"
    flags += " --max-requests 10 --max-body 11 --timeout 12 --body-timeout 13 --shutdown-timeout 14 --temp 0.5"
    ran = run("serve", "-m", "x", *flags.split(), "--api-key-file", keys, "--chat-template-file", template)
    assert ran.code == 0, ran.err
    assert served.settings == ServerSettings(
        aliases=["first", "second"],
        api_keys=["one", "two", "three"],
        allowed_hosts=["me"],
        cors_origins=["https://page.example"],
        sampling=SamplingConfig(temperature=0.5),
        max_tokens=7,
        chat_template=CHATML,
        pooling="last",
        timeout=12,
        body_timeout=13,
        shutdown_timeout=14,
        max_body_bytes=11,
        max_prompt_tokens=8,
        max_requests=10,
        max_choices=9,
        slots=False,
        metrics=False,
    )
    assert served.options == {"n_slots": 2, "n_queue": 3, "n_keep": None, "cache_bytes": 5 << 20}


def test_a_key_may_come_from_the_environment(run: Run, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPEC_API_KEY", "key-1, key-2")
    assert run("serve", "-m", "x", "--port", "0").code == 0
    assert served.settings.api_keys == ("key-1", "key-2")
    assert "key-1" not in run("serve", "-h").out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--api-key", "a,,b"), "--api-key"),
        (("--timeout", "-1"), "--timeout"),
        (("--max-requests", "0"), "--max-requests"),
        (("--max-prompt", "-1"), "--max-prompt"),
        (("--temp", "-1"), "--temp"),
        (("--api-key-file", "/nowhere"), "--api-key-file"),
        (("--chat-template-file", "/nowhere"), "--chat-template-file"),
        (("--chat-template", "x", "--chat-template-file", "y"), "give one of --chat-template"),
        (("--port", "70000"), "--port"),
        (("--pooling", "rank"), "--pooling"),
    ],
)
def test_wrong_usage_names_the_flag(run: Run, served: Served, arguments: tuple[str, ...], named: str) -> None:
    ran = run("serve", "-m", "x", *arguments)
    assert named in ran.usage_error
    assert served.options == {}


@pytest.mark.skipif(sys.platform == "win32", reason="has no such device")
@pytest.mark.parametrize("flag", ["--api-key-file", "--chat-template-file"])
def test_a_device_is_no_file(run: Run, served: Served, flag: str) -> None:
    assert f"{flag}: /dev/null cannot be read: it is a device" in run("serve", "-m", "x", flag, "/dev/null").usage_error
    assert served.options == {}


def test_a_file_of_keys_without_keys_lets_nobody_in_by_mistake(run: Run, served: Served, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n \n", encoding="utf-8")
    assert "has no key" in run("serve", "-m", "x", "--api-key-file", tmp_path / "keys").usage_error
    assert served.options == {}


def test_a_port_that_is_taken_is_said_before_the_model_is_loaded(run: Run, served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run("serve", "-m", "x", "--port", taken.getsockname()[1])
    assert (ran.code, served.options) == (1, {})
    assert "cannot be used" in ran.err


def test_a_broken_template_is_said_at_the_start(run: Run, served: Served) -> None:
    served.engine = FakeEngine(template="{% for %}")
    ran = run("serve", "-m", "x", "--port", "0")
    assert ran.code == 1
    assert "error: The chat template is broken" in ran.err
    assert "--chat-template-file" in ran.err


def test_signals_have_their_exit_codes(run: Run, served: Served) -> None:
    served.stopped_by = signal.SIGTERM
    assert run("serve", "-m", "x", "--port", "0").code == 0
    served.stopped_by = signal.SIGINT
    assert run("serve", "-m", "x", "--port", "0").code == 130
    served.stopped_by = 1  # SIGHUP, which Windows has not
    assert run("serve", "-m", "x", "--port", "0").code == 129


@pytest.mark.parametrize(
    ("arguments", "level"),
    [((), logging.INFO), (("--log-level", "error"), logging.ERROR), (("-vv",), logging.DEBUG)],
)
def test_requests_are_logged_unless_only_errors_are_wanted(
    run: Run, served: Served, arguments: tuple[str, ...], level: int
) -> None:
    assert run("serve", "-m", "x", "--port", "0", *arguments).code == 0
    assert served.port
    assert logging.getLogger("pyspec.server").getEffectiveLevel() == level


def test_without_the_extra_it_says_what_to_install() -> None:
    code = """
import sys

for name in ("starlette", "uvicorn", "jinja2", "prometheus_client"):  # not pydantic, which typer may need
    sys.modules[name] = None
import pyspec.server  # which says how a server behaves, and needs none of them
from pyspec.cli import main

sys.argv = ["pyspec", *sys.argv[1:]]
main()
"""
    arguments = [sys.executable, "-c", code, "serve", "-m", "x"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install 'pyspec-llama[server]'" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert subprocess.run([*arguments[:4], "-h"], capture_output=True, check=False).returncode == 0
