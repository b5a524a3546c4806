"""The tokens of one decode."""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.errors import BatchError


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
            BatchError: ``seq_ids`` is empty.
        """
        sequences = (seq_ids,) if isinstance(seq_ids, int) else tuple(seq_ids)
        if not sequences:
            msg = "An entry of a batch must belong to at least one sequence."
            raise BatchError(msg)
        self.tokens.append(token)
        self.positions.append(position)
        self.seq_ids.append(sequences)
        self.outputs.append(bool(output))
        self.n_outputs += bool(output)

    def extend(self, tokens: Sequence[int], first_position: int, seq_id: int = 0, *, output: bool = False) -> None:
        """Append consecutive tokens of one sequence."""
        for offset, token in enumerate(tokens):
            self.add(token, first_position + offset, seq_id, output=output)

    def clear(self) -> None:
        """Remove all entries."""
        self.tokens.clear()
        self.positions.clear()
        self.seq_ids.clear()
        self.outputs.clear()
        self.n_outputs = 0
