"""``/health``, ``/slots``, ``/metrics`` and ``/v1/models``."""

from __future__ import annotations

from pyspec.server.answers import ModelEntry
from pyspec.server.calling import Call
from pyspec.server.errors import ApiError, stopping, unsupported
from pyspec.server.llama_answers import Slot
from pyspec.server.metrics import MEDIA_TYPE
from pyspec.server.service import Service


async def health(call: Call) -> None:
    """Say whether the server takes requests."""
    if call.service.stopping:
        raise stopping()
    await call.reply.json({"status": "ok"})


async def slots(call: Call) -> None:
    """Say what the slots do; not what is said in them."""
    if not call.service.settings.slots:
        raise unsupported("The server was started with --no-slots.")
    answer: list[Slot] = [
        {
            "id": slot.seq_id,
            "state": str(slot.state),
            "is_processing": str(slot.state) != "idle",
            "n_tokens": slot.n_tokens,
            "n_prompt": slot.n_prompt,
            "n_emitted": slot.n_emitted,
        }
        for slot in call.service.engine.status().slots
    ]
    await call.reply.json(answer)


async def metrics(call: Call) -> None:
    """Answer Prometheus."""
    if not call.service.settings.metrics:
        raise unsupported("The server was started with --no-metrics.")
    await call.reply.whole(call.service.metrics.render(), MEDIA_TYPE)


async def models(call: Call) -> None:
    """List the model, under all of its names."""
    await call.reply.json({"object": "list", "data": [_entry(call.service, name) for name in call.service.names]})


async def model(call: Call) -> None:
    """Describe the model."""
    name = call.path["model"]
    if name not in call.service.names:
        raise ApiError(404, f"There is no model {name!r}.", param="model", code="model_not_found")
    await call.reply.json(_entry(call.service, name))


def _entry(service: Service, name: str) -> ModelEntry:
    served = service.engine.model
    return {
        "id": name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "pyspec",
        "meta": {
            "n_vocab": served.vocab.n_tokens,
            "n_ctx_train": served.info.n_ctx_train,
            "n_embd": served.info.n_embd,
            "n_params": served.info.n_params,
            "size": served.info.size_bytes,
        },
    }
