"""Hidden states of a context: what the layers read and what next-n layers continue from.

Drafters that are fed by the target ask for them once; every decode then keeps them until the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pyspec._native import hidden as native
from pyspec.config import as_list, require_bool, require_int, shown
from pyspec.errors import ConfigError

if TYPE_CHECKING:
    from pyspec.llama.context import Context

_WHICH = {"none": native.OFF, "wanted": native.WANTED, "all": native.ALL}


class HiddenStates:
    """Hidden states of the last decode, one row per entry in batch order, and how a draft model uses them.

    What is returned is a copy; it stays valid.
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def keep_layer_inputs(self, layers: Iterable[int], *, value: bool = True) -> None:
        """Let decodes keep the inputs of layers; number ``n_layer`` means the last layer's output.

        Raises:
            ConfigError: The model has no such layer.
        """
        for number in self._checked(layers):
            native.keep_layer_input(self._context.handle, number, value=require_bool("value", value))
        self._context.rows_may_move()

    def keep_next_n(self, which: Literal["none", "wanted", "all"]) -> None:
        """Let decodes keep the state before the output norm: of entries that want logits, or of all.

        Raises:
            ConfigError: ``which`` is something else.
        """
        if not isinstance(which, str) or which not in _WHICH:
            msg = f"which must be one of {', '.join(_WHICH)}, not {shown(which)}."
            raise ConfigError(msg)
        native.keep_next_n(self._context.handle, _WHICH[which])
        self._context.rows_may_move()

    def keep_output_states(self, *, value: bool = True) -> None:
        """Let decodes keep the state after the output norm; every entry of a batch must then want its logits row."""
        native.keep_output_states(self._context.handle, value=require_bool("value", value))
        self._context.rows_may_move()

    def layer_inputs(self, layers: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the inputs of layers side by side, [n_entries, len(layers) * n_embd].

        Raises:
            ConfigError: The last decode did not keep one.
        """
        width, numbers = self._context.model.info.n_embd, self._checked(layers)
        return np.concatenate([native.layer_input(self._context.handle, i, width) for i in numbers], axis=1)

    def next_n(self) -> npt.NDArray[np.float32]:
        """Return the next-n rows, [n_wanted or n_entries, n_embd_out], as ``keep_next_n`` asked.

        Raises:
            ConfigError: The last decode did not keep them.
        """
        return np.array(native.next_n(self._context.handle, self._context.model.info.n_embd_out))

    def output_states(self) -> npt.NDArray[np.float32]:
        """Return the states after the output norm, of which logits are made, [n_entries, n_embd_out].

        Raises:
            ConfigError: The last decode did not keep them.
        """
        return np.array(native.output_states(self._context.handle, self._context.model.info.n_embd_out))

    def fill_next_n(self, value: float) -> None:
        """Overwrite the kept rows, to see whether the next decode writes any."""
        try:
            native.fill_next_n(self._context.handle, float(value))
        except (TypeError, ValueError, OverflowError):
            msg = f"value must be a number, not {shown(value)}."
            raise ConfigError(msg) from None

    def set_next_n_layer(self, offset: int) -> None:
        """Choose which of several next-n layers a next-n context runs."""
        n_layers = max(1, self._context.model.info.n_layer_nextn)
        native.set_next_n_layer(self._context.handle, require_int("offset", offset, 0, n_layers - 1))

    def set_causal(self, *, value: bool) -> None:
        """Let entries see only those before them, or the whole batch."""
        native.set_causal(self._context.handle, value=require_bool("value", value))

    def select_on_device(self, seq_id: int, k: int) -> bool:
        """Let the device find the k best tokens of a sequence's rows; 0 ends it.

        While it is on, rows know ``argmax`` and ``top_k`` only.

        Returns:
            False when the device cannot.
        """
        sequence, count = self._context.memory.checked(seq_id), require_int("k", k, 0, self._context.n_vocab)
        selects = native.select_on_device(self._context.handle, sequence, count)
        (self._context.selecting.add if selects and count else self._context.selecting.discard)(sequence)
        return selects

    def _checked(self, layers: Iterable[int]) -> list[int]:
        numbers = as_list(layers)
        if not numbers:
            msg = f"layers must be numbers of layers, at least one; found {shown(layers)}."
            raise ConfigError(msg)
        n_layer = self._context.model.info.n_layer
        return [require_int("layer", number, 0, n_layer) for number in numbers]
