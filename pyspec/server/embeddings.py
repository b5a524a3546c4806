"""``/v1/embeddings``: texts as vectors."""

from __future__ import annotations

import asyncio
import base64

import numpy as np

from pyspec.engine.embedding import Vector, pooling_of
from pyspec.errors import UnsupportedError
from pyspec.server.answers import Embedding
from pyspec.server.bodies.text import EmbeddingsBody
from pyspec.server.calling import Call
from pyspec.server.errors import invalid, unsupported
from pyspec.server.jobs import separated, tokens_of
from pyspec.server.service import Service

_MOST_TEXTS = 2048  # OpenAI's limit


async def embed(call: Call) -> None:
    """Answer with a vector for each text; one is made after the other, and a client that leaves ends that."""
    body: EmbeddingsBody = call.body
    service = call.service
    pooling = _pooling(service)
    texts = await call.computed(_texts)
    data: list[Embedding] = []
    async with service.embedding:
        for i, text in enumerate(texts):
            vector = await asyncio.to_thread(service.engine.embed, text, pooling=pooling)
            data.append({"object": "embedding", "index": i, "embedding": _written(vector, body)})
    n_tokens = sum(map(len, texts))
    call.notes["prompt_tokens"] = n_tokens
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    await call.reply.json({"object": "list", "data": data, "model": service.model, "usage": usage})


def _pooling(service: Service) -> str:
    """Return how a text becomes one vector.

    Raises:
        ApiError: The model was not made for that, and nobody has said how.
    """
    try:
        return pooling_of(service.engine.model, service.settings.pooling)
    except UnsupportedError:
        msg = f"{service.model} was not made for embeddings; the server can be started with --pooling."
        raise unsupported(msg) from None


def _texts(service: Service, body: EmbeddingsBody) -> list[list[int]]:
    """Return the tokens of each text."""
    width = service.engine.model.info.n_embd_out
    if body.dimensions not in (None, width):
        raise invalid(f"dimensions must be {width}, the width of the model's own vectors.", param="dimensions")
    texts = separated(body.input, "input")
    if len(texts) > _MOST_TEXTS:
        raise invalid(f"input has {len(texts)} texts; at most {_MOST_TEXTS} are taken at once.", param="input")
    return [tokens_of(service, text, "input") for text in texts]


def _written(vector: Vector, body: EmbeddingsBody) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
