"""Native calls about the devices that llama.cpp can compute on."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal

from pyspec._native.buffers import Int32Out
from pyspec._native.declarations import DeviceInfo
from pyspec._native.library import lib
from pyspec._native.status import check

Kind = Literal["cpu", "gpu", "integrated gpu", "accelerator", "other"]
_KINDS: tuple[Kind, ...] = ("cpu", "gpu", "integrated gpu", "accelerator", "other")


@dataclass(frozen=True, slots=True)
class Device:
    """A device that llama.cpp can compute on.

    Attributes:
        name: Short name, such as "CPU" or "CUDA0".
        description: Name of the hardware.
        backend: The part of ggml that drives it.
        kind: What it is.
        memory_free: Free bytes; 0 when the backend does not tell.
        memory_total: Bytes; 0 when the backend does not tell.
    """

    name: str
    description: str
    backend: str
    kind: Kind
    memory_free: int
    memory_total: int


def devices() -> list[Device]:
    """Return the devices in the order in which llama.cpp numbers them.

    Raises:
        LibraryError: The native library is missing or is not ours.
    """
    count = Int32Out()
    check(lib().pys_device_count(count.ref), "count the devices")
    return [_device(index) for index in range(count.value)]


def _device(index: int) -> Device:
    raw = DeviceInfo()
    check(lib().pys_device_get(index, ctypes.byref(raw)), f"read about device {index}")
    return Device(
        name=raw.name.decode(errors="replace"),
        description=raw.description.decode(errors="replace").strip(),
        backend=raw.backend.decode(errors="replace"),
        kind=_KINDS[raw.kind],
        memory_free=raw.memory_free,
        memory_total=raw.memory_total,
    )
