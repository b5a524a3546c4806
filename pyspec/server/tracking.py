"""Every request has an id, a line in the log and a place in the counters, whatever happens to it."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyspec.server.errors import ApiError, translated
from pyspec.server.metrics import Metrics
from pyspec.server.reply import Reply

_logger = logging.getLogger("pyspec.server")
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_NOTES = "pyspec_notes"
_FAILED = 500
UNKNOWN = "unknown"


def notes_of(scope: Scope) -> MutableMapping[str, Any]:
    """Return what the log says about a request; anybody on its way may add to it."""
    notes: MutableMapping[str, Any] = scope.setdefault(_NOTES, {})
    return notes


def told(error: Exception, notes: MutableMapping[str, Any]) -> ApiError:
    """Return an exception as the client may see it, and log what the client may not."""
    shown = translated(error)
    notes["error"] = shown.code or shown.kind
    if shown.status == _FAILED:
        _logger.error("request failed", exc_info=error, extra={"fields": {"id": notes.get("id")}})
    return shown


class Tracking:
    """The outermost layer.

    Args:
        app: The rest.
        metrics: Counts the answers.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        notes, began = notes_of(scope), time.perf_counter()
        notes["id"] = given = _id(Headers(scope=scope).get("x-request-id", ""))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                notes["status"] = message["status"]
                MutableHeaders(raw=message["headers"])["x-request-id"] = given
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # noqa: BLE001 - nothing passes without an answer
            shown = told(error, notes)
            if "status" not in notes:
                await Reply(send_with_id).error(shown)
        finally:
            self._report(scope, notes, time.perf_counter() - began)

    def _report(self, scope: Scope, notes: MutableMapping[str, Any], seconds: float) -> None:
        endpoint, status = notes.pop("endpoint", UNKNOWN), notes.pop("status", 0)
        self._metrics.count_request(endpoint, status)
        fields = {"method": scope["method"], "endpoint": endpoint, "status": status, "ms": round(1000 * seconds, 1)}
        _logger.info("request", extra={"fields": {**fields, **notes}})


def _id(given: str) -> str:
    """Return the client's id for a request if it is sane, else a new one."""
    return given if _SANE_ID.fullmatch(given) else secrets.token_hex(8)
