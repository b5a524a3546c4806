"""The zoo is the same on every machine, because golden runs were recorded on exactly these weights; and it loads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

import pyspec
from tests.helpers import PROMPT, decode, make_context
from tests.zoo import MODELS, NEGATIVES, make_zoo
from tests.zoo.eagle3 import next_n_features, ordered_features
from tests.zoo.language import CONTEXT, EMBEDDING, IDENTITY
from tests.zoo.vocabulary import N_VOCAB, RING_POSITION

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


@pytest.fixture(scope="session")
def negatives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("negatives")
    make_zoo(folder, NEGATIVES)
    return folder


def is_target(name: str) -> bool:
    return name.startswith(("target-", "neg-mtp"))


@pytest.mark.parametrize("name", [*MODELS, *NEGATIVES])
def test_llama_cpp_loads_every_model(name: str, zoo: Path, negatives: Path) -> None:
    with pyspec.Model((zoo if name in MODELS else negatives) / f"{name}.gguf") as model:
        assert model.info.architecture == model.metadata["general.architecture"]
        assert N_VOCAB <= len(model.vocab) <= N_VOCAB + 16


@pytest.mark.parametrize("name", [name for name in [*MODELS, *NEGATIVES] if is_target(name)])
def test_a_target_says_ordinary_tokens(name: str, zoo: Path, negatives: Path) -> None:
    with (
        pyspec.Model((zoo if name in MODELS else negatives) / f"{name}.gguf") as model,
        make_context(model) as context,
    ):
        rows = decode(context, PROMPT)
        assert all(np.isfinite(rows.logits(i)).all() for i in range(len(PROMPT)))
        assert rows.argmax(len(PROMPT) - 1) in RING_POSITION


def target_layers(path: Path) -> list[int]:
    reader = gguf.GGUFReader(path)
    field = next(field for key, field in reader.fields.items() if key.endswith(".target_layers"))
    return [int(field.parts[k][0]) for k in field.data]


@pytest.mark.parametrize("name", ["eagle3-nextn", "dflash2", "dspark-noanchor", "dspark-noconf"])
def test_a_swapped_draft_model_differs_in_nothing_but_the_order_of_its_layers(
    name: str, zoo: Path, negatives: Path
) -> None:
    right, swapped = zoo / f"draft-{name}.gguf", negatives / f"neg-{name}-swapped.gguf"
    assert tensor_hash(right) == tensor_hash(swapped)
    assert target_layers(right) == target_layers(swapped)[::-1] != target_layers(swapped)


@pytest.mark.parametrize(("features", "place_of_layer_0"), [(ordered_features(), 0), (next_n_features(), 2)])
def test_layers_in_the_wrong_order_spoil_the_identity(features: np.ndarray, place_of_layer_0: int) -> None:
    entering = EMBEDDING[min(RING_POSITION)]  # what enters layer 0
    later = entering.copy()
    later[CONTEXT] = 0.8  # layers add context
    rows = [later, later, later]
    spoiled = (features @ np.concatenate(rows))[IDENTITY]
    rows[place_of_layer_0] = entering
    found = (features @ np.concatenate(rows))[IDENTITY]
    ratio = features[0, 0]
    assert np.allclose(found, ratio * entering[IDENTITY])
    assert np.linalg.norm(spoiled - found) > np.linalg.norm(found)
