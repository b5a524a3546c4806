"""Generation: prompts in, text out."""

from __future__ import annotations

from pyspec.engine.admission import Settings
from pyspec.engine.async_generation import AsyncGeneration
from pyspec.engine.engine import Engine
from pyspec.engine.generation import Generation
from pyspec.engine.prompt import Embeddings
from pyspec.engine.result import Chunk, Observer, Result, RunInfo
from pyspec.engine.status import EngineStatus, SlotState, SlotStatus
from pyspec.speculation.draft import Drafting

__all__ = [
    "AsyncGeneration",
    "Chunk",
    "Drafting",
    "Embeddings",
    "Engine",
    "EngineStatus",
    "Generation",
    "Observer",
    "Result",
    "RunInfo",
    "Settings",
    "SlotState",
    "SlotStatus",
]
