"""The table of endpoints, and how one is answered: read, checked, handled, watched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from pyspec.server import about, answers, chat, completions, embeddings, llama_answers, native, status
from pyspec.server.bodies.base import checked
from pyspec.server.bodies.chat import ChatBody
from pyspec.server.bodies.text import CompletionBody, DetokenizeBody, EmbeddingsBody, LlamaCompletionBody, TokenizeBody
from pyspec.server.calling import Call
from pyspec.server.reading import parsed, read_body
from pyspec.server.reply import Reply
from pyspec.server.service import Service
from pyspec.server.tracking import notes_of, told
from pyspec.server.watching import ClientGoneError, watched

Handler = Callable[[Call], Awaitable[None]]
GONE = 499  # nginx's status for a client that left; nobody receives it


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path and method.

    Attributes:
        path: As Starlette writes it.
        handler: Answers.
        summary: What it does.
        answer: Type of the answer; None where it is no JSON of ours.
        body: What a request says; None for GET.
        chunk: Type of a streamed answer's events.
        public: Whether it answers without a key.
        aliases: Other paths that do the same.
    """

    path: str
    handler: Handler
    summary: str
    answer: Any
    body: type[BaseModel] | None = None
    chunk: Any = None
    public: bool = False
    aliases: Sequence[str] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All its paths."""
        return (self.path, *self.aliases)

    @property
    def method(self) -> str:
        """HTTP's method."""
        return "GET" if self.body is None else "POST"


ENDPOINTS = (
    Endpoint(
        "/v1/completions",
        completions.complete,
        "Continue text.",
        answers.Completion,
        CompletionBody,
        answers.Completion,
        aliases=("/completions",),
    ),
    Endpoint(
        "/v1/chat/completions",
        chat.chat,
        "Answer a conversation.",
        answers.ChatCompletion,
        ChatBody,
        answers.ChatChunk,
        aliases=("/chat/completions",),
    ),
    Endpoint(
        "/v1/embeddings",
        embeddings.embed,
        "Turn texts into vectors.",
        answers.Embeddings,
        EmbeddingsBody,
        aliases=("/embeddings",),
    ),
    Endpoint("/v1/models", status.models, "List the model.", answers.ModelList, aliases=("/models",)),
    Endpoint("/v1/models/{model:path}", status.model, "Describe the model.", answers.ModelEntry),
    Endpoint(
        "/completion",
        native.complete,
        "Continue text, as llama.cpp does.",
        llama_answers.LlamaCompletion,
        LlamaCompletionBody,
        llama_answers.LlamaCompletion,
    ),
    Endpoint("/tokenize", native.tokenize, "Turn text into tokens.", llama_answers.Tokens, TokenizeBody),
    Endpoint("/detokenize", native.detokenize, "Turn tokens into text.", llama_answers.Content, DetokenizeBody),
    Endpoint("/apply-template", chat.apply_template, "Turn a conversation into text.", llama_answers.Prompt, ChatBody),
    Endpoint(
        "/health",
        status.health,
        "Tell whether requests are taken.",
        answers.Health,
        public=True,
        aliases=("/v1/health",),
    ),
    Endpoint("/version", about.version, "Tell which version this is.", answers.Version),
    Endpoint("/props", about.props, "Describe the server, as llama.cpp does.", llama_answers.Props),
    Endpoint("/slots", status.slots, "Tell what the slots do.", list[llama_answers.Slot]),
    Endpoint("/metrics", status.metrics, "Prometheus' metrics.", None),
)


class EndpointApp:
    """An endpoint as an ASGI application.

    Args:
        service: What it serves.
        endpoint: Which one it is.
    """

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service = service
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an exception becomes an error that the client may see."""
        notes = notes_of(scope)
        notes["endpoint"] = self._endpoint.path
        reply = Reply(send)
        try:
            body = await self._body(Request(scope, receive))
            call = Call(self._service, body, dict(scope.get("path_params", {})), reply, notes)
            await watched(self._handled(call), receive, self._service.settings.timeout, lambda: reply.ended)
        except (ClientGoneError, ClientDisconnect):
            notes["status"] = GONE
        except Exception as error:  # noqa: BLE001 - the client must hear of it, and the log
            await reply.error(told(error, notes))

    async def _body(self, request: Request) -> BaseModel | None:
        kind, settings = self._endpoint.body, self._service.settings
        if kind is None:
            return None
        data = await read_body(request, max_bytes=settings.max_body_bytes, seconds=settings.body_timeout)
        return await asyncio.to_thread(_understood, kind, data)

    async def _handled(self, call: Call) -> None:
        await self._endpoint.handler(call)


def _understood(kind: type[BaseModel], data: bytes) -> BaseModel:
    """Return a body; that of a long one takes a while, and others go on meanwhile."""
    return checked(kind, parsed(data))
