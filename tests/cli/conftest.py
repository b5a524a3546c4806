"""Running the command line, in this process and in one of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyspec.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def usage_error(self) -> str:
        """The message of wrong usage without its frame."""
        assert self.code == 2, self.err
        return " ".join(self.err.replace("│", " ").split())


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run the command line in this process, as its entry point does."""
    monkeypatch.setenv("COLUMNS", "500")
    for variable in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)

    def run_main(*arguments: object) -> Ran:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["pyspec", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Ran(code, captured.out, captured.err)

    handled = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield run_main
    for number, before in handled.items():
        if signal.getsignal(number) is not before:  # its process would end now
            signal.signal(number, before)
    logger = logging.getLogger("pyspec")
    logger.setLevel(logging.NOTSET)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)


# A test run that was started in the background or by nohup ignores signals, and its children inherit that.
RUN_WITH_SIGNALS = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.argv[0] = "pyspec"
runpy.run_module("pyspec", run_name="__main__")
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command line in a process of its own; it is ended with the test."""
    with contextlib.ExitStack() as stack:

        def popen(*arguments: object, **environment: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-c", RUN_WITH_SIGNALS, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield popen


@pytest.fixture
def generate(run: Run, target_path: Path) -> Run:
    """Run ``pyspec generate`` with the zoo's target; one thread, because the model is tiny."""
    return lambda *arguments: run("generate", "-m", target_path, "-t", "1", *arguments)


@pytest.fixture
def draft(zoo: Path) -> tuple[object, ...]:
    return ("-md", zoo / "draft-llama.gguf", "-td", "1")
