"""The tokens of one decode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyspec.config import MAX_INT32, as_index, as_list, require_bool, require_int, shown
from pyspec.errors import BatchError, TokenError

NO_TOKEN = -1
"""The id of an entry that is a row of floats instead of a token."""


class Batch:
    """Entries to decode together; each is one token at one position of one or several sequences.

    All entries of a batch may have a row of floats, [width], beside the token (draft models that are fed hidden
    states) or in its place (embeddings).

    What the entries may hold is checked when they are decoded, because only the context knows its limits.

    Attributes:
        tokens: Token id per entry.
        positions: Position per entry.
        seq_ids: Sequences per entry.
        outputs: Whether a logits row is wanted, per entry.
        states: The row of floats per entry; empty when there are none.
        n_outputs: Number of rows wanted.
    """

    __slots__ = ("n_outputs", "outputs", "positions", "seq_ids", "states", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.seq_ids: list[tuple[int, ...]] = []
        self.outputs: list[bool] = []
        self.states: list[npt.NDArray[np.float32]] = []
        self.n_outputs = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self,
        token: int,
        position: int,
        seq_ids: int | Sequence[int] = 0,
        *,
        output: bool = False,
        state: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Append an entry.

        Args:
            token: Token id, or ``NO_TOKEN`` when ``state`` stands in its place.
            position: Its position in the sequences.
            seq_ids: The sequence, or several that share the entry.
            output: Whether its logits row is wanted.
            state: A row of floats, [width]; all entries have one or none has.

        Raises:
            BatchError: ``seq_ids`` is empty, or neither a number nor several; or ``state`` is no row of floats.
        """
        if output is not True and output is not False:
            require_bool("output", output)
        sequences = (seq_ids,) if type(seq_ids) is int else _several(seq_ids)
        if not sequences:
            msg = f"seq_ids must be the number of a sequence or several in order, not {shown(seq_ids)}."
            raise BatchError(msg)
        row = None if state is None else _row(state)
        self.tokens.append(token if type(token) is int else _plain(token))
        self.positions.append(position if type(position) is int else _plain(position))
        self.seq_ids.append(sequences)
        self.outputs.append(output)
        self.n_outputs += output
        if row is not None:
            self.states.append(row)

    def extend(self, tokens: Sequence[int], first_position: int, seq_id: int = 0, *, output: bool = False) -> None:
        """Append consecutive tokens of one sequence."""
        given = as_list(tokens)
        if given is None:
            msg = f"tokens must be a sequence of token ids, not {shown(tokens)}."
            raise TokenError(msg)
        first_position = require_int("first_position", first_position, 0, MAX_INT32)
        for offset, token in enumerate(given):
            self.add(token, first_position + offset, seq_id, output=output)

    def clear(self) -> None:
        """Remove all entries."""
        self.tokens.clear()
        self.positions.clear()
        self.seq_ids.clear()
        self.outputs.clear()
        self.states.clear()
        self.n_outputs = 0


def _plain(value: int) -> int:
    """Turn numpy's integers into Python's; what is none stays for the context to refuse."""
    number = as_index(value)
    return value if number is None else number


def _several(seq_ids: object) -> tuple[int, ...]:
    single = as_index(seq_ids)
    return (single,) if single is not None else tuple(_plain(seq_id) for seq_id in as_list(seq_ids) or ())


def checked_rows(rows: object) -> list[npt.NDArray[np.float32]]:
    """Return rows of floats of the same width, each [width].

    Raises:
        BatchError: They are not.
    """
    checked = [_row(row) for row in as_list(rows) or ()]
    if len({len(row) for row in checked}) > 1:
        msg = "Rows of a batch must have the same width."
        raise BatchError(msg)
    return checked


def _row(state: object) -> npt.NDArray[np.float32]:
    try:
        row = np.asarray(state, np.float32)
    except (TypeError, ValueError) as error:
        msg = f"state must be a row of floats, not {type(state).__name__}: {error}."
        raise BatchError(msg) from None
    if row.ndim != 1 or not row.size:
        msg = f"state must be a row of floats, [width]; found the shape {row.shape}."
        raise BatchError(msg)
    return row
