"""Writing one model of the zoo as GGUF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.zoo.arithmetic import Array, snap
from tests.zoo.language import EMBEDDING, N_EMBD, OUTPUT
from tests.zoo.layers import N_FF, ROPE_BASE, Tensors
from tests.zoo.vocabulary import N_VOCAB, add_tokenizer

N_CTX_TRAIN = 1024
_WITHOUT_SUFFIX = ("ssm_a", "ssm_d", "attn_conv_base", "ffn_conv_base")


class GgufModel:
    """A GGUF file in the making; ``close`` writes it."""

    def __init__(
        self,
        path: Path,
        arch: str,
        n_layer: int,
        *,
        tokens: Sequence[str] | None = None,
        n_pad: int = 0,
        n_ff: int = N_FF,
    ) -> None:
        self.writer = writer = gguf.GGUFWriter(path, arch)
        self.arch = arch
        writer.add_name(f"zoo {path.stem}")
        writer.add_context_length(N_CTX_TRAIN)
        writer.add_embedding_length(N_EMBD)
        writer.add_block_count(n_layer)
        writer.add_feed_forward_length(n_ff)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size((len(tokens) if tokens else N_VOCAB) + n_pad)
        add_tokenizer(writer, tokens, n_pad)

    def heads(self, n_head: int, n_head_kv: int, size: int) -> None:
        """Write numbers and size of the heads, and RoPE over all of each."""
        self.writer.add_head_count(n_head)
        self.writer.add_head_count_kv(n_head_kv)
        self.writer.add_key_length(size)
        self.writer.add_value_length(size)
        self.writer.add_rope_dimension_count(size)
        self.writer.add_rope_freq_base(ROPE_BASE)

    def u32(self, key: str, value: int) -> None:
        """Write a number of this architecture."""
        self.writer.add_uint32(f"{self.arch}.{key}", value)

    def flag(self, key: str, *, value: bool) -> None:
        """Write a truth value of this architecture."""
        self.writer.add_bool(f"{self.arch}.{key}", value)

    def tensor(self, name: str, values: Array) -> None:
        """Add a float32 tensor."""
        self.writer.add_tensor(name, np.ascontiguousarray(snap(values), dtype=np.float32))

    def ids(self, name: str, values: npt.NDArray[np.int64]) -> None:
        """Add an int64 tensor."""
        self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.int64))

    def embedding_and_output(self, embedding: Array = EMBEDDING, output: Array = OUTPUT) -> None:
        """Add both vocabulary matrices."""
        self.tensor("token_embd.weight", embedding)
        self.tensor("output.weight", output)

    def block(self, layer: int, tensors: Tensors) -> None:
        """Add the tensors of a layer; names that carry a suffix, or take none, are passed through."""
        for key, values in tensors.items():
            complete = key.endswith((".bias", ".weight")) or key in _WITHOUT_SUFFIX
            self.tensor(f"blk.{layer}.{key if complete else key + '.weight'}", values)

    def close(self) -> None:
        """Write the file."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
