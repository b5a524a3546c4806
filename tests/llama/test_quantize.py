"""llama.cpp's quantiser: what it writes, and that it writes nothing when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pyspec
from pyspec.errors import ConfigError, ModelError, ModelFormatError, ModelNotFoundError, PyspecError, QuantizeError
from pyspec.llama.quantize import TYPES, quantize
from tests.helpers import PROMPT, decode, make_context


@pytest.mark.parametrize("type_name", sorted(TYPES))
def test_every_type_is_written_and_works(target_path: Path, tmp_path: Path, type_name: str) -> None:
    copy = tmp_path / "copy.gguf"
    quantize(target_path, copy, type_name)
    with pyspec.Model(copy) as model, make_context(model) as context:
        assert (model.info.n_layer, model.info.n_params) == (4, 246336)
        decode(context, PROMPT)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.gguf"]


def test_the_type_is_the_one_asked_for(target_path: Path, tmp_path: Path) -> None:
    sizes = {}
    for type_name in ("f32", "Q8_0", "q4_0"):
        quantize(target_path, tmp_path / type_name, type_name, pure=True)
        with pyspec.Model(tmp_path / type_name) as model:
            sizes[type_name] = model.info.size_bytes
    assert sizes["f32"] > 3 * sizes["Q8_0"] > 5 * sizes["q4_0"] > 0


def test_layers_can_be_left_out(target_path: Path, tmp_path: Path) -> None:
    quantize(target_path, tmp_path / "short.gguf", "F32", prune_layers=[1, 3, 3])
    with pyspec.Model(tmp_path / "short.gguf") as model, make_context(model) as context:
        assert model.info.n_layer == 2
        decode(context, PROMPT)


@pytest.mark.parametrize("layers", [[0, 1, 2, 3], [4], [-1], ["1"], [1.0], [True]])
def test_wrong_layers(target_path: Path, tmp_path: Path, layers: Any) -> None:
    with pytest.raises(ConfigError):
        quantize(target_path, tmp_path / "copy.gguf", "Q8_0", prune_layers=layers)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("type_name", ["Q9_9", "", "IQ1_S", 7, None])
def test_an_unknown_type_lists_the_known(target_path: Path, tmp_path: Path, type_name: Any) -> None:
    with pytest.raises(ConfigError, match="known are F32, F16"):
        quantize(target_path, tmp_path / "copy.gguf", type_name)


def test_the_source_is_never_overwritten(target_path: Path, tmp_path: Path) -> None:
    before = target_path.read_bytes()
    (tmp_path / "link.gguf").symlink_to(target_path)
    for same in (target_path, target_path.parent / "." / target_path.name, tmp_path / "link.gguf"):
        with pytest.raises(ConfigError, match="the source itself"):
            quantize(target_path, same, "Q8_0")
    assert target_path.read_bytes() == before


def test_an_existing_copy_is_replaced(target_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_text("old", encoding="utf-8")
    quantize(target_path, copy, "Q8_0")
    with pyspec.Model(copy):
        pass


def test_a_wrong_source(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("hello, I am not a model", encoding="utf-8")
    with pytest.raises(ModelFormatError):
        quantize(text, tmp_path / "copy.gguf", "Q8_0")
    with pytest.raises(ModelNotFoundError):
        quantize(tmp_path / "nowhere.gguf", tmp_path / "copy.gguf", "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["text.gguf"]


def test_a_folder_that_is_not_there(target_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        quantize(target_path, tmp_path / "nowhere" / "copy.gguf", "Q8_0")


def test_a_folder_as_destination(target_path: Path, tmp_path: Path) -> None:
    with pytest.raises(PyspecError):
        quantize(target_path, tmp_path, "Q8_0")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(target_path: Path) -> None:
    with pytest.raises(PyspecError):
        quantize(target_path, "/proc/copy.gguf", "Q8_0")


@pytest.mark.parametrize("destination", ["a\0b.gguf", "\ud800", 5, None])
def test_a_destination_that_is_no_path(target_path: Path, destination: Any) -> None:
    with pytest.raises(ConfigError):
        quantize(target_path, destination, "Q8_0")


@pytest.mark.parametrize("n_threads", [-1, 1000, "2", 1.5])
def test_a_wrong_number_of_threads(target_path: Path, tmp_path: Path, n_threads: Any) -> None:
    with pytest.raises(ConfigError):
        quantize(target_path, tmp_path / "copy.gguf", "Q8_0", n_threads=n_threads)


def test_progress_counts_the_tensors(target_path: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    quantize(target_path, tmp_path / "copy.gguf", "Q8_0", progress=lambda done, total: seen.append((done, total)))
    totals = {total for _, total in seen}
    assert len(totals) == 1
    assert [done for done, _ in seen] == list(range(1, totals.pop() + 1))


def test_an_exception_in_progress_comes_back_and_leaves_nothing(target_path: Path, tmp_path: Path) -> None:
    def fail(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(target_path, tmp_path / "copy.gguf", "Q8_0", progress=fail)
    assert not list(tmp_path.iterdir())


def test_a_failure_of_the_quantiser_leaves_nothing(
    target_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object, **_options: object) -> None:
        message = "no"
        raise QuantizeError(message)

    monkeypatch.setattr("pyspec._native.models.quantize", broken)
    with pytest.raises(QuantizeError):
        quantize(target_path, tmp_path / "copy.gguf", "Q8_0")
    assert not list(tmp_path.iterdir())


def test_a_quantised_source_needs_permission(target_path: Path, tmp_path: Path) -> None:
    quantize(target_path, tmp_path / "q4.gguf", "Q4_0")
    with pytest.raises(ModelError):
        quantize(tmp_path / "q4.gguf", tmp_path / "q8.gguf", "Q8_0", allow_requantize=False)
    assert [path.name for path in tmp_path.iterdir()] == ["q4.gguf"]
    quantize(tmp_path / "q4.gguf", tmp_path / "q8.gguf", "Q8_0")


@pytest.mark.parametrize("type_name", ["Q8_0", "Q5_0", "Q4_0", "Q4_1", "IQ4_NL"])
def test_rows_of_a_quantized_model_are_the_same_alone_and_together(
    target_path: Path, tmp_path: Path, type_name: str
) -> None:
    """Up to eight rows, and more of them, have kernels of their own."""
    copy = tmp_path / "copy.gguf"
    quantize(target_path, copy, type_name)
    tokens = [3 + 7 * i % 200 for i in range(18)]
    with pyspec.Model(copy) as model, make_context(model) as context:
        alone = rows_in_pieces(context, tokens, 1)
        for n_together in (2, 3, 4, 7, 8, 9, 18):
            together = rows_in_pieces(context, tokens, n_together)
            assert np.allclose(together, alone, atol=0.02 * float(np.std(alone)))


def rows_in_pieces(context: pyspec.Context, tokens: list[int], n_together: int) -> npt.NDArray[np.float32]:
    """Return the logits of each token, [n_tokens, n_vocab], when so many are decoded at once."""
    context.memory.clear()
    found = []
    for first in range(0, len(tokens), n_together):
        batch = pyspec.Batch()
        batch.extend(tokens[first : first + n_together], first, output=True)
        rows = context.decode(batch)
        found += [rows.logits(i).copy() for i in range(len(rows))]
    return np.array(found)
