"""Whatever ends a command: what there is is printed and saved, the exit code says why, and nothing else is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspec.cli.signals import exit_code, like_ctrl_c
from pyspec.drafters import suffix_file
from pyspec.trace import read_trace
from tests.cli.conftest import Run

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
OTHERS = SIGNALS[1:]
Start = Callable[..., "subprocess.Popen[bytes]"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
each_signal = pytest.mark.parametrize("number", SIGNALS)


@pytest.fixture
def handlers() -> Iterator[None]:
    """What signals do here is as before, and as in a process of its own meanwhile."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in OTHERS}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def rounds_are_written(trace: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a generation is under way."""
    while process.poll() is None and not (trace.exists() and trace.read_bytes().count(b"\n") > 3):
        pass


@pytest.mark.native
@each_signal
@pytest.mark.parametrize("n_times", [1, 3])
def test_what_there_is_stays(start: Start, target_path: Path, tmp_path: Path, number: int, n_times: int) -> None:
    trace, requests = tmp_path / "run.jsonl", tmp_path / "requests.bin"
    flags = ("-t", "1", "-p", "the", "-c", "100000", "--json", "--trace", trace, "--log-level", "error")
    shared = ("--spec-suffix-share", "on", "--spec-suffix-file", requests)
    process = start("generate", "-m", target_path, *flags, *shared)
    rounds_are_written(trace, process)
    for _ in range(n_times):
        process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, err) == (128 + number, b"")
    result = json.loads(out)
    assert result["finish"] == "cancelled"
    assert result["tokens"]
    assert suffix_file.read(requests)
    assert read_trace(trace).end is not None


WITH_A_SIGNAL_AT_EXIT = """
import atexit, os, runpy, signal, sys
number = int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)
for other in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(other, signal.SIG_DFL)
atexit.register(lambda: os.kill(os.getpid(), number))
sys.argv[0] = "pyspec"
runpy.run_module("pyspec", run_name="__main__")
"""


@each_signal
@pytest.mark.parametrize(("arguments", "code"), [(("models", "list"), 0), (("models", "nonsense"), 2)])
def test_a_command_that_has_ended_is_left_alone(number: int, arguments: tuple[str, ...], code: int) -> None:
    command = [sys.executable, "-c", WITH_A_SIGNAL_AT_EXIT, str(int(number)), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr
    assert "KeyboardInterrupt" not in ran.stderr


@pytest.mark.usefixtures("handlers")
@each_signal
@pytest.mark.parametrize("command", ["generate -p x -m", "serve --port 0 -m", "bench -m", "probe", "info"])
def test_every_command_ends_quietly(run: Run, monkeypatch: pytest.MonkeyPatch, number: int, command: str) -> None:
    def end(*_arguments: object, **_options: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("pyspec.hub.resolve", end)
    ran = run(*command.split(), "model.gguf")
    assert (ran.code, ran.out, ran.err) == (128 + number, "", "")


@pytest.mark.native
@pytest.mark.usefixtures("handlers")
@each_signal
def test_what_was_measured_is_reported(
    run: Run, monkeypatch: pytest.MonkeyPatch, target_path: Path, number: int
) -> None:
    from pyspec.bench.engines import EngineRunner

    measure, n_runs = EngineRunner.run, 0

    def measure_twice(self: EngineRunner, *arguments: Any, **options: Any) -> Any:
        nonlocal n_runs
        n_runs += 1
        if n_runs > 2:
            os.kill(os.getpid(), number)
        return measure(self, *arguments, **options)

    monkeypatch.setattr(EngineRunner, "run", measure_twice)
    flags = ("-t", "1", "-n", "4", "--no-timing", "--spec-type", "suffix", "--workload", "json", "--json", "-")
    ran = run("bench", "-m", target_path, *flags)
    assert ran.code == 128 + number
    assert json.loads(ran.out)["interrupted"]


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", OTHERS)
def test_a_signal_that_is_ignored_or_handled_stays_so(number: int) -> None:
    for handler in (signal.SIG_IGN, lambda *_: None):
        signal.signal(number, handler)
        with like_ctrl_c():
            assert signal.getsignal(number) is handler


@pytest.mark.usefixtures("handlers")
def test_the_first_signal_says_how_it_ended() -> None:
    assert exit_code() == 128 + signal.SIGINT
    with like_ctrl_c():
        assert is_raised(signal.SIGTERM)
        assert exit_code() == 128 + signal.SIGTERM
    with like_ctrl_c():
        assert exit_code() == 128 + signal.SIGINT  # what ended another command is forgotten


def is_raised(number: int) -> bool:
    """Send a signal, and return whether an exception comes of it."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        return True
    return False


class Finalised:
    """Says so by a signal, whose exception Python drops."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.usefixtures("handlers")
@each_signal
def test_a_signal_that_is_lost_does_not_count(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    with like_ctrl_c():
        Finalised(number)
        assert is_raised(number)
        assert exit_code() == 128 + number
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("handlers")
@each_signal
@pytest.mark.parametrize("again", SIGNALS)
def test_only_ctrl_c_after_a_while_ends_it_again(number: int, again: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with like_ctrl_c():
        assert is_raised(number)
        assert not is_raised(again)
        monkeypatch.setattr("pyspec.cli.signals._AT_ONCE", -1.0)
        assert is_raised(again) is (again == signal.SIGINT)
        Finalised(again)
        assert exit_code() == 128 + number


@pytest.mark.usefixtures("handlers")
def test_other_lost_exceptions_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(lost.exc_type))

    class Failing:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with like_ctrl_c():
        Failing()
    assert reported == [ZeroDivisionError]


@pytest.mark.usefixtures("handlers")
def test_another_thread_leaves_the_signals_alone() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    found: list[object] = []

    def command() -> None:
        with like_ctrl_c():
            found.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert found == before == [signal.getsignal(number) for number in SIGNALS]


SCRIPT = "import sys; from pyspec.__main__ import main; sys.exit(main())"  # what installers make of the entry point


@pytest.mark.parametrize("module", ["typer", "pyspec.cli.bench", "pyspec.cli.logs"])
@pytest.mark.parametrize("way", ["script", "module"])
def test_ctrl_c_during_the_imports_of_the_command_line_is_quiet(module: str, way: str, tmp_path: Path) -> None:
    ran = interrupted_at(module, tmp_path, ["-m", "pyspec"] if way == "module" else [str(script(tmp_path))])
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def script(folder: Path) -> Path:
    path = folder / "pyspec"
    path.write_text(SCRIPT)
    return path


def interrupted_at(module: str, folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program in which Ctrl-C arrives when it begins to import a module."""
    (folder / "sitecustomize.py").write_text(f"""
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
""")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()])}  # noqa: PTH109
    command = [sys.executable, *arguments, "models", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
