"""What the handlers of a server share, and what they ask of an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from pyspec.engine import Chunk, EngineStatus, Result, Settings
from pyspec.llama.model import Model
from pyspec.server.metrics import Metrics
from pyspec.server.prompts import Speech
from pyspec.server.settings import ServerSettings
from pyspec.server.templates import ChatTemplate
from pyspec.speculation.config import Speculation

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ServedGeneration(Protocol):
    """A generation under way; ``pyspec.engine.AsyncGeneration`` is one."""

    result: Result

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Return what has one chunk for each round."""
        ...

    async def begin(self) -> None:
        """Hand it in; what is wrong with it is raised."""
        ...

    async def aclose(self) -> None:
        """End it now; its slot is free one round later at most."""
        ...


class ServedEngine(Protocol):
    """What a server needs of ``pyspec.Engine``."""

    model: Model
    n_slots: int
    n_ctx_seq: int
    n_keep: int | None
    speculation: Speculation

    def astream(self, prompt: Sequence[int], **settings: Unpack[Settings]) -> ServedGeneration:
        """Return what can be begun; see ``pyspec.Engine.astream``."""
        ...

    def embed(self, prompt: Sequence[int], *, pooling: str | None) -> npt.NDArray[np.float32]:
        """Return a text as a vector; see ``pyspec.Engine.embed``."""
        ...

    def status(self) -> EngineStatus:
        """Return what is going on."""
        ...


@dataclass(slots=True)
class Service:
    """One engine and all that is known about serving it.

    Attributes:
        engine: Does the work.
        settings: How the server behaves.
        template: Turns a conversation into text; None where the model has no template.
        speech: Turns that text into tokens.
        metrics: What ``/metrics`` tells.
        started: When, in seconds since 1970.
        stopping: Whether the server has been asked to stop.
        n_requests: Requests for work under way.
        fingerprint: Names the model and this version, the same each time they are.
        embedding: Held by who asks for embeddings, so that those who wait do not take up a thread each.
    """

    engine: ServedEngine
    settings: ServerSettings
    template: ChatTemplate | None
    speech: Speech
    metrics: Metrics
    started: float = field(default_factory=time.time)
    stopping: bool = False
    n_requests: int = 0
    fingerprint: str = ""
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt; the last position is for a token of the answer."""
        own, room = self.settings.max_prompt_tokens, self.engine.n_ctx_seq
        return room if own is None else min(own, room)

    @property
    def model(self) -> str:
        """The model's name in answers."""
        return self.names[0]

    @property
    def names(self) -> Sequence[str]:
        """All names of the model."""
        return self.settings.aliases or (self.engine.model.path.name,)
