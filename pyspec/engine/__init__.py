"""Generation: prompts in, text out."""

from __future__ import annotations

from pyspec.engine.engine import Engine
from pyspec.engine.generation import Generation
from pyspec.engine.prompt import Embeddings
from pyspec.engine.result import Chunk, Observer, Result, RunInfo

__all__ = ["Chunk", "Embeddings", "Engine", "Generation", "Observer", "Result", "RunInfo"]
