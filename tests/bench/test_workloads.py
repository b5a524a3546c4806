from __future__ import annotations

from pathlib import Path

import pytest

import pyspec.bench
from pyspec.bench import load_workload, workload_names
from pyspec.errors import ConfigError


def test_the_shipped_ones() -> None:
    assert workload_names() == ["chat", "code-completion", "code-editing", "extraction", "json"]
    for name in workload_names():
        workload = load_workload(name)
        assert workload.name == name
        assert len(workload.prompts) >= 3
        assert all(prompt == prompt.rstrip() and "%%" not in prompt for prompt in workload.prompts)
    folder = Path(pyspec.bench.__file__).parent / "prompts"
    assert max(file.stat().st_size for file in folder.iterdir()) < 4096


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("one\ntwo\n\n%%\n  three\n%%\n\n", encoding="utf-8")
    workload = load_workload(str(file))
    assert (workload.name, workload.prompts) == ("mine", ("one\ntwo\n", "  three"))


@pytest.mark.parametrize("content", [b"", b"\n%%\n \n", b"\xff\xfe"])
def test_a_file_without_prompts(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"mine\.txt"):
        load_workload(str(file))


@pytest.mark.parametrize("name", ["nothing", "", "\0", "."])
def test_no_such_workload(name: str) -> None:
    with pytest.raises(ConfigError, match="code-editing"):
        load_workload(name)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/full", "/dev/null"])
def test_a_device_is_not_read_without_end(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_workload(name)
