"""A GGUF model."""

from __future__ import annotations

import math
import os
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from pyspec._native import Handle
from pyspec._native import models as native
from pyspec.config import ModelConfig, shown
from pyspec.errors import (
    ConfigError,
    LoadCancelledError,
    ModelError,
    ModelFormatError,
    ModelLoadError,
    ModelNotFoundError,
    NativeError,
)
from pyspec.llama.large_pages import most_bytes
from pyspec.llama.vocab import Vocab

if TYPE_CHECKING:
    from pyspec.llama.context import Context

Progress = Callable[[float], bool | None]

_MAGIC = b"GGUF"
_HEADS = ("eagle3", "dflash", "gemma4-assistant")
_VERSIONS = (2, 3)
_HEADER_BYTES = 24
_SAMPLE_BYTES = 1 << 20
# What llama.cpp says when a file ends too early or holds nonsense.
_DAMAGE_WORDS = (
    "corrupt",
    "incomplete",
    "failed to read",
    "failed to seek",
    "not within the file bounds",
    "invalid",
    "overflow",
)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Sizes and properties of a model.

    Attributes:
        description: Architecture, size and type in words.
        architecture: GGUF's ``general.architecture``.
        file_type: Quantisation, such as "Q4_1".
        size_bytes: Bytes of all tensors.
        n_params: Number of weights.
        n_ctx_train: Tokens of context it was trained for.
        n_embd: Width.
        n_embd_inp: Width of a row that stands in place of a token.
        n_embd_out: Width of the state before the output norm.
        n_layer: Layers, without next-n layers.
        n_layer_nextn: Next-n (MTP) layers.
        n_head: Attention heads.
        n_head_kv: Heads of keys and values.
        n_swa: Sliding window, 0 when there is none.
        has_encoder: It must encode before it decodes.
        has_decoder: It can decode.
        is_recurrent: Its memory is a recurrent state.
        is_hybrid: Its memory is partly a recurrent state.
        is_diffusion: It is a diffusion model.
        target_layers: For a draft model that is fed by a target: the layers whose inputs it reads.
        selector_top_k: For DFlash2: candidates per row of its lattice; 0 for any other model.
    """

    description: str
    architecture: str
    file_type: str
    size_bytes: int
    n_params: int
    n_ctx_train: int
    n_embd: int
    n_embd_inp: int
    n_embd_out: int
    n_layer: int
    n_layer_nextn: int
    n_head: int
    n_head_kv: int
    n_swa: int
    has_encoder: bool
    has_decoder: bool
    is_recurrent: bool
    is_hybrid: bool
    is_diffusion: bool
    target_layers: tuple[int, ...]
    selector_top_k: int


class Model:
    """A loaded GGUF model. Any thread may use it; a context of it belongs to one thread.

    Args:
        path: The GGUF file; of a split model the first part.
        config: How to load it.
        progress: Called with 0.0 to 1.0 while loading. Returning False cancels.

    Raises:
        ModelNotFoundError: There is no such file, or it cannot be read.
        ModelFormatError: It is not GGUF, of an unknown version, or damaged.
        ModelLoadError: llama.cpp cannot load it; the message has its reason.
        LoadCancelledError: ``progress`` returned False.

    Example:
        >>> with pyspec.Model("model.gguf") as model:  # doctest: +SKIP
        ...     model.vocab.tokenize("Hello")
    """

    def __init__(
        self, path: str | os.PathLike[str], config: ModelConfig | None = None, *, progress: Progress | None = None
    ) -> None:
        if progress is not None and not callable(progress):
            msg = f"progress must be a function, not {shown(progress)}."
            raise ConfigError(msg)
        self.path = _checked_path(path)
        self.config = config if config is not None else ModelConfig()
        if not isinstance(self.config, ModelConfig):
            msg = f"config must be a ModelConfig, not {type(self.config).__name__}."
            raise ConfigError(msg)
        try:
            self.handle = native.load(os.fsencode(self.path), self.config, progress, _large_page_bytes(self.config))
        except LoadCancelledError:
            raise
        except (ModelLoadError, NativeError) as error:
            raise _classified(self.path, error) from None
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self.metadata: Mapping[str, str] = MappingProxyType(native.metadata(self.handle))
        self.info = _info(self.handle, self.metadata)
        _refuse_impossible_numbers(self.path, self.info, self.metadata)
        self.vocab = Vocab(self.handle)
        self.identity = _identity(self.path)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self.handle.closed

    @property
    def has_trunk(self) -> bool:
        """Whether there is more in the file than next-n layers."""
        return self.info.n_layer_nextn == 0 or self.has_tensor("blk.0.attn_norm.weight")

    @property
    def is_head(self) -> bool:
        """Whether this is no language model by itself but a head that continues from a target's states."""
        return self.info.architecture in _HEADS or not self.has_trunk

    def chat_template(self, name: str | None = None) -> str | None:
        """Return the Jinja chat template stored in the file, or None.

        Args:
            name: A named variant, such as "tool_use".
        """
        if name is not None and (not isinstance(name, str) or not name.isprintable()):
            msg = f"name must be the name of a template, not {shown(name)}."
            raise ConfigError(msg)
        return native.chat_template(self.handle, name)

    def has_tensor(self, name: str) -> bool:
        """Return whether the file holds a tensor of this name, such as "token_embd.weight"."""
        if not isinstance(name, str) or not name.isprintable():
            msg = f"name must be the name of a tensor, not {shown(name)}."
            raise ConfigError(msg)
        return native.has_tensor(self.handle, name)

    def close(self) -> None:
        """Close the model and every context made from it. May be called again."""
        for context in list(self._contexts):
            context.close()
        self.handle.close()

    def register(self, context: Context) -> None:
        """Note a context of this model, to be closed with it."""
        self._contexts.add(context)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {self.path.name}: {self.info.description}{', closed' if self.closed else ''}>"


