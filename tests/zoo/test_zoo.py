"""The zoo is the same on every machine: golden runs were recorded on exactly these weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import pytest

from tests.zoo import MODELS, NEGATIVES, make_zoo

HASHES: dict[str, str] = json.loads((Path(__file__).parents[1] / "data/zoo-tensors.json").read_text(encoding="utf-8"))


def tensor_hash(path: Path) -> str:
    """Hash names, shapes and values of all tensors, so that a newer gguf package may lay out the file anew."""
    digest = hashlib.sha256()
    for tensor in gguf.GGUFReader(path).tensors:
        digest.update(f"{tensor.name} {tensor.shape.tolist()} {tensor.tensor_type.name}\n".encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()


def test_every_model_has_a_recorded_hash() -> None:
    assert set(HASHES) == set(MODELS) | set(NEGATIVES)


@pytest.mark.parametrize("name", sorted(HASHES))
def test_the_tensors_are_the_recorded_ones(name: str, tmp_path: Path) -> None:
    make_zoo(tmp_path, [name])
    assert tensor_hash(tmp_path / f"{name}.gguf") == HASHES[name]


def test_making_a_model_twice_gives_the_same_file(tmp_path: Path) -> None:
    make_zoo(tmp_path / "a", ["draft-llama"])
    make_zoo(tmp_path / "b", ["draft-llama"])
    assert (tmp_path / "a/draft-llama.gguf").read_bytes() == (tmp_path / "b/draft-llama.gguf").read_bytes()
