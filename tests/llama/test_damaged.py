"""Damaged model files: an exception of the tree, in a process of its own because upstream might end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import pyspec
from pyspec.errors import ModelFormatError

# Load each file named on the command line, decode with what can be loaded, and say how it went.
TRY_EACH = """
import sys
import pyspec

for path in sys.argv[1:]:
    try:
        with pyspec.Model(path) as model, pyspec.Context(model, pyspec.ContextConfig(n_ctx=64, n_threads=1)) as context:
            batch = pyspec.Batch()
            batch.add(10, 0, output=True)
            context.decode(batch).argmax(0)
            model.vocab.detokenize(model.vocab.tokenize("hello world"))
            print("usable")
    except (pyspec.errors.ModelError, pyspec.errors.ContextError, pyspec.errors.NativeError) as error:
        print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def small(zoo: Path) -> bytes:
    return (zoo / "draft-llama.gguf").read_bytes()


@pytest.fixture(scope="module")
def header_size(zoo: Path) -> int:
    return int(gguf.GGUFReader(zoo / "draft-llama.gguf").data_offset)


def test_a_file_cut_anywhere(small: bytes, header_size: int, tmp_path: Path) -> None:
    inside = np.linspace(24, header_size - 1, 28, dtype=int).tolist()
    behind = np.linspace(header_size, len(small) - 1, 12, dtype=int).tolist()
    for end in [*inside, *behind]:
        path = tmp_path / "cut.gguf"
        path.write_bytes(small[:end])
        with pytest.raises(ModelFormatError, match="damaged or incomplete"):
            pyspec.Model(path)


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_in_the_header(small: bytes, header_size: int, tmp_path: Path, run_script: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    paths = []
    for i in range(50):
        data = bytearray(small)
        for at in random.integers(8, header_size, size=random.choice([1, 1, 2, 8])):
            data[at] = random.integers(256)
        paths.append(tmp_path / f"{i}.gguf")
        paths[-1].write_bytes(data)
    said = run_script(TRY_EACH, *paths).stdout.split()
    assert len(said) == len(paths)
    assert set(said) - {"usable"}, "not one file was refused"


@pytest.fixture
def damaged(zoo: Path, tmp_path: Path) -> Any:
    """Write a model, draft-llama unless named, with one field of its metadata, or the type of one tensor, replaced."""
    draft_llama = zoo / "draft-llama.gguf"

    def make(name: str, value: Any, source: Path = draft_llama) -> Path:
        reader = gguf.GGUFReader(source)
        start = reader.data.__array_interface__["data"][0]
        field = reader.get_field(name)
        if field is None:
            (tensor,) = [tensor for tensor in reader.tensors if tensor.name == name]
            part = tensor.field.parts[4]  # name length, name, number of dimensions, dimensions, type, offset
        else:
            part = field.parts[field.data[0]]
        offset = part.__array_interface__["data"][0] - start
        data = bytearray(source.read_bytes())
        data[offset : offset + part.nbytes] = np.array([value], part.dtype).tobytes()
        path = tmp_path / "damaged.gguf"
        path.write_bytes(data)
        return path

    return make


@pytest.mark.parametrize("name", ["output.weight", "blk.0.attn_q.weight", "blk.0.ffn_norm.weight", "token_embd.weight"])
@pytest.mark.parametrize("kind", ["I8", "I16", "I32"])
def test_weights_that_no_kernel_can_read_are_refused(damaged: Any, name: str, kind: str) -> None:
    path = damaged(name, int(gguf.GGMLQuantizationType[kind]))
    with pytest.raises(ModelFormatError):
        pyspec.Model(path)


def test_the_message_names_the_weight(damaged: Any) -> None:
    with pytest.raises(ModelFormatError, match=r"output\.weight has the invalid type i32"):
        pyspec.Model(damaged("output.weight", int(gguf.GGMLQuantizationType.I32)))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), -1e30])
def test_an_impossible_epsilon_is_refused(damaged: Any, value: float) -> None:
    with pytest.raises(ModelFormatError, match="epsilon"):
        pyspec.Model(damaged("llama.attention.layer_norm_rms_epsilon", value))


@pytest.mark.parametrize("value", [1, 33, 34, 65536, 2**31 - 1])
def test_an_impossible_rotation_is_refused(zoo: Path, damaged: Any, value: int) -> None:
    with pytest.raises(pyspec.errors.ModelError, match=r"dimension_count|n_rot"):
        pyspec.Model(damaged("llama.rope.dimension_count", value))
    with pytest.raises(ModelFormatError, match="dimension_count"):
        pyspec.Model(damaged("lfm2.rope.dimension_count", value, zoo / "target-lfm2.gguf"))


@pytest.mark.parametrize("value", [0, 2, 1000, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize(
    "name", ["llama.block_count", "llama.embedding_length", "llama.attention.head_count", "llama.attention.key_length"]
)
def test_sizes_that_do_not_fit_are_refused(damaged: Any, name: str, value: int) -> None:
    with pytest.raises(pyspec.errors.ModelError):
        pyspec.Model(damaged(name, value))
