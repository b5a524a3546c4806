"""What llama.cpp would take and die of, or compute nonsense with: refused before it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyspec.config import ContextConfig
from pyspec.errors import BatchError, ConfigError, ContextCreateError, PositionError, UnsupportedError
from pyspec.llama.batch import NO_TOKEN, Batch, checked_rows
from pyspec.llama.model import Model

if TYPE_CHECKING:
    from pyspec.llama.context import Context

ASSISTANT, LENDER = "gemma4-assistant", "gemma4"  # a next-n head that reads its target's memory, and that target


def refuse_what_crashes(model: Model, config: ContextConfig, target: Context | None, *, next_n: bool) -> None:
    """Refuse a context that could not be used.

    Raises:
        ContextCreateError: A head without its target, or a file of next-n layers as if it were a model.
        ConfigError: More snapshots than are computed at once, or a shared memory that is laid out differently.
        UnsupportedError, PositionError: See ``_refuse_to_lend``.
    """
    name = model.path.name
    if model.is_head and target is None:
        msg = f"{name} is no language model by itself but a head that drafts for one; it is made with its target."
        raise ContextCreateError(msg)
    if not model.has_trunk and not next_n:
        msg = f"{name} has next-n layers only; make its context with next_n=True, or draft with draft-mtp."
        raise ContextCreateError(msg)
    if next_n and model.info.n_layer_nextn == 0:
        msg = f"{name} has no next-n layers."
        raise ContextCreateError(msg)
    _refuse_snapshots(model, config)
    if target is not None and model.info.architecture == ASSISTANT:
        _refuse_to_lend(model, config, target)


def _refuse_snapshots(model: Model, config: ContextConfig) -> None:
    n_ctx = config.n_ctx or model.info.n_ctx_train
    at_once = min(config.n_ubatch, config.n_batch, n_ctx)
    if (model.info.is_recurrent or model.info.is_hybrid) and config.n_rs_seq and config.n_rs_seq + 1 >= at_once:
        msg = (
            f"{config.n_rs_seq} snapshots (n_rs_seq) need a physical batch of at least {config.n_rs_seq + 2} tokens; "
            f"n_ubatch, n_batch and n_ctx allow {at_once}."
        )
        raise ConfigError(msg)


def _refuse_to_lend(model: Model, config: ContextConfig, target: Context) -> None:
    """Refuse a target whose memory this model cannot read."""
    if target.model.info.architecture != LENDER:
        msg = f"{model.path.name} reads the memory of a {LENDER} target; {target.model.path.name} is another model."
        raise UnsupportedError(msg)
    for name in ("n_seq_max", "kv_unified", "flash_attn"):
        own, lent = getattr(config, name), getattr(target.config, name)
        if own != lent:
            msg = f"{model.path.name} reads the target's memory, so {name} must be the target's {lent!r}, not {own!r}."
            raise ConfigError(msg)
    if any(target.memory.length(seq_id) for seq_id in range(target.n_seq_max)):
        msg = f"The target's memory must be empty when {model.path.name} begins to share it."
        raise PositionError(msg)


class RowRule(NamedTuple):
    """Which rows of floats the entries of a model's batches may have.

    Attributes:
        width: Their width.
        beside_token: They stand beside a token, and no entry goes without; else in place of one.
    """

    width: int
    beside_token: bool

    def check(self, batch: Batch, model_name: str) -> None:
        """Refuse a batch with other rows.

        Raises:
            BatchError: The message tells what the model reads.
        """
        if not batch.states:
            if self.beside_token:
                msg = f"{model_name} reads a row of width {self.width} beside each token; this batch has none."
                raise BatchError(msg)
            return
        rows = checked_rows(batch.states)
        width = len(rows[0])
        alone = batch.tokens.count(NO_TOKEN)
        if width != self.width or alone != (0 if self.beside_token else len(batch)):
            where = "beside each token" if self.beside_token else "in place of tokens"
            msg = (
                f"{model_name} reads rows of width {self.width} {where}; found width {width}, {alone} without a token."
            )
            raise BatchError(msg)
        odd = next((i for i, row in enumerate(rows) if not np.isfinite(row).all()), None)
        if odd is not None and not self.beside_token:
            # What memory keeps of it would turn other sequences of the same buffer into no numbers, too.
            msg = f"The row of entry {odd} has values that are no finite numbers."
            raise BatchError(msg)


def row_rule(model: Model, *, next_n: bool) -> RowRule:
    """Return which rows a model reads."""
    info = model.info
    if next_n or info.architecture == ASSISTANT:
        return RowRule(info.n_embd_out, beside_token=True)
    if info.architecture == "eagle3":
        return RowRule(info.n_embd, beside_token=True)
    if info.architecture == "dflash":
        return RowRule(len(info.target_layers) * info.n_embd, beside_token=False)
    return RowRule(info.n_embd_inp, beside_token=False)
