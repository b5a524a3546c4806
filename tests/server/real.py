"""Servers of real engines over tiny models, called inside the process, and what their answers say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyspec
from pyspec.server import ServerSettings
from pyspec.server.app import create_app, make_service
from tests.pairs import OpenZoo, Pair, sizes
from tests.server.asgi import Answer, Client
from tests.server.fakes import CHATML

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
N_CTX = 256  # tokens of each slot


class Said(NamedTuple):
    """What one choice of an answer says."""

    text: str
    finish: str


@contextlib.contextmanager
def real_engine(
    open_zoo: OpenZoo, pair: Pair, *, n_slots: int = 1, plain: bool = False, **options: Any
) -> Iterator[pyspec.Engine]:
    """Make an engine with the drafters of a pair, or without any.

    Results are exact: there is one thread, and slots do not share beginnings, which would be read in other portions.
    """
    context = sizes(n_slots, n_ctx=N_CTX * n_slots, kv_unified=False)
    speculation = None if plain else pair.speculation(open_zoo)
    with pyspec.Engine(
        open_zoo(pair.target), speculation=speculation, context=context, n_slots=n_slots, **options
    ) as engine:
        yield engine


def client_of(engine: pyspec.Engine, **settings: Any) -> Client:
    """Return a client of a server with this engine."""
    return Client(create_app(make_service(engine, ServerSettings(chat_template=CHATML, **settings))))


def prompted(path: str, text: str) -> dict[str, Any]:
    """Return the field that has the prompt."""
    return {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}


def said(path: str, answer: Answer) -> list[Said]:
    """Return what each choice says, whether it came in pieces or not."""
    assert answer.status == 200, answer.body
    parts = answer.events() if answer.headers["content-type"].startswith("text/event-stream") else [answer.json()]
    assert not any("error" in part for part in parts), parts
    if path == NATIVE:
        return [Said("".join(part["content"] for part in parts), parts[-1]["stop_type"])]
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    for choice in (choice for part in parts for choice in part["choices"]):
        message = choice if path == TEXT else choice.get("delta") or choice.get("message") or {}
        content = message.get("text" if path == TEXT else "content")
        texts[choice["index"]] = texts.get(choice["index"], "") + (content or "")
        if choice["finish_reason"] is not None:
            finishes[choice["index"]] = choice["finish_reason"]
    return [Said(texts[index], finishes[index]) for index in sorted(texts)]
