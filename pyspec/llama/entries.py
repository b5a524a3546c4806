"""What a context's decode may be given: checked for each token, so in one pass."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from pyspec._native import contexts as native
from pyspec.config import shown
from pyspec.errors import (
    BatchError,
    ContextFullError,
    PositionError,
    SequenceError,
    TokenError,
    UnsupportedError,
)
from pyspec.llama.batch import NO_TOKEN, Batch

if TYPE_CHECKING:
    from pyspec.llama.context import Context


def plain_ends(context: Context, batch: Batch) -> dict[int, int] | None:
    """Recognise tokens that continue one sequence each, because that is what runs most often.

    Returns:
        What ``checked_ends`` would; None when there is more to look at, or something is wrong.
    """
    if type(batch) is not Batch or context.reads_rows_beside_tokens or not _agrees(batch) or batch.states:
        return None
    fits = 1 <= len(batch.tokens) <= context.n_batch and batch.n_outputs <= context.n_outputs_max
    return _plain_entries(context, batch) if fits else None


def _agrees(batch: Batch) -> bool:
    """Return whether the parts of a batch are lists of one length, and its flags are as many as it says."""
    for part in (batch.tokens, batch.positions, batch.seq_ids, batch.outputs, batch.states):
        if type(part) is not list:
            return False
    n_entries, n_outputs = len(batch.tokens), 0
    for output in batch.outputs:
        if output is not True and output is not False:
            return False
        n_outputs += output
    if batch.states and len(batch.states) != n_entries:
        return False
    same = n_entries == len(batch.positions) == len(batch.seq_ids) == len(batch.outputs)
    return same and type(batch.n_outputs) is int and batch.n_outputs == n_outputs


def _disagreement(batch: Batch) -> str:
    """Say what is wrong with a batch that does not agree."""
    parts = {name: getattr(batch, name) for name in ("tokens", "positions", "seq_ids", "outputs", "states")}
    for name, part in parts.items():
        if type(part) is not list:
            return f"{name} of a batch must be a list, not {type(part).__name__}"
    for i, output in enumerate(batch.outputs):
        if output is not True and output is not False:
            return f"outputs[{i}] of a batch must be True or False, not {shown(output)}"
    lengths = {name: len(part) for name, part in parts.items() if part or name != "states"}
    if len({*lengths.values()}) > 1:
        found = ", ".join(f"{length} {name}" for name, length in lengths.items())
        return f"The lists of a batch must be equally long (states may be empty), not {found}"
    wanted = sum(batch.outputs)
    return f"n_outputs of a batch must be {wanted}, the rows that outputs wants, not {shown(batch.n_outputs)}"


def _plain_entries(context: Context, batch: Batch) -> dict[int, int] | None:
    if context.borrows_memory or not context.has_memory:
        return None
    n_vocab, room = context.n_vocab, context.n_ctx_seq
    known = context.handle.lengths
    ends: dict[int, int] = {}
    for i, token in enumerate(batch.tokens):
        position, sequences = batch.positions[i], batch.seq_ids[i]
        if type(token) is not int or type(position) is not int or not 0 <= token < n_vocab or position >= room:
            return None
        if type(sequences) is not tuple or len(sequences) != 1:
            return None
        seq_id = sequences[0]
        if type(seq_id) is not int or (ends[seq_id] if seq_id in ends else known.get(seq_id)) != position:
            return None
        ends[seq_id] = position + 1
    return ends


def held(context: Context, seq_id: int) -> int:
    """Return how many positions a sequence of a context holds."""
    if not context.has_memory:
        return 0
    known = None if context.borrows_memory else context.handle.lengths.get(seq_id)
    return native.memory_range(context.handle, seq_id)[1] + 1 if known is None else known


def undoable(batch: Batch, n_ubatch: int, n_snapshots: int, *, consecutive: bool) -> dict[int, int]:
    """Return how many of the positions of a batch a memory with snapshots of its states can drop again, per sequence.

    The state before each entry but the first one is kept, of what was computed at once; then others may have moved the
    sequence's state on without its snapshots.

    Args:
        batch: It was decoded.
        n_ubatch: Entries that are computed at once.
        n_snapshots: The most states that are kept.
        consecutive: Only sequences whose numbers follow each other are computed at once.
    """
    counts = Counter(itertools.chain.from_iterable(batch.seq_ids))
    if len(counts) == 1:
        (seq_id,) = counts
        return {seq_id: min((len(batch) - 1) % n_ubatch, n_snapshots)}
    numbers = list(counts)
    together = len(set(counts.values())) == 1 and counts.total() == len(batch) <= n_ubatch
    if not together or (consecutive and numbers != [*range(numbers[0], numbers[0] + len(numbers))]):
        return {}
    return {seq_id: min(count - 1, n_snapshots) for seq_id, count in counts.items()}


def checked_ends(context: Context, batch: Batch) -> dict[int, int]:
    """Return how many positions each of a batch's sequences will hold.

    Raises:
        BatchError, TokenError, SequenceError, PositionError, ContextFullError: See ``Context.decode``.
        UnsupportedError: The model cannot generate.
    """
    if not isinstance(batch, Batch):
        msg = f"batch must be a Batch, not {type(batch).__name__}."
        raise BatchError(msg)
    if not _agrees(batch):
        msg = f"{_disagreement(batch)}; fill a batch with add()."
        raise BatchError(msg)
    n_entries = len(batch.tokens)
    if not 1 <= n_entries <= context.n_batch:
        msg = f"A batch must have 1 to {context.n_batch} entries (n_batch), not {n_entries}."
        raise BatchError(msg)
    context.row_rule.check(batch, model_name=context.model.path.name)
    if batch.n_outputs > context.n_outputs_max:
        msg = f"{batch.n_outputs} logits rows are wanted; at most {context.n_outputs_max} fit (n_outputs_max)."
        raise BatchError(msg)
    if not context.model.info.has_decoder:
        msg = f"{context.model.path.name} is an encoder; it cannot generate."
        raise UnsupportedError(msg)
    return _checked_entries(context, batch)


def _checked_entries(context: Context, batch: Batch) -> dict[int, int]:
    """Check each token, and that each sequence goes on where it ends."""
    n_vocab = context.n_vocab
    ends: dict[int, int] = {}
    for i, token in enumerate(batch.tokens):
        legal = type(token) is int and (0 <= token < n_vocab or (token == NO_TOKEN and bool(batch.states)))
        if not legal:
            msg = f"Entry {i} has the token {_typed(token)}; the vocabulary has the ids 0 to {n_vocab - 1}."
            raise TokenError(msg)
        position = batch.positions[i]
        for seq_id in _checked_sequences(context, i, batch.seq_ids[i]):
            end = ends[seq_id] if seq_id in ends else held(context, seq_id)
            if type(position) is not int or position != end:
                msg = f"Entry {i} is at position {_typed(position)} of sequence {seq_id}; its next position is {end}."
                raise PositionError(msg)
            if not context.borrows_memory:  # there, entries are read beside what the target holds, and not kept
                ends[seq_id] = end + 1
    for seq_id, end in ends.items():
        if end > context.n_ctx_seq:
            msg = f"Sequence {seq_id} would hold {end} tokens; the context has room for {context.n_ctx_seq}."
            raise ContextFullError(msg)
    return ends


def _checked_sequences(context: Context, i: int, sequences: object) -> tuple[int, ...]:
    if not isinstance(sequences, tuple) or not sequences:
        msg = f"Entry {i} must belong to a tuple of sequences, at least one; found {shown(sequences)}."
        raise BatchError(msg)
    for seq_id in sequences:
        if type(seq_id) is not int or not 0 <= seq_id < context.n_seq_max:
            msg = f"Entry {i} is of sequence {_typed(seq_id)}; this context has 0 to {context.n_seq_max - 1}."
            raise SequenceError(msg)
    if len(set(sequences)) < len(sequences):
        msg = f"Entry {i} names a sequence twice: {shown(sequences)}."
        raise BatchError(msg)
    if len(sequences) > 1 and context.has_memory:
        _refuse_to_share(context, i)
    return sequences


def _refuse_to_share(context: Context, i: int) -> None:
    """Refuse an entry of several sequences where each has a memory of its own."""
    if context.model.info.is_recurrent:
        msg = f"Entry {i} is of several sequences, but {context.model.path.name} keeps a state of its own for each."
        raise UnsupportedError(msg)
    if not context.config.kv_unified:
        msg = f"Entry {i} is of several sequences, which takes a memory in one buffer: ContextConfig(kv_unified=True)."
        raise UnsupportedError(msg)


def _typed(value: object) -> str:
    """Return a value as a message quotes it, with its type unless that is right."""
    return shown(value) if type(value) is int else f"{shown(value)} ({type(value).__name__}, not int)"
