from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pyspec
from pyspec._native.library import lib
from pyspec.drafters.automatic import LOOKUPS
from pyspec.llama import Device, devices
from tests.cli.conftest import Run


@pytest.mark.native
def test_devices_include_a_cpu() -> None:
    found = devices()
    assert all(isinstance(device, Device) for device in found)
    (cpu,) = [device for device in found if device.kind == "cpu"]
    assert cpu.name
    assert cpu.backend == "CPU"
    assert cpu.memory_total >= cpu.memory_free > 0


@pytest.mark.native
def test_info_shows_what_is_installed(run: Run) -> None:
    ran = run("info")
    assert (ran.code, ran.err) == (0, "")
    rows = dict(line.split("  ", 1) for line in ran.out.splitlines())
    assert rows["pyspec"].strip() == pyspec.__version__
    assert "ngram-simple" in rows["drafters"]
    assert rows["auto"].strip().startswith(f"the default: what is best of {', '.join(LOOKUPS)}, ")
    assert all(line == line.rstrip() for line in ran.out.splitlines())
    report = json.loads(run("info", "--json").out)
    assert report["library"]["llama_cpp"] in ran.out
    assert report["library"]["path"] in ran.out
    assert report["devices"][0]["name"] in ran.out
    assert "model" not in report
    assert set(report["auto"]) <= set(report["drafters"])


def test_info_describes_a_model(run: Run, target_path: Path) -> None:
    model = json.loads(run("info", target_path, "--json").out)["model"]
    assert model["architecture"] == model["metadata"]["general.architecture"] == "llama"
    assert model["n_layer"] == 4
    assert model["chat_template"] is False
    text = run("info", target_path).out
    assert re.search(r"chat_template +no\n", text)
    assert "general.architecture" in text


@pytest.mark.native
def test_info_of_a_file_that_is_no_model(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("no model at all, but long enough for a header")
    ran = run("info", path)
    assert (ran.code, ran.out) == (1, "")
    assert "is not a GGUF file" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_info_without_a_library_lists_the_paths(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "libpyspec.so"
    monkeypatch.setenv("PYSPEC_LIBRARY", str(missing))
    lib.cache_clear()
    try:
        text, report = run("info"), run("info", "--json")
    finally:
        lib.cache_clear()
    assert text.code == report.code == 1
    assert str(missing) in text.out
    assert text.err.startswith("error: The native library")
    assert len(text.err.splitlines()) == 1
    assert json.loads(report.out)["tried"] == [str(missing)]
    assert json.loads(report.out)["library"] is None
