"""What is written never takes a model's place, and what has no end is not read."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec.drafters.suffix import Suffix
from pyspec.engine.saving import read as read_slot
from pyspec.errors import PyspecError, StateError
from pyspec.files import read_whole, refuse_device, replace_file
from pyspec.trace import TraceWriter
from tests.helpers import PROMPT


@pytest.fixture
def model_file(target_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(target_path, tmp_path / "model.gguf"))


def save_slot(path: Path) -> None:
    with pyspec.Model(path) as model, pyspec.Engine(model, context=pyspec.ContextConfig(n_ctx=64)) as engine:
        engine.generate(PROMPT, max_tokens=2)
        engine.save_slot(0, path)


def trace(path: Path) -> None:
    with pyspec.Model(path) as model, pyspec.Engine(model, context=pyspec.ContextConfig(n_ctx=64)) as engine:
        engine.generate(PROMPT, max_tokens=2, observer=TraceWriter(path))


def remember(path: Path) -> None:
    Suffix(share=True, file=path).close()


@pytest.mark.parametrize("write", [save_slot, trace, remember])
def test_nothing_is_written_over_a_model(write: Callable[[Path], None], model_file: Path) -> None:
    before = model_file.read_bytes()
    with pytest.raises(PyspecError):
        write(model_file)
    assert model_file.read_bytes() == before


@pytest.mark.parametrize("linked", [False, True])
def test_replacing_a_model_is_an_error(linked: bool, model_file: Path, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    path = model_file
    if linked:
        path = tmp_path / "link"
        path.symlink_to(model_file)
    before = model_file.read_bytes()
    with pytest.raises(OSError, match="GGUF model") as caught:
        replace_file(path, [b"x"])
    assert caught.value.errno == errno.EEXIST
    assert model_file.read_bytes() == before


def test_other_files_are_replaced(tmp_path: Path) -> None:
    for before in (None, b"", b"GGU", b"whatever"):
        path = tmp_path / "file"
        if before is not None:
            path.write_bytes(before)
        replace_file(path, [b"new", b"er"])
        assert path.read_bytes() == b"newer"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_trace_over_the_model_in_use_is_an_error(model_file: Path, run_script: Any) -> None:
    """It would be cut while it is mapped, and the process would die."""
    code = "from pyspec.cli import main; import sys; sys.argv[0] = 'pyspec'; main()"
    flags = ["generate", "-m", model_file, "-t", "1", "-p", "the", "-n", "3", "--trace", model_file]
    before = model_file.read_bytes()
    ran = run_script(code, *flags, check=False)
    assert ran.returncode == 1
    assert "it is a GGUF model" in ran.stderr
    assert model_file.read_bytes() == before


posix = pytest.mark.skipif(sys.platform == "win32", reason="files of POSIX")


@posix
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/random"])
def test_devices_are_not_read(device: str) -> None:
    with Path(device).open("rb") as file, pytest.raises(OSError, match="it is a device, not a file") as caught:
        refuse_device(file)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, device)


@posix
@pytest.mark.parametrize("mode", ["r", "rb"])
def test_pipes_are_read_to_their_end(mode: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"x" * 100_000,))
    writer.start()
    with pipe.open(mode) as file:
        assert len(read_whole(file)) == 100_000
    writer.join()


@posix
def test_a_terminal_is_read() -> None:
    leader, follower = os.openpty()
    os.write(leader, b"typed\n\x04")  # Ctrl-D
    with open(follower, "rb") as file:  # noqa: PTH123 - a descriptor
        assert read_whole(file) == b"typed\n"
    os.close(leader)


def test_what_is_no_file_of_the_system_has_an_end() -> None:
    assert read_whole(io.StringIO("text")) == "text"


@posix
def test_a_device_is_no_slot_file() -> None:
    with pytest.raises(StateError, match="The slot file /dev/null cannot be read: it is a device, not a file"):
        read_slot(Path("/dev/null"))
