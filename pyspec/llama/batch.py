"""The tokens of one decode."""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.config import MAX_INT32, as_index, as_list, require_bool, require_int
from pyspec.errors import BatchError, TokenError


class Batch:
    """Entries to decode together; each is one token at one position of one or several sequences.

    What the entries may hold is checked when they are decoded, because only the context knows its limits.

    Attributes:
        tokens: Token id per entry.
        positions: Position per entry.
        seq_ids: Sequences per entry.
        outputs: Whether a logits row is wanted, per entry.
        n_outputs: Number of rows wanted.
    """

    __slots__ = ("n_outputs", "outputs", "positions", "seq_ids", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.seq_ids: list[tuple[int, ...]] = []
        self.outputs: list[bool] = []
        self.n_outputs = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, position: int, seq_ids: int | Sequence[int] = 0, *, output: bool = False) -> None:
        """Append an entry.

        Args:
            token: Token id.
            position: Its position in the sequences.
            seq_ids: The sequence, or several that share the entry.
            output: Whether its logits row is wanted.

        Raises:
            BatchError: ``seq_ids`` is empty, or neither a number nor several.
        """
        if output is not True and output is not False:
            require_bool("output", output)
        sequences = (seq_ids,) if type(seq_ids) is int else _several(seq_ids)
        if not sequences:
            msg = f"An entry of a batch must belong to at least one sequence; found {seq_ids!r}."
            raise BatchError(msg)
        self.tokens.append(token if type(token) is int else _plain(token))
        self.positions.append(position if type(position) is int else _plain(position))
        self.seq_ids.append(sequences)
        self.outputs.append(output)
        self.n_outputs += output

    def extend(self, tokens: Sequence[int], first_position: int, seq_id: int = 0, *, output: bool = False) -> None:
        """Append consecutive tokens of one sequence."""
        given = as_list(tokens)
        if given is None:
            msg = f"tokens must be a sequence of token ids, not {tokens!r}."
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
        self.n_outputs = 0


def _plain(value: int) -> int:
    """Turn numpy's integers into Python's; what is none stays for the context to refuse."""
    number = as_index(value)
    return value if number is None else number


def _several(seq_ids: object) -> tuple[int, ...]:
    single = as_index(seq_ids)
    return (single,) if single is not None else tuple(_plain(seq_id) for seq_id in as_list(seq_ids) or ())
