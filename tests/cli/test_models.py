from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from pyspec.cli import models
from pyspec.errors import ConfigError, HubError, ModelNotFoundError
from pyspec.hub import CatalogueModel, WheelSource, catalogue

CONTENT = b"GGUF" * 3000


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model, which is the catalogue's only one."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/tiny.gguf", CONTENT)
    packed = path.read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    source = WheelSource("tiny", "1", path.name, len(packed), digest, "tiny/tiny.gguf")
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    entry = CatalogueModel("tiny", "A tiny model", "MIT", "tiny.gguf", len(CONTENT), sha256, source)
    monkeypatch.delitem(catalogue._BY_NAME, "smollm2-135m")
    monkeypatch.setitem(catalogue._BY_NAME, "tiny", entry)
    return path


class FakeQuantizer:
    """Stands in for pyspec.llama.quantize: halves the file."""

    def __init__(self) -> None:
        self.TYPES = {"Q4_0": 2, "Q2_K": 10}
        self.calls: list[dict[str, object]] = []

    def quantize(
        self, src: Path, dst: Path, type_name: str, *, progress: Callable[[int, int], bool] | None, **options: object
    ) -> None:
        self.calls.append({"src": src, "dst": dst, "type": type_name, **options})
        if progress is not None:
            assert progress(1, 2)
        content = src.read_bytes()
        dst.write_bytes(content[: len(content) // 2])


@pytest.fixture
def quantizer(monkeypatch: pytest.MonkeyPatch) -> FakeQuantizer:
    fake = FakeQuantizer()
    module = ModuleType("pyspec.llama.quantize")
    vars(module).update(quantize=fake.quantize, TYPES=fake.TYPES)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in.gguf"
    path.write_bytes(bytes(2_000_000))
    return path


def run(*arguments: object, error: type[Exception] | None = None) -> Result:
    result = CliRunner().invoke(models.app, [str(argument) for argument in arguments])
    if error is None:
        assert result.exit_code == 0, result.output
    else:
        assert type(result.exception) is error
    return result


def usage_error(*arguments: object) -> str:
    """Run what must be refused as wrong usage, and return the message without its frame."""
    result = CliRunner().invoke(models.app, [str(argument) for argument in arguments], env={"COLUMNS": "500"})
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_list_shows_what_is_cached(wheel: Path, tmp_path: Path) -> None:
    header, row = run("list").stdout.splitlines()
    assert header.split() == ["NAME", "SIZE", "LICENCE", "CACHED", "MODEL", "PATH"]
    assert row.split() == ["tiny", "0.0", "MB", "MIT", "no", "A", "tiny", "model", "-"]
    (before,) = json.loads(run("list", "--json").stdout)
    path = run("fetch", "tiny", "--from", wheel).stdout.strip()
    (after,) = json.loads(run("list", "--json").stdout)
    expected = {"name": "tiny", "title": "A tiny model", "licence": "MIT", "bytes": len(CONTENT)}
    assert before == {**expected, "cached": False, "path": None}
    assert after == {**expected, "cached": True, "path": path}
    assert path == str(tmp_path / "cache" / "models" / "tiny.gguf")


def test_fetch_prints_the_path_and_nothing_else_in_a_pipe(wheel: Path) -> None:
    result = run("fetch", "tiny", "--from", wheel)
    assert Path(result.stdout.strip()).read_bytes() == CONTENT
    assert result.stderr == ""
    answer = json.loads(run("fetch", "tiny", "--json").stdout)
    assert answer == {"name": "tiny", "path": result.stdout.strip(), "bytes": len(CONTENT)}


def test_fetch_draws_on_a_terminal(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run("fetch", "tiny", "--from", wheel, "--force")
    assert "extracting" in result.stderr
    assert Path(result.stdout.strip()).is_file()


def test_fetch_of_an_unknown_name_fails(wheel: Path) -> None:
    del wheel
    assert "known names: tiny" in str(run("fetch", "tinny", error=ModelNotFoundError).exception)


def test_path_prints_where_a_model_is(wheel: Path, model: Path) -> None:
    assert "pyspec models fetch tiny" in str(run("path", "tiny", error=ModelNotFoundError).exception)
    fetched = run("fetch", "tiny", "--from", wheel).stdout
    assert run("path", "tiny").stdout == fetched
    assert json.loads(run("path", "tiny", "--json").stdout) == {"name": "tiny", "path": fetched.strip()}
    assert run("path", model).stdout.strip() == str(model)


def test_path_of_a_hub_file_downloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspec.hub.hf.cached", lambda _file: None)
    error = run("path", "hf:o/r/a.gguf", error=ModelNotFoundError).exception
    assert str(error) == "hf:o/r/a.gguf has not been fetched yet; run: pyspec models fetch hf:o/r/a.gguf"
    run("path", "hf:o/r", error=ConfigError)


def test_quantize_passes_everything_on(quantizer: FakeQuantizer, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    flags = ("--prune-layers", "3, 5-7,3", "--threads", "2", "--no-allow-requantize", "--pure")
    result = run("quantize", model, out, "q4_0", *flags)
    assert result.stdout.strip() == f"{out}: Q4_0, without 4 layers, 2.0 MB -> 1.0 MB (50%)"
    assert result.stderr == ""
    options = {"prune_layers": (3, 5, 6, 7), "n_threads": 2, "allow_requantize": False, "pure": True}
    assert quantizer.calls == [{"src": model, "dst": out, "type": "Q4_0", **options}]


def test_quantize_takes_a_name_and_prints_json(quantizer: FakeQuantizer, wheel: Path, tmp_path: Path) -> None:
    fetched = run("fetch", "tiny", "--from", wheel).stdout.strip()
    out = tmp_path / "out.gguf"
    assert json.loads(run("quantize", "tiny", out, "Q2_K", "--json").stdout) == {
        "input": fetched,
        "output": str(out),
        "type": "Q2_K",
        "pruned_layers": [],
        "input_bytes": len(CONTENT),
        "output_bytes": len(CONTENT) // 2,
    }
    (made,) = quantizer.calls
    assert made["allow_requantize"] is True
    assert made["pure"] is False


def test_quantize_draws_on_a_terminal(
    quantizer: FakeQuantizer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del quantizer
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "tensors" in run("quantize", model, tmp_path / "out.gguf", "Q4_0").stderr


def test_quantize_never_overwrites_unasked(quantizer: FakeQuantizer, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    assert "--force" in str(run("quantize", model, out, "Q4_0", error=HubError).exception)
    assert out.read_bytes() == b"precious"
    run("quantize", model, out, "Q4_0", "--force")
    assert out.stat().st_size == 1_000_000
    assert len(quantizer.calls) == 1


def test_quantize_never_reads_and_writes_one_file(quantizer: FakeQuantizer, model: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    for out in (model, link):
        assert "IN and OUT are the same file" in usage_error("quantize", model, out, "Q4_0", "--force")
    assert quantizer.calls == []


def test_quantize_lists_the_types(quantizer: FakeQuantizer, model: Path, tmp_path: Path) -> None:
    assert "unknown type 'Q9'; known types: Q4_0, Q2_K" in usage_error("quantize", model, tmp_path / "out", "Q9")
    assert quantizer.calls == []


@pytest.mark.parametrize("layers", ["x", "3,", "7-5", "-1", "1--2", "1-2-3", "99999", "1;2"])
def test_quantize_shows_how_layers_are_written(
    quantizer: FakeQuantizer, model: Path, tmp_path: Path, layers: str
) -> None:
    message = usage_error("quantize", model, tmp_path / "out", "Q4_0", f"--prune-layers={layers}")
    assert "for example 3,5-7" in message
    assert quantizer.calls == []