def _large_page_bytes(config: ModelConfig) -> int:
    stays = config.vocab_only or config.use_mlock  # nothing to read; locked where it is
    return most_bytes() if config.large_pages and not stays else 0


def _checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of something that looks like GGUF."""
    try:
        checked = Path(path)
        if checked.is_fifo() or checked.is_char_device():  # opening or reading could wait for ever
            msg = f"{checked} is a pipe or a device, not a file."
            raise ModelNotFoundError(msg)
        with checked.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the path
        reason = getattr(error, "strerror", None) or error
        name = os.fspath(path)
        hint = "" if Path(name).suffix else " For a model's name, pyspec.hub.resolve(name) gives the path."
        msg = f"The model {shown(name)} cannot be read: {reason}.{hint}"
        raise ModelNotFoundError(msg) from None
    except TypeError:
        msg = f"path must be a string or a path, not {shown(path)}."
        raise ConfigError(msg) from None
    if header[:4] != _MAGIC:
        msg = f"{checked} is not a GGUF file: it starts with {header[:4]!r} instead of {_MAGIC!r}."
        raise ModelFormatError(msg)
    version = int.from_bytes(header[4:8], "little")
    if len(header) < _HEADER_BYTES or version not in _VERSIONS:
        big_endian = int.from_bytes(header[4:8], "big") in _VERSIONS
        found = "is big-endian" if big_endian else f"has GGUF version {version}"
        if len(header) < _HEADER_BYTES:
            found = "ends inside its header"
        msg = f"{checked} {found}; readable are little-endian files of version 2 or 3."
        raise ModelFormatError(msg)
    return checked


def _classified(path: Path, error: ModelLoadError | NativeError) -> ModelError:
    """Tell a damaged file from one that llama.cpp cannot use."""
    reason = str(error)
    damaged = any(word in reason for word in _DAMAGE_WORDS)
    kind = ModelFormatError if damaged else ModelLoadError
    hint = " The file is damaged or incomplete; fetch it again." if damaged else ""
    return kind(f"{path} could not be loaded: {reason}.{hint}")


def _refuse_impossible_numbers(path: Path, info: ModelInfo, metadata: Mapping[str, str]) -> None:
    """Refuse what only a damaged file says, and what ends the process or never returns in the first decode."""
    own = f"{info.architecture}."
    for key, value in metadata.items():
        if key.startswith(own) and not _is_possible(key, value, info, metadata):
            msg = f"{path} could not be loaded: {key} is {value}. The file is damaged; fetch it again."
            raise ModelFormatError(msg)


def _is_possible(key: str, value: str, info: ModelInfo, metadata: Mapping[str, str]) -> bool:
    try:
        if key.endswith("_epsilon"):
            return 0.0 <= float(value) < math.inf
        if key.endswith(".rope.dimension_count"):
            head_size = int(metadata.get(f"{info.architecture}.attention.key_length", 0))
            limit = head_size or (info.n_embd // info.n_head if info.n_head else math.inf)
            return 0 < int(value) <= limit and int(value) % 2 == 0
        if key.endswith(".full_attention_interval"):
            return int(value) > 0
    except ValueError:
        return False
    return True


def _info(handle: Handle, metadata: Mapping[str, str]) -> ModelInfo:
    raw = native.info(handle)
    architecture, file_type = metadata.get("general.architecture", "unknown"), native.file_type(handle)
    return ModelInfo(
        description=f"{architecture} {_in_words(raw.n_params)} {file_type}",
        architecture=architecture,
        file_type=file_type,
        size_bytes=raw.size_bytes,
        n_params=raw.n_params,
        n_ctx_train=raw.n_ctx_train,
        n_embd=raw.n_embd,
        n_embd_inp=raw.n_embd_inp,
        n_embd_out=raw.n_embd_out,
        n_layer=raw.n_layer,
        n_layer_nextn=raw.n_layer_nextn,
        n_head=raw.n_head,
        n_head_kv=raw.n_head_kv,
        n_swa=raw.n_swa,
        has_encoder=bool(raw.has_encoder),
        has_decoder=bool(raw.has_decoder),
        is_recurrent=bool(raw.is_recurrent),
        is_hybrid=bool(raw.is_hybrid),
        is_diffusion=bool(raw.is_diffusion),
        target_layers=native.target_layers(handle),
        selector_top_k=raw.selector_top_k,
    )


def _identity(path: Path) -> str:
    """Tell a file from another of the same architecture and size: its length and a checksum of its ends."""
    with path.open("rb") as file:
        n_bytes = file.seek(0, os.SEEK_END)
        checksum = 0
        for start in (0, max(0, n_bytes - _SAMPLE_BYTES)):
            file.seek(start)
            checksum = zlib.crc32(file.read(_SAMPLE_BYTES), checksum)
    return f"{n_bytes} bytes, checksum {checksum:08x}"


def _in_words(n_params: int) -> str:
    """Return a number of weights as people say it: 410k, 135M, 1.5B."""
    for unit, size, digits in (("B", 1e9, 1), ("M", 1e6, 0)):
        if n_params >= size:
            return f"{n_params / size:.{digits}f}{unit}"
    return f"{n_params / 1e3:.0f}k"
