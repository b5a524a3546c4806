"""llama.cpp's objects as Python objects. Everything that can be wrong is checked before C sees it."""

from __future__ import annotations

from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.devices import Device, devices
from pyspec.llama.memory import Memory, RollbackKind
from pyspec.llama.model import Model
from pyspec.llama.rows import Rows
from pyspec.llama.sampler import GreedySampler, SamplerChain, make_sampler
from pyspec.llama.state import State
from pyspec.llama.vocab import Vocab

__all__ = [
    "Batch",
    "Context",
    "Device",
    "GreedySampler",
    "Memory",
    "Model",
    "RollbackKind",
    "Rows",
    "SamplerChain",
    "State",
    "Vocab",
    "devices",
    "make_sampler",
]
