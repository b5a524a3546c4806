"""A real engine without its thread: it plays in the thread of the test, which may look at everything in between."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import pyspec
from pyspec.engine import Generation
from pyspec.engine.admission import admission_of
from pyspec.engine.plan import Plan, checked_speculation, sized
from pyspec.engine.saving import SavedSlot
from tests.workplace import Place


class PulledEngine:
    """What ``pyspec.Engine`` is, played by whoever waits.

    Attributes:
        context: The target.
        chain: The drafters.
        place: The scheduler.
    """

    def __init__(
        self,
        model: pyspec.Model,
        *,
        speculation: pyspec.Speculation | None = None,
        context: pyspec.ContextConfig | None = None,
        n_slots: int = 1,
        n_prefill: int = 128,
        n_keep: int | None = None,
        cache_bytes: int = 0,
    ) -> None:
        wanted = checked_speculation(speculation)
        sizes = sized(model, context, wanted, n_slots, shifts=n_keep is not None)
        plan = Plan(model, wanted, sizes, n_slots, n_prefill, n_keep, cache_bytes)
        self._workshop = plan.build(lambda: None)
        self.context, self.chain = self._workshop.context, self._workshop.chain
        self._admission = admission_of(self._workshop, wanted, shifts=n_keep is not None)
        self.place = Place(self._workshop.scheduler, self._admission.piece)

    def stream(self, prompt: Any, **settings: Any) -> Generation:
        return self.place.start(*self._admission.admit(prompt, lambda _event: None, **settings))

    def resume(self, saved: SavedSlot) -> Generation:
        return self.place.start(*self._admission.readmit(saved, lambda _event: None, None))

    def generate(self, prompt: Any, **settings: Any) -> pyspec.Result:
        generation = self.stream(prompt, **settings)
        for _chunk in generation:
            pass
        return generation.result

    def close(self) -> None:
        self._workshop.close()

    def __enter__(self) -> PulledEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
