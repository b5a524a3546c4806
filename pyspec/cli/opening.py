"""Models and an engine, as flags ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspec.cli.failing import wrong_usage
from pyspec.cli.terminal import load_model

if TYPE_CHECKING:
    from pyspec.cli.options import TargetOptions
    from pyspec.cli.speculating import DraftModelOptions, SpeculationOptions
    from pyspec.config import ContextConfig
    from pyspec.engine import Engine


@contextlib.contextmanager
def opened_engine(
    target: TargetOptions,
    draft: DraftModelOptions,
    speculation: SpeculationOptions,
    sizes: ContextConfig,
    **options: Any,
) -> Iterator[Engine]:
    """Load the models and make an engine; everything is closed at the end.

    Args:
        target: Which model.
        draft: Which draft model.
        speculation: Which drafters.
        sizes: Of the target's context.
        options: Further arguments of ``Engine``.

    Raises:
        typer.BadParameter: The flags do not fit together.
        PyspecError: A model cannot be loaded, or speculation cannot work with it.
    """
    from pyspec.engine import Engine  # noqa: PLC0415 - --help does without

    model_config, draft_config = target.config(), draft.config()
    names = speculation.names(draft.draft_model)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(load_model(target.model, model_config, flag="--model"))
        draft_model = None
        if draft.draft_model is not None and names:
            draft_model = stack.enter_context(load_model(draft.draft_model, draft_config, flag="-md"))
        own = {"n_ctx": "--ctx-size", "n_slots": "--parallel", "n_queue": "--queue", "n_keep": "--keep"}
        with wrong_usage({**speculation.flags, **own}, flag="--spec-type"):
            chosen = speculation.speculation(names, draft_model)
            engine = stack.enter_context(Engine(model, speculation=chosen, context=sizes, **options))
        yield engine
