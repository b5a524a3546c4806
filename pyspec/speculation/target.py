"""What speculation asks of a target. ``pyspec.llama.Context`` offers it, and so do the fakes of the tests."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyspec.llama.batch import Batch
from pyspec.llama.memory import RollbackKind


class TargetRows(Protocol):
    """Logits rows of one decode, [n_rows, n_vocab], valid until the next one."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> TargetRows: ...

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        """Return row i, [n_vocab]."""
        ...

    def argmax(self, i: int) -> int:
        """Return the best token of row i, the lowest id among equals."""
        ...

    def top_k(self, i: int, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return ids and logits of the k best, both [k]."""
        ...


class TargetMemory(Protocol):
    """Which positions of which sequence are held."""

    def length(self, seq_id: int) -> int:
        """Return the number of positions of a sequence."""
        ...

    def trim(self, seq_id: int, length: int) -> None:
        """Drop positions from ``length`` on, or raise ``RollbackError``."""
        ...

    def clear(self, seq_id: int | None = None) -> None:
        """Drop a whole sequence, or all; never fails."""
        ...

    @property
    def rollback(self) -> RollbackKind:
        """How this memory rolls back."""
        ...


class Target(Protocol):
    """A model at work."""

    @property
    def memory(self) -> TargetMemory:
        """What it holds."""
        ...

    @property
    def n_ctx_seq(self) -> int:
        """Tokens that one sequence may hold."""
        ...

    @property
    def n_batch(self) -> int:
        """Tokens in one decode."""
        ...

    @property
    def n_outputs_max(self) -> int:
        """Logits rows in one decode."""
        ...

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary."""
        ...

    def decode(self, batch: Batch) -> TargetRows:
        """Take the entries into memory and return the wanted rows."""
        ...
