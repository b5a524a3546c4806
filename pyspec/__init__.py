"""Lossless speculative decoding of GGUF models.

Example:
    >>> import pyspec
    >>> with pyspec.Model("model.gguf") as model:  # doctest: +SKIP
    ...     with pyspec.Engine(model, speculation=pyspec.Speculation("ngram-simple")) as engine:
    ...         print(engine.generate("Once upon a time", max_tokens=64).text)
"""

from __future__ import annotations

from pyspec import drafters, errors, hub, trace
from pyspec.config import ContextConfig, ModelConfig, SamplingConfig
from pyspec.engine import Chunk, Embeddings, Engine, Result
from pyspec.errors import PyspecError
from pyspec.llama import Batch, Context, GreedySampler, Memory, Model, RollbackKind, Rows, SamplerChain, State, Vocab
from pyspec.llama.grammar import Grammar
from pyspec.llama.quantize import quantize
from pyspec.speculation import Finish
from pyspec.speculation.config import Speculation

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Chunk",
    "Context",
    "ContextConfig",
    "Embeddings",
    "Engine",
    "Finish",
    "Grammar",
    "GreedySampler",
    "Memory",
    "Model",
    "ModelConfig",
    "PyspecError",
    "Result",
    "RollbackKind",
    "Rows",
    "SamplerChain",
    "SamplingConfig",
    "Speculation",
    "State",
    "Vocab",
    "drafters",
    "errors",
    "hub",
    "quantize",
    "trace",
]
