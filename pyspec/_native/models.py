"""Native calls about models and vocabularies."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec._native import log
from pyspec._native.buffers import Int32Out, TextBuffer, address_of
from pyspec._native.declarations import ModelInfo, ModelParams, ProgressFunction, VocabInfo
from pyspec._native.handles import Handle
from pyspec._native.library import lib
from pyspec._native.status import Status, check
from pyspec.config import ModelConfig

PIECE, PIECE_SPECIAL, PIECE_RAW = 0, 1, 2
_MAX_TARGET_LAYERS = 512  # LLAMA_MAX_LAYERS
_GO_ON = 42  # what pys_progress_fn must return; anything else, such as what a dropped exception leaves, stops


def load(
    path: bytes, config: ModelConfig, progress: Callable[[float], bool | None] | None, large_page_bytes: int = 0
) -> Handle:
    """Load a model; its weights move to large pages if they have at most so many bytes.

    An exception raised by ``progress`` stops the loading and is raised again here.
    """
    library = lib()
    log.sync_threshold()
    raised: list[BaseException] = []

    refused = False

    def on_progress(fraction: float, _data: object) -> int:
        nonlocal refused
        try:
            refused = progress is not None and progress(fraction) is False
        except BaseException as error:  # noqa: BLE001 - must not pass through C; raised again below
            raised.append(error)
            return 0
        return 0 if refused else _GO_ON

    params = ModelParams(
        n_gpu_layers=config.n_gpu_layers,
        main_gpu=config.main_gpu,
        use_mmap=config.use_mmap,
        use_mlock=config.use_mlock,
        check_tensors=config.check_tensors,
        vocab_only=config.vocab_only,
        repack=config.repack,
        next_n=config.next_n,
        large_page_bytes=large_page_bytes,
        progress=ProgressFunction(on_progress) if progress is not None else ProgressFunction(),
    )
    address = ctypes.c_void_p()
    status = library.pys_model_load(path, ctypes.byref(params), ctypes.byref(address))
    if raised:
        log.forward_pending()
        raise raised[0]
    if status == Status.CANCELLED and not refused:
        raise KeyboardInterrupt  # a signal handler raised before the callback's first line, where ctypes drops it
    check(status)
    log.forward_pending()
    return Handle(_address(address), library.pys_model_free, what="model")


def _address(out: ctypes.c_void_p) -> int:
    if out.value is None:  # cannot be: the status was OK
        msg = "the native library returned no handle"
        raise AssertionError(msg)
    return out.value


def info(handle: Handle) -> ModelInfo:
    out = ModelInfo()
    handle.check(lib().pys_model_get_info(handle.pointer, ctypes.byref(out)))
    return out


def target_layers(handle: Handle) -> tuple[int, ...]:
    """Return the layers of the target that a draft model reads; empty for any other model."""
    layers, count = np.zeros(_MAX_TARGET_LAYERS, np.int32), Int32Out()
    handle.check(lib().pys_model_target_layers(handle.pointer, address_of(layers), len(layers), count.ref))
    return tuple(layers[: count.value].tolist())


def has_tensor(handle: Handle, name: str) -> bool:
    found = Int32Out()
    handle.check(lib().pys_model_has_tensor(handle.pointer, name.encode(), found.ref))
    return bool(found.value)


def read_text(call: Callable[[int, int, Any], int], *, capacity: int = 1024) -> str | None:
    """Run a native call that fills (buffer, capacity, length), enlarging the buffer once when asked."""
    text = TextBuffer(capacity)
    status = call(text.address, text.capacity, text.length.ref)
    if status == Status.BUFFER:
        text = TextBuffer(text.length.value)
        status = call(text.address, text.capacity, text.length.ref)
    check(status)
    return None if text.length.value < 0 else text.text()


def file_type(handle: Handle) -> str:
    return read_text(lambda *out: lib().pys_model_file_type(handle.pointer, *out)) or ""


def chat_template(handle: Handle, name: str | None) -> str | None:
    key = None if name is None else name.encode()
    return read_text(lambda *out: lib().pys_model_chat_template(handle.pointer, key, *out))


def metadata(handle: Handle) -> dict[str, str]:
    """Return the scalar metadata as text; llama.cpp does not offer arrays."""
    count = Int32Out()
    handle.check(lib().pys_model_meta_count(handle.pointer, count.ref))
    entries = {}
    for i in range(count.value):
        key = read_text(lambda *out, i=i: lib().pys_model_meta_key(handle.pointer, i, *out))
        entries[key or ""] = read_text(lambda *out, i=i: lib().pys_model_meta_value(handle.pointer, i, *out)) or ""
    return entries


def vocab_info(handle: Handle) -> VocabInfo:
    out = VocabInfo()
    handle.check(lib().pys_vocab_get_info(handle.pointer, ctypes.byref(out)))
    return out


def vocab_eog(handle: Handle, n_tokens: int) -> npt.NDArray[np.uint8]:
    flags = np.zeros(n_tokens, np.uint8)
    handle.check(lib().pys_vocab_eog(handle.pointer, address_of(flags)))
    return flags


def vocab_attributes(handle: Handle, n_tokens: int) -> npt.NDArray[np.int32]:
    flags = np.zeros(n_tokens, np.int32)
    handle.check(lib().pys_vocab_attributes(handle.pointer, address_of(flags)))
    return flags


def tokenize(handle: Handle, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
    count = Int32Out()
    capacity = len(text) + 16
    while True:
        tokens = array("i", bytes(4 * capacity))
        status = lib().pys_vocab_tokenize(
            handle.pointer, text, len(text), address_of(tokens), capacity, add_special, parse_special, count.ref
        )
        if status != Status.BUFFER:
            handle.check(status, "tokenise the text")
            return tokens[: count.value].tolist()
        capacity = count.value


def pieces(handle: Handle, tokens: Sequence[int], kind: int) -> list[bytes]:
    """Return the bytes of each token."""
    ids = array("i", tokens)
    offsets = array("i", bytes(4 * (len(ids) + 1)))
    capacity = 16 * len(ids) + 64
    while True:
        text = TextBuffer(capacity)
        status = lib().pys_vocab_pieces(
            handle.pointer, address_of(ids), len(ids), kind, text.address, capacity, address_of(offsets)
        )
        if status != Status.BUFFER:
            break
        capacity = offsets[len(ids)]
    handle.check(status, "turn tokens into text")
    blob = ctypes.string_at(text.address, offsets[len(ids)])
    return [blob[offsets[i] : offsets[i + 1]] for i in range(len(ids))]


def quantize(source: bytes, destination: bytes, file_type: int, **options: Any) -> None:
    """Run llama.cpp's quantiser; see ``pyspec.llama.quantize``."""
    layers = array("i", options["prune_layers"])
    status = lib().pys_model_quantize(
        source,
        destination,
        file_type,
        options["n_threads"],
        options["allow_requantize"],
        options["pure"],
        address_of(layers),
        len(layers),
    )
    check(status)
