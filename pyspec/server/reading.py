"""A request's body: read within limits, and parsed without surprises."""

from __future__ import annotations

import asyncio
import math

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from pyspec.server.errors import INVALID, ApiError, invalid, timed_out

_CLOSING = {"connection": "close"}  # the rest of the body is not read


async def read_body(request: Request, *, max_bytes: int, seconds: float) -> bytes:
    """Return the JSON that a request brings, as it is.

    Raises:
        ApiError: It is not said to be JSON, too long, or too slow.
        ClientDisconnect: The client left before the end.
    """
    # A page of another site can make a browser send any other type without asking the server first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "The body must be JSON, with the header Content-Type: application/json.", kind=INVALID)
    try:
        return await asyncio.wait_for(_body(request, max_bytes), seconds)
    except asyncio.TimeoutError:
        late = timed_out("The body did not arrive in time.", status=408)
        late.headers.update(_CLOSING)
        raise late from None


async def _body(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_long(max_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_long(max_bytes)
    return bytes(body)


def _too_long(max_bytes: int) -> ApiError:
    msg = f"The body is longer than {max_bytes} bytes."
    return ApiError(413, msg, code="body_too_long", headers=dict(_CLOSING))


def parsed(data: bytes) -> object:
    """Return JSON as Python has it: UTF-8 without halves of surrogate pairs, finite numbers, 200 levels at most.

    Raises:
        ApiError: It is something else.
    """
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is no valid JSON: {error}.", code="invalid_json") from None
    if not _is_finite(value):
        raise invalid("The body has a number that is too large.", code="invalid_json")
    return value


def _is_finite(value: object) -> bool:
    """Return whether all numbers are finite; 1e999 is read as infinity."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list) or all(map(_is_finite, value))


__all__ = ["ClientDisconnect", "parsed", "read_body"]
