from __future__ import annotations

import errno
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import pyspec
from pyspec.cli import app
from pyspec.cli.failing import one_line
from tests.cli.conftest import Run

COMMANDS = ("info", "probe", "generate", "models")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let the command ``models list`` fail."""

    def fail_with(error: BaseException) -> None:
        def fail(_model: object) -> None:
            raise error

        monkeypatch.setattr("pyspec.cli.models._describe", fail)

    return fail_with


def test_version(run: Run) -> None:
    assert run("--version").out == f"pyspec {pyspec.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_help_names_the_commands(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert all(command in ran.out + ran.err for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_no_native_library(command: str) -> None:
    code = "import sys; sys.argv = ['pyspec', *sys.argv[1:]]; from pyspec.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, command, "-h"],
        env={"PYSPEC_LIBRARY": "/nowhere"},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"pyspec {command}".encode() in ran.stdout


def test_importing_the_commands_loads_nothing_heavy() -> None:
    code = "import sys, pyspec; before = set(sys.modules); import pyspec.cli; print(*set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    loaded = set(ran.stdout.split())
    assert not loaded & {"rich.progress", "rich.table", "pyspec.trace", "pyspec.cli.probing", "huggingface_hub"}


def test_unknown_options_are_wrong_usage(run: Run) -> None:
    assert re.search("No such option.*--grammmar", run("generate", "-m", "x", "--grammmar", "g").usage_error)
    assert run("nonsense").code == 2
    assert run("--nonsense").code == 2


def test_an_expected_error_is_one_line(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(pyspec.errors.HubError("it is\nbroken"))
    ran = run("models", "list")
    assert (ran.code, ran.out, ran.err) == (1, "", "error: it is; broken\n")


@pytest.mark.parametrize("arguments", [("--debug", "models", "list"), ("models", "list", "--debug")])
def test_debug_shows_where(run: Run, failing: Callable[[BaseException], None], arguments: tuple[str, ...]) -> None:
    failing(pyspec.errors.HubError("broken"))
    ran = run(*arguments)
    assert ran.code == 1
    assert ran.err.startswith("Traceback")
    assert ran.err.endswith("error: broken\n")


def test_an_unexpected_error_points_to_debug(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError("by zero"))
    ran = run("models", "list")
    assert (ran.code, ran.err) == (1, "error: ZeroDivisionError: by zero (unexpected; --debug shows where)\n")


def test_output_that_cannot_be_written_is_no_fault_of_ours(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(OSError(errno.ENOSPC, "No space left on device"))
    ran = run("models", "list")
    assert (ran.code, ran.err) == (1, "error: The output cannot be written: No space left on device.\n")


def test_ctrl_c_is_quiet(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    ran = run("models", "list")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_ctrl_c_outside_of_a_command_is_quiet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.Typer, "__call__", interrupt)
    assert run("models", "list").code == 130


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        (("models", "list"), logging.WARNING),
        (("-v", "models", "list"), logging.INFO),
        (("models", "list", "-vv"), logging.DEBUG),
        (("models", "list", "--log-level", "error"), logging.ERROR),
        (("--log-level", "debug", "models", "list"), logging.DEBUG),
    ],
)
def test_log_level(run: Run, arguments: tuple[str, ...], level: int) -> None:
    assert run(*arguments).code == 0
    assert logging.getLogger("pyspec").level == level


def test_log_level_off(run: Run) -> None:
    assert run("models", "list", "--log-level", "off").code == 0
    assert not logging.getLogger("pyspec.llama_cpp").isEnabledFor(logging.CRITICAL)


@pytest.mark.native
def test_the_log_of_llama_cpp_goes_to_stderr(run: Run, target_path: Path) -> None:
    quiet, loud = run("info", target_path), run("info", target_path, "-v")
    assert quiet.err == ""
    assert "INFO pyspec.llama_cpp: " in loud.err
    assert "pyspec.llama_cpp" not in loud.out


@pytest.mark.native
def test_python_dash_m(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    out, err = start("info").communicate(timeout=120)
    assert out.startswith(b"pyspec")
    assert err == b""


def test_one_line() -> None:
    assert one_line(ValueError("Tried:\n  a\n  b\nInstall it.")) == "Tried: a; b; Install it."
    assert one_line(ValueError("")) == ""


def test_every_command_shows_messages_flags() -> None:
    import typer.main

    root = typer.main.get_command(app)
    leaves = [root.commands[name] for name in ("info", "probe", "generate")]  # type: ignore[attr-defined]
    leaves += root.commands["models"].commands.values()  # type: ignore[attr-defined]
    for leaf in leaves:
        flags = {flag for parameter in leaf.params for flag in parameter.opts}
        assert {"--debug", "--verbose", "--log-level"} <= flags
