"""A context: a model at work, with its memory and its logits."""

from __future__ import annotations

import os
import weakref
from types import TracebackType

import numpy as np
import numpy.typing as npt

from pyspec._native import contexts as native
from pyspec._native.devices import devices
from pyspec.config import ContextConfig, default_threads, require_bool, require_int
from pyspec.errors import (
    BatchError,
    ConfigError,
    ContextCreateError,
    ContextFullError,
    LifetimeError,
    PyspecError,
    UnsupportedError,
)
from pyspec.llama.batch import NO_TOKEN, Batch, checked_rows
from pyspec.llama.entries import checked_ends, held, plain_ends, undoable
from pyspec.llama.hidden import HiddenStates
from pyspec.llama.limits import refuse_what_crashes, row_rule
from pyspec.llama.memory import Memory, RollbackKind
from pyspec.llama.model import Model
from pyspec.llama.rows import Rows

_PADDING = 256  # cells
_BORROWS_MEMORY = 2
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}


class Context:
    """Memory and computation for the sequences of one model. Belongs to the thread that creates it.

    Args:
        model: The model; it must stay open.
        config: Sizes and types.
        target: The context that a draft model drafts for. They compute in turns, with the same threads; some draft
            models borrow its weights or memory. It must stay open.
        next_n: Run the model's next-n (MTP) layers instead of the model.

    Raises:
        ContextCreateError: It does not fit, or llama.cpp refused it; the message has the reason.

    Example:
        >>> with pyspec.Context(model, pyspec.ContextConfig(n_ctx=512)) as context:  # doctest: +SKIP
        ...     batch = pyspec.Batch()
        ...     batch.add(token, position=0, output=True)
        ...     best = context.decode(batch).argmax(0)
    """

    def __init__(
        self,
        model: Model,
        config: ContextConfig | None = None,
        *,
        target: Context | None = None,
        next_n: bool = False,
    ) -> None:
        if not isinstance(model, Model):
            msg = f"model must be a Model, not {type(model).__name__}."
            raise ConfigError(msg)
        self.config = config if config is not None else ContextConfig()
        if not isinstance(self.config, ContextConfig):
            msg = f"config must be a ContextConfig, not {type(self.config).__name__}."
            raise ConfigError(msg)
        if target is not None and not isinstance(target, Context):
            msg = f"target must be a Context, not {type(target).__name__}."
            raise ConfigError(msg)
        if model.config.vocab_only:
            msg = "This model was loaded with vocab_only; load it again without to make a context."
            raise ContextCreateError(msg)
        refuse_what_crashes(model, self.config, target, next_n=require_bool("next_n", next_n))
        self.model = model
        self.handle: native.ContextHandle = native.create(
            model.handle,
            None if target is None else target.handle,
            next_n=next_n,
            **_native_params(model, self.config),
        )
        info = native.info(self.handle)
        # llama.cpp rounds sizes up; what was asked for is the limit all the same.
        asked = self.config.n_ctx or info.n_ctx
        self.n_ctx: int = min(info.n_ctx, asked)
        self.n_ctx_seq: int = min(info.n_ctx_seq, _part(self.config, asked, info.n_seq_max))
        self.n_batch, self.n_ubatch = int(info.n_batch), int(info.n_ubatch)
        self.n_seq_max: int = info.n_seq_max
        self.n_rs_seq: int = info.n_rs_seq
        self.n_vocab: int = info.n_vocab
        self.n_outputs_max = self.config.n_outputs_max or self.n_batch
        self.has_memory = bool(info.has_memory)
        self.borrows_memory = info.borrows == _BORROWS_MEMORY
        self.on_device = _computes_on_device(model, self.config)  # checkpoints stay there
        self.selecting: set[int] = set()  # sequences whose tokens the device selects
        self.n_decodes: int = 0
        self.rollback_kind: RollbackKind | None = None  # found by Memory.rollback
        self.undoable: dict[int, int] = {}  # positions that a bounded memory can drop now, per sequence
        self.row_rule = row_rule(model, next_n=next_n)
        self.reads_rows_beside_tokens = self.row_rule.beside_token
        self._abort = native.AbortFlag(self.handle)
        self._n_rows_reserved = self.n_seq_max
        self._views: list[weakref.ref[npt.NDArray[np.float32]]] = []  # of the native buffer, as far as they are alive
        if target is not None and self.borrows_memory:
            target.handle.lengths.clear()  # llama.cpp emptied what is shared
        model.register(self)

    @property
    def memory(self) -> Memory:
        """The memory. It refers to the context and not the other way round, so a forgotten context goes at once."""
        return Memory(self)

    @property
    def hidden(self) -> HiddenStates:
        """What the last decode kept of the layers' states."""
        return HiddenStates(self)

    @property
    def fingerprint(self) -> str:
        """Names what saved state must agree on: model and layout of the memory."""
        info, config = self.model.info, self.config
        layout = f"{config.type_k}/{config.type_v}, flash {config.flash_attn}, full swa {config.swa_full}"
        layout += ", slots in one buffer" if config.kv_unified else f", {self.n_seq_max} slots"
        layout += f", {self.n_rs_seq} snapshots"
        layout += f", rope {config.rope_freq_base:g} {config.rope_freq_scale:g}"
        return f"{info.description} ({self.model.identity}; {layout})"

    def decode(self, batch: Batch) -> Rows:
        """Compute a batch: its entries enter memory, and the wanted logits rows come back.

        Args:
            batch: At most ``n_batch`` entries; those of a sequence continue it without gaps.

        Returns:
            The wanted rows in batch order, valid until the next decode.

        Raises:
            BatchError: Empty or too long, or more rows wanted than ``n_outputs_max``.
            TokenError, SequenceError, PositionError: An entry is wrong.
            ContextFullError: There is no room. Memory is unchanged.
            DecodeAbortedError, DecodeError: The computation stopped; ask ``memory`` how far it came. Where it keeps
                recurrent states it is empty, all sequences of it.
        """
        # First: a closed context has no positions to compare with, and what another thread asks leaves the rows alone.
        self.handle.require_usable()
        ends = plain_ends(self, batch)
        if ends is None:
            ends = checked_ends(self, batch)
        if moves_rows := batch.n_outputs > self._n_rows_reserved:
            self._forbid_moving_rows(batch.n_outputs)
        self.n_decodes += 1
        self.undoable.clear()
        try:
            best = native.decode(self.handle, batch.tokens, batch.positions, batch.seq_ids, batch.outputs, batch.states)
            lengths = self.handle.lengths
            for seq_id in ends:
                lengths[seq_id] = ends[seq_id]
        except BaseException as error:
            self.handle.lengths.clear()  # first: also when it was an interrupt, wherever that came
            computed = not isinstance(error, (BatchError, ContextFullError))
            if computed and isinstance(error, PyspecError):
                self.memory.clear_if_in_doubt()
            raise
        if self.n_rs_seq:
            self.undoable = undoable(batch, self.n_ubatch, self.n_rs_seq, consecutive=self.memory.consecutive)
        if moves_rows:
            self._n_rows_reserved = batch.n_outputs
        return Rows(self, best, self.n_decodes, 0, batch.n_outputs)

    def encode(self, rows: npt.NDArray[np.float32]) -> None:
        """Run the encoder of a draft model over rows of features; ``hidden.next_n()`` then has its answers.

        Args:
            rows: At most ``n_ubatch`` rows, [n, width].

        Raises:
            BatchError: Too many rows, or rows of the wrong width.
            DecodeError: The computation failed.
        """
        if self.model.info.architecture not in ("eagle3", "dflash"):
            msg = f"{self.model.path.name} has no encoder for a target's features."
            raise UnsupportedError(msg)
        self.handle.require_usable()
        states = checked_rows(rows)
        count = len(states)
        if not 1 <= count <= self.n_ubatch:
            msg = f"An encoder takes 1 to {self.n_ubatch} rows (n_ubatch), not {count}."
            raise BatchError(msg)
        self.n_decodes += 1
        first = held(self, 0)  # llama.cpp wants positions that could follow, and does not use them
        nothing, positions = [NO_TOKEN] * count, range(first, first + count)
        try:
            native.decode(self.handle, nothing, positions, [(0,)] * count, [True] * count, states, encode=True)
        except BaseException:
            self.handle.lengths.clear()
            raise

    def request_abort(self, *, value: bool = True) -> None:
        """Ask the decode in progress to stop, or the next one, and all after it until the request is taken back.

        Any thread may call this.

        Args:
            value: False takes the request back.
        """
        self._abort.set(value=require_bool("value", value))

    def set_threads(self, n_threads: int, n_threads_batch: int | None = None) -> None:
        """Change the number of threads for few and for many tokens. What a larger number adds stays until ``close``."""
        few = require_int("n_threads", n_threads, 1, 512)
        many = few if n_threads_batch is None else require_int("n_threads_batch", n_threads_batch, 1, 512)
        native.set_threads(self.handle, few, many)

    def logits_view(self) -> npt.NDArray[np.float32]:
        """Return all rows of the last decode as a read-only view, [n_rows, n_vocab]; see ``Rows``.

        Raises:
            UnsupportedError: The device selects tokens; whole rows never leave it.
        """
        if self.selecting:
            msg = "The device selects this context's tokens; its logits rows are not here. Use argmax() or top_k()."
            raise UnsupportedError(msg)
        view = native.logits(self.handle, self.n_vocab)
        self._views = [other for other in self._views if other() is not None]
        self._views.append(weakref.ref(view))
        return view

    def close(self) -> None:
        """Free the context. May be called again."""
        self.handle.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self.handle.closed

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        size = f"{self.n_ctx} tokens, {self.n_seq_max} sequences"
        return f"<Context of {self.model.path.name}: {size}{', closed' if self.closed else ''}>"

    def rows_may_move(self) -> None:
        """Note that the next decode lays out its buffer anew, whatever the number of rows."""
        self._n_rows_reserved = 0

    def _forbid_moving_rows(self, n_rows: int) -> None:
        """A decode with more rows than ever before moves the buffer, which would leave views dangling."""
        if any(view() is not None for view in self._views):
            msg = (
                f"This decode wants {n_rows} logits rows, more than before, which moves the buffer under arrays "
                f"taken from an earlier decode. Drop or copy these arrays first."
            )
            raise LifetimeError(msg)

    def __copy__(self) -> Context:
        msg = "A context cannot be copied; make another one of the same model, or save its state."
        raise TypeError(msg)


