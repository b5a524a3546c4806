"""How many snapshots of a recurrent state to keep, so that rejected tokens can be dropped without a checkpoint."""

from __future__ import annotations

import dataclasses
import logging

from pyspec.config import ContextConfig
from pyspec.drafters.registry import longest_draft
from pyspec.errors import PyspecError
from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.model import Model
from pyspec.speculation.config import Speculation

_logger = logging.getLogger(__name__)
_MOST_BYTES = 1 << 30  # for the snapshots of all sequences together


def with_snapshots(model: Model, config: ContextConfig, speculation: Speculation) -> ContextConfig:
    """Ask for as many snapshots as the longest draft has tokens, as far as memory allows.

    Longer drafts still work: beyond the snapshots a checkpoint is restored. Models without a recurrent state, and
    recurrent ones that llama.cpp keeps no snapshots for, are left as they are.

    Args:
        model: The target's model.
        config: Sizes of its context; a number of snapshots that is given already stays.
        speculation: Which drafters propose; its ``n_snapshots`` is obeyed.
    """
    stateful = model.info.is_recurrent or model.info.is_hybrid
    if config.n_rs_seq or not speculation.names or not stateful:
        return config
    wanted = speculation.n_snapshots
    if wanted is None:
        longest = max(longest_draft(name, speculation.options.get(name, {})) for name in speculation.names)
        wanted = min(longest, _MOST_BYTES // (_state_bytes(model, config) * config.n_seq_max))
        if wanted < longest:
            _logger.info("Memory allows %d snapshots for drafts of up to %d tokens.", wanted, longest)
    # The newest n_rs_seq + 1 tokens of a sequence are computed at once, with one more at least.
    return dataclasses.replace(config, n_rs_seq=max(0, min(wanted, config.n_ubatch - 2)))


def _state_bytes(model: Model, config: ContextConfig) -> int:
    """Return the size of one sequence's recurrent state, found by making one."""
    small = dataclasses.replace(
        config, n_ctx=min(config.n_ctx, 256), n_batch=1, n_ubatch=1, n_seq_max=1, n_outputs_max=1
    )
    try:
        with Context(model, small) as context:
            batch = Batch()
            batch.add(0, 0)
            context.decode(batch)
            return max(1, context.memory.n_bytes(0, checkpoint=True))
    except PyspecError:  # the context itself will say what is wrong
        return 1
