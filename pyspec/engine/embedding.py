"""Embeddings: a text as one vector, pooled from the target's states after its output norm.

The states come from a context of their own, made when the first text comes; it has one sequence and reads a text piece
by piece, between the rounds of the requests that are running. What llama.cpp pools inside a decode is pooled here,
because a text may span decodes.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pyspec.config import ContextConfig, shown
from pyspec.engine.worker import Workshop
from pyspec.errors import ConfigError, UnsupportedError
from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.model import Model

T = TypeVar("T")
Vector = npt.NDArray[np.float32]

POOLINGS = ("mean", "cls", "last")
_OWN = {"1": "mean", "2": "cls", "3": "last"}  # llama_pooling_type, as files have it
_N_PIECE = 128


class Caller(Protocol):
    """Runs functions on an engine's thread; ``Worker`` is one."""

    def call(self, function: Callable[[Workshop], T]) -> T:
        """Run a function between two rounds."""
        ...


def pooling_of(model: Model, wanted: str | None = None) -> str:
    """Return how the states of a text become one vector: as wanted, or else as the model's file says.

    Raises:
        ConfigError: There is no such pooling.
        UnsupportedError: Nothing is wanted, and the model was not made for embeddings; or it scores pairs of texts.
    """
    if wanted is not None:
        if not isinstance(wanted, str) or wanted not in POOLINGS:
            msg = f"pooling must be one of {', '.join(POOLINGS)}, not {shown(wanted)}."
            raise ConfigError(msg)
        return wanted
    own = _OWN.get(model.metadata.get(f"{model.info.architecture}.pooling_type", "0"))
    if own is None:
        msg = f"{model.path.name} was not made for embeddings; say how to pool them (pooling: {', '.join(POOLINGS)})."
        raise UnsupportedError(msg)
    return own


class Embedder:
    """Makes embeddings with an engine's model. Any thread may use it; one text is read at a time.

    Args:
        worker: Owns the contexts.
        model: The model.
        config: Sizes of the engine's context, for types and threads.
        n_ctx: The most tokens of a text.
    """

    def __init__(self, worker: Caller, model: Model, config: ContextConfig, n_ctx: int) -> None:
        self._worker = worker
        self._model = model
        self._n_piece = min(_N_PIECE, config.n_ubatch, n_ctx)
        self._config = dataclasses.replace(
            config,
            n_ctx=n_ctx,
            n_batch=self._n_piece,
            n_ubatch=self._n_piece,
            n_outputs_max=self._n_piece,
            n_seq_max=1,
            n_rs_seq=0,
        )
        self._turn = threading.Lock()

    def embed(self, tokens: Sequence[int], pooling: str) -> Vector:
        """Return the embedding of a text, of length 1.

        Raises:
            UnsupportedError: The model is an encoder.
        """
        pool = Pool(pooling)
        with self._turn:
            for first in range(0, len(tokens), self._n_piece):
                piece = tokens[first : first + self._n_piece]
                pool.add(self._worker.call(functools.partial(self._read, tokens=piece, first=first)))
        return pool.vector()

    def _read(self, workshop: Workshop, tokens: Sequence[int], first: int) -> Vector:
        """Return the states of a piece of a text; called on the engine's thread."""
        context = workshop.embedding
        if context is None:
            context = workshop.embedding = self._open()
        if first == 0:
            context.memory.clear(0)
        batch = Batch()
        for position, token in enumerate(tokens, first):
            batch.add(token, position, output=True)
        context.decode(batch)
        return context.hidden.output_states()

    def _open(self) -> Context:
        context = Context(self._model, self._config)
        if context.has_memory:
            context.hidden.keep_output_states()
            return context
        context.close()
        msg = f"{self._model.path.name} is an encoder; only embeddings of models that generate are made."
        raise UnsupportedError(msg)


class Pool:
    """Turns the states of a text, which come in pieces, into one vector.

    Args:
        kind: "mean" of all states, that of the first token ("cls"), or of the "last" one.
    """

    __slots__ = ("_kind", "_sum")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sum: npt.NDArray[np.float64] | None = None

    def add(self, states: Vector) -> None:
        """Take in the states of further tokens, [n, n_embd_out], at least one."""
        if self._kind == "mean":
            part = states.sum(axis=0, dtype=np.float64)
            self._sum = part if self._sum is None else self._sum + part
        elif self._kind == "last" or self._sum is None:
            self._sum = states[-1 if self._kind == "last" else 0].astype(np.float64)

    def vector(self) -> Vector:
        """Return the vector, [n_embd_out], of length 1; a sum has the direction of the mean."""
        if self._sum is None:
            msg = "no states were added"
            raise ValueError(msg)
        length = float(np.linalg.norm(self._sum))
        return (self._sum / length if length else self._sum).astype(np.float32)