def _computes_on_device(model: Model, config: ContextConfig) -> bool:
    """Return whether memory lies on a device of its own."""
    offloads = model.config.n_gpu_layers != 0 and config.offload_kqv
    return offloads and any(device.kind == "gpu" for device in devices())


def _native_params(model: Model, config: ContextConfig) -> dict[str, object]:
    n_ctx = config.n_ctx or model.info.n_ctx_train
    n_rows = config.n_outputs_max or min(config.n_batch, n_ctx)
    if config.n_seq_max > n_rows:
        msg = (
            f"{config.n_seq_max} sequences (n_seq_max) want a logits row each, but a decode has room for {n_rows}; "
            f"use a larger n_outputs_max, n_batch or n_ctx."
        )
        raise ConfigError(msg)
    _refuse_impossible_size(model, config, n_ctx)
    n_threads = config.n_threads or default_threads()
    return {
        "n_ctx": n_ctx,
        "n_batch": config.n_batch,
        "n_ubatch": config.n_ubatch,
        "n_seq_max": config.n_seq_max,
        "n_rs_seq": config.n_rs_seq,
        "n_outputs_max": config.n_outputs_max,
        "n_outputs_max_per_seq": 0,
        "n_threads": n_threads,
        "n_threads_batch": config.n_threads_batch or n_threads,
        "flash_attn": _FLASH_ATTN[config.flash_attn],
        "type_k": native.type_id(config.type_k),
        "type_v": native.type_id(config.type_v),
        "offload_kqv": config.offload_kqv,
        "op_offload": config.op_offload,
        "swa_full": config.swa_full,
        "kv_unified": bool(config.kv_unified),
        "rope_freq_base": config.rope_freq_base,
        "rope_freq_scale": config.rope_freq_scale,
    }


def _part(config: ContextConfig, n_ctx: int, n_sequences: int) -> int:
    """Return how many of the tokens one sequence may have."""
    return min(n_ctx, config.n_ctx_seq or n_ctx) if config.kv_unified else n_ctx // n_sequences


def _refuse_impossible_size(model: Model, config: ContextConfig, n_ctx: int) -> None:
    """Refuse a memory larger than the machine: the system would end the process instead of failing the call."""
    info = model.info
    if info.is_recurrent or not info.n_head:
        return
    bytes_per_value = 1 if config.type_k.startswith(("q", "iq")) else 2
    head_size = int(model.metadata.get(f"{info.architecture}.attention.key_length", info.n_embd // info.n_head))
    per_token = 2 * info.n_layer * head_size * max(info.n_head_kv, 0) * bytes_per_value
    padded = n_ctx if config.kv_unified else max(n_ctx, _PADDING * config.n_seq_max)  # each buffer is rounded up
    wanted = per_token * padded
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return
    if not info.is_hybrid and wanted > installed:
        msg = (
            f"A context of {padded} tokens needs about {wanted >> 20} MiB of memory; "
            f"this machine has {installed >> 20} MiB. Use a smaller n_ctx."
        )
        raise ContextCreateError(msg)
