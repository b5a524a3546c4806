"""What speculation asks of a target. ``pyspec.llama.Context`` offers it, and so do the fakes of the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pyspec.llama.batch import Batch
from pyspec.llama.memory import RollbackKind


class TargetRows(Protocol):
    """Logits rows of one decode, [n_rows, n_vocab], valid until the next one."""

    def __len__(self) -> int: ...

    def split(self, counts: Iterable[int]) -> Sequence[TargetRows]:
        """Return consecutive rows, so many each."""
        ...

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        """Return row i, [n_vocab]."""
        ...

    def argmax(self, i: int) -> int:
        """Return the best token of row i, the lowest id among equals."""
        ...

    def top_k(self, i: int, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return ids and logits of the k best, both [k]."""
        ...

    def logprobs(self, i: int, tokens: Iterable[int]) -> npt.NDArray[np.float64]:
        """Return the logarithms of the probabilities that row i gives to tokens, [k]."""
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

    def checkpoint(self, seq_id: int, *, lasting: bool = False) -> Any:
        """Save what ``trim`` cannot take back, with a ``length``; a lasting one stays good when there is another."""
        ...

    def restore(self, seq_id: int, checkpoint: Any) -> None:
        """Return to a checkpoint, dropping the positions after it."""
        ...

    def copy(self, source: int, destination: int, length: int) -> None:
        """Let an empty sequence share the first positions of another one."""
        ...

    @property
    def shares_cells(self) -> bool:
        """Whether ``copy`` takes any length, and costs nothing."""
        ...

    def remove(self, seq_id: int, begin: int, end: int) -> None:
        """Drop positions ``begin`` to ``end - 1``, or raise ``RollbackError``."""
        ...

    def shift(self, seq_id: int, begin: int, delta: int) -> None:
        """Add ``delta`` to the positions from ``begin`` on."""
        ...

    @property
    def can_shift(self) -> bool:
        """Whether positions can be shifted."""
        ...

    def reaches(self, seq_id: int, length: int) -> bool:
        """Return whether a sequence still has all that a token behind its first ``length`` positions attends to."""
        ...

    @property
    def rollback(self) -> RollbackKind:
        """How this memory rolls back."""
        ...

    @property
    def bound(self) -> int:
        """The most positions that a bounded memory can drop."""
        ...

    @property
    def consecutive(self) -> bool:
        """Whether only sequences whose numbers follow each other are computed at once."""
        ...

    @property
    def one_ubatch(self) -> bool:
        """Whether positions can only be dropped again when they were computed at once."""
        ...

    @property
    def reuses_cells(self) -> bool:
        """Whether positions can only be dropped again when nothing was computed after them, of any sequence."""
        ...


class TargetHidden(Protocol):
    """Hidden states of the last decode, for drafters that are fed by the target; one row per entry."""

    def keep_layer_inputs(self, layers: Iterable[int]) -> None:
        """Let decodes keep the inputs of layers."""
        ...

    def keep_next_n(self, which: Literal["none", "wanted", "all"]) -> None:
        """Let decodes keep the state before the output norm."""
        ...

    def layer_inputs(self, layers: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the inputs of layers side by side, [n_entries, len(layers) * n_embd]."""
        ...

    def next_n(self) -> npt.NDArray[np.float32]:
        """Return the states before the output norm, [n_entries, n_embd_out]."""
        ...


class Target(Protocol):
    """A model at work."""

    @property
    def memory(self) -> TargetMemory:
        """What it holds."""
        ...

    @property
    def hidden(self) -> TargetHidden:
        """Its hidden states."""
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
    def n_ubatch(self) -> int:
        """Tokens computed at once."""
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
        """Take the entries into memory and return the wanted rows.

        When it raises, each sequence holds what it held, or some of the entries too, or nothing: also one that has no
        entry may be emptied, but none is wrong.
        """
        ...
