"""Making a smaller copy of a model with llama.cpp's quantiser, for example as a draft model."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pyspec._native import log
from pyspec._native import models as native
from pyspec.config import ModelConfig, as_list, require_bool, require_int, shown
from pyspec.errors import ConfigError, QuantizeError
from pyspec.llama.model import Model

# llama_ftype by the names that llama.cpp's own tool uses. Types that need an importance matrix are left out.
TYPES: Mapping[str, int] = MappingProxyType(
    {
        "F32": 0,
        "F16": 1,
        "Q4_0": 2,
        "Q4_1": 3,
        "Q8_0": 7,
        "Q5_0": 8,
        "Q5_1": 9,
        "Q2_K": 10,
        "Q3_K_S": 11,
        "Q3_K_M": 12,
        "Q3_K_L": 13,
        "Q4_K_S": 14,
        "Q4_K_M": 15,
        "Q5_K_S": 16,
        "Q5_K_M": 17,
        "Q6_K": 18,
        "IQ4_NL": 25,
        "IQ4_XS": 30,
        "BF16": 32,
    }
)
_POLL_SECONDS = 0.05


def quantize(  # noqa: PLR0913 - each is an option by its own name
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    type_name: str,
    *,
    prune_layers: Sequence[int] = (),
    n_threads: int = 0,
    allow_requantize: bool = True,
    pure: bool = False,
    progress: Callable[[int, int], bool | None] | None = None,
) -> None:
    """Write a copy of a model with another type, and optionally fewer layers.

    The copy appears under its name only when it is complete. An existing file is replaced.

    Args:
        source: A GGUF model.
        destination: Where the copy goes.
        type_name: One of ``TYPES``.
        prune_layers: Layers to leave out. The first is 0; at least one must stay.
        n_threads: 0 means all.
        allow_requantize: Accept a source that is quantised already, at some loss.
        pure: Use the type for every tensor instead of llama.cpp's mixture.
        progress: Called with (tensors done, tensors in all). It cannot stop the work: llama.cpp has no way.

    Raises:
        ConfigError: An argument is wrong.
        ModelError: The source is not a usable model.
        QuantizeError: llama.cpp refused; nothing was written.
    """
    file_type = TYPES.get(str(type_name).upper())
    if file_type is None:
        msg = f"There is no type {shown(type_name)}; known are {', '.join(TYPES)}."
        raise ConfigError(msg)
    threads = require_int("n_threads", n_threads, 0, 512)
    require_bool("allow_requantize", allow_requantize)
    require_bool("pure", pure)
    if progress is not None and not callable(progress):
        msg = f"progress must be a function, not {shown(progress)}."
        raise ConfigError(msg)
    with Model(source, ModelConfig(vocab_only=True)) as model:
        layers = _checked_layers(prune_layers, model)
        target = _checked_destination(destination, model)
    with _writable(target) as folder:
        unfinished = folder / target.name
        work = _Work(
            lambda: native.quantize(
                os.fsencode(source),
                os.fsencode(unfinished),
                file_type,
                prune_layers=layers,
                n_threads=threads,
                allow_requantize=allow_requantize,
                pure=pure,
            )
        )
        work.run(progress)
        if not unfinished.is_file():
            msg = f"The quantiser wrote nothing to {target}."
            raise QuantizeError(msg)
        unfinished.replace(target)


def _checked_destination(destination: str | os.PathLike[str], source: Model) -> Path:
    try:
        target = Path(destination)
        if "\0" in str(target):
            msg = f"destination must be a path, not {shown(destination)}."
            raise ConfigError(msg)
        if target.exists() and target.samefile(source.path):
            msg = f"{target} is the source itself; give the copy another name."
            raise ConfigError(msg)
        if target.is_dir():
            msg = f"{target} is a folder; give the copy a file name."
            raise ConfigError(msg)
        if not target.parent.is_dir():
            msg = f"The folder {target.parent} does not exist."
            raise ConfigError(msg)
        os.fsencode(target)
    except (TypeError, OSError, UnicodeEncodeError) as error:
        msg = f"destination must be a path, not {shown(destination)}: {error}."
        raise ConfigError(msg) from None
    return target


@contextlib.contextmanager
def _writable(target: Path) -> Iterator[Path]:
    """Make a folder beside the target, on the same file system, and remove it afterwards."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".pyspec-", dir=target.parent)
    except OSError as error:
        msg = f"The folder {target.parent} cannot be written: {error.strerror}."
        raise QuantizeError(msg) from None
    with folder as name:
        yield Path(name)


def _checked_layers(prune_layers: Sequence[int], model: Model) -> list[int]:
    n_layer = int(model.metadata.get(f"{model.info.architecture}.block_count", model.info.n_layer))
    given = as_list(prune_layers)
    if given is None:
        msg = f"prune_layers must be a list of layers, not {shown(prune_layers)}."
        raise ConfigError(msg)
    layers = sorted({require_int("a layer of prune_layers", layer, 0, n_layer - 1) for layer in given})
    if len(layers) >= n_layer:
        msg = f"All {n_layer} layers would be pruned; at least one must stay."
        raise ConfigError(msg)
    return layers


class _Work:
    """Runs the quantiser on a thread, so that its log can be read for progress meanwhile."""

    _TENSOR = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._error: BaseException | None = None

    def run(self, progress: Callable[[int, int], bool | None] | None) -> None:
        thread = threading.Thread(target=self._guarded, name="pyspec-quantize")
        with log.listener(lambda line: self._report(line, progress)):
            thread.start()
            while thread.is_alive():
                time.sleep(_POLL_SECONDS)
                log.forward_pending()
            thread.join()
            log.forward_pending()
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 - raised again on the calling thread
            self._error = error

    def _report(self, line: str, progress: Callable[[int, int], bool | None] | None) -> None:
        match = self._TENSOR.match(line)
        if match and progress is not None:
            progress(int(match[1]), int(match[2]))
