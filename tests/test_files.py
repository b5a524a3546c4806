"""What is written never takes a model's place."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec.drafters.suffix import Suffix
from pyspec.errors import PyspecError
from pyspec.files import replace_file
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
