"""Whether a target hands out the hidden states that a drafter reads. llama.cpp does not tell, so it is tried."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pyspec.config import ContextConfig
from pyspec.drafters.registry import Resources
from pyspec.errors import ConfigError, NativeError, UnsupportedError
from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.model import Model

_known: dict[tuple[str, bool], bool] = {}


def require_layer_inputs(resources: Resources, layers: Sequence[int], drafter: str) -> None:
    """Refuse a target whose decodes cannot keep the inputs of these layers.

    Raises:
        UnsupportedError: There is no such layer, or this architecture does not hand its inputs out.
    """
    model = resources.target_model
    n_layer = model.info.n_layer
    outside = [layer for layer in layers if not 0 <= layer <= n_layer]
    if outside:
        msg = f"{drafter} reads the input of layer {outside[0]}; {model.path.name} has the layers 0 to {n_layer - 1}."
        raise UnsupportedError(msg)
    if not all(_hands_out(model, last=last) for last in {layer == n_layer for layer in layers}):
        what = f"the output of layer {n_layer - 1}" if n_layer in layers else "the inputs of its layers"
        msg = (
            f"{drafter} reads {what} (layers {', '.join(map(str, layers))} in its file), which llama.cpp does not hand "
            f"out for {model.path.name} ({model.info.architecture})."
        )
        raise UnsupportedError(msg)


def _hands_out(model: Model, *, last: bool) -> bool:
    """Return whether decodes of an architecture can keep layer inputs, or the last layer's output.

    The answer is remembered, because a trial that fails leaves a broken context behind, which is never freed.
    """
    key = model.info.architecture, last
    if key not in _known:
        layer = model.info.n_layer if last else 0
        context = _small(model)
        try:
            context.hidden.keep_layer_inputs([layer])
            _decode_one(context)
            context.hidden.layer_inputs([layer])
            _known[key] = True
        except (NativeError, ConfigError):
            _known[key] = False
        finally:
            context.close()
    return _known[key]


def require_next_n_rows(resources: Resources, drafter: str) -> None:
    """Refuse a target whose decodes do not keep the state before the output norm.

    Raises:
        UnsupportedError: This architecture does not hand it out.
    """
    model = resources.target_model
    with _small(model) as context:
        context.hidden.keep_next_n("all")
        _decode_one(context)
        context.hidden.fill_next_n(math.nan)  # what nobody writes stays like this
        _decode_one(context)
        if np.isnan(context.hidden.next_n()).any():
            msg = (
                f"{drafter} reads next-n rows (the state before the output norm), which llama.cpp does not hand out "
                f"for {model.path.name} ({model.info.architecture})."
            )
            raise UnsupportedError(msg)


def _small(model: Model) -> Context:
    """Return a context that may break: an architecture without these states fails an assertion."""
    return Context(model, ContextConfig(n_ctx=256, n_batch=1, n_ubatch=1, n_outputs_max=1, n_threads=1))


def _decode_one(context: Context) -> None:
    batch = Batch()
    batch.add(0, context.memory.length(0))
    context.decode(batch)
