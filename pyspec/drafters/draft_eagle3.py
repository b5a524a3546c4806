"""draft-eagle3: one decoder layer that reads three layers of the target (Li et al., "EAGLE-3", 2025).

The inputs of three layers, side by side, go through the draft model's encoder, which gives one row g per position.
The decoder's entry at position P is the token of P + 1 beside g of P; while drafting, its own state before the
output norm takes the place of g.
"""

from __future__ import annotations

import numpy as np

from pyspec.drafters.hidden import Features
from pyspec.drafters.model_drafter import require_draft_model, require_vocabulary
from pyspec.drafters.next_token_head import NextTokenHead
from pyspec.drafters.registry import Resources
from pyspec.drafters.taps import require_layer_inputs, require_next_n_rows
from pyspec.errors import UnsupportedError
from pyspec.llama.context import Context
from pyspec.llama.model import Model
from pyspec.speculation.detection import drafter_for
from pyspec.speculation.draft import Needs
from pyspec.speculation.target import TargetHidden

_N_LAYERS = 3


class DraftEagle3(NextTokenHead):
    """Drafts with an EAGLE-3 head; see ``ModelDrafter`` for the options."""

    name = "draft-eagle3"
    reads_only = True
    needs = Needs.LAYER_INPUTS

    def _open(self, resources: Resources) -> None:
        model = require_draft_model(resources, self.name)
        self._layers = _checked_layers(model, resources)
        self._n_layer = resources.target_model.info.n_layer
        config = self._config(model, resources, n_rows=self.n_max + 1)
        self._context = Context(model, config, target=resources.target)
        hidden = resources.target.hidden
        if inner := [layer for layer in self._layers if layer < self._n_layer]:
            hidden.keep_layer_inputs(inner)
        if self._n_layer in self._layers:
            hidden.keep_next_n("all")
        self._start()

    def _features(self, hidden: TargetHidden) -> Features:
        parts = [hidden.layer_inputs([i]) if i < self._n_layer else hidden.next_n() for i in self._layers]
        return np.concatenate(parts, axis=1)

    def _prepared(self, rows: Features) -> Features:
        """Run the encoder."""
        encoded = []
        for first in range(0, len(rows), self._context.n_ubatch):
            self._context.encode(rows[first : first + self._context.n_ubatch])
            encoded.append(self._context.hidden.next_n())
        return np.concatenate(encoded)


def _checked_layers(model: Model, resources: Resources) -> tuple[int, ...]:
    """Return the layers to read, when target and draft model belong together."""
    target, layers = resources.target_model, model.info.target_layers
    if model.info.architecture != "eagle3" or len(layers) != _N_LAYERS:
        made_for = drafter_for(model)
        msg = f"draft-eagle3 needs an EAGLE-3 head with three layers to read; {model.path.name} is made for {made_for}."
        raise UnsupportedError(msg)
    width = int(model.metadata.get("eagle3.target_hidden_size", 0))
    if width != target.info.n_embd:
        msg = f"{model.path.name} was made for a target of width {width}; {target.path.name} has {target.info.n_embd}."
        raise UnsupportedError(msg)
    require_vocabulary(resources, model)
    n_layer = target.info.n_layer
    if inner := [layer for layer in layers if layer != n_layer]:
        require_layer_inputs(resources, inner, "draft-eagle3")
    if n_layer in layers:
        require_next_n_rows(resources, "draft-eagle3")
    return layers
