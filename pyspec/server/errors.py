"""Errors as a client sees them: OpenAI's format, the right status, nothing about the inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspec import errors

_MAX_MESSAGE = 1000
INVALID = "invalid_request_error"


class ApiError(Exception):
    """What a client is told instead of an answer.

    Args:
        status: HTTP's status.
        message: For a person.
        kind: OpenAI's ``type``.
        code: For a program, such as "context_length_exceeded".
        param: The field that is wrong.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}..."
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = headers or {}

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of a request that is wrong."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str) -> ApiError:
    """Return the error of a request that comes at the wrong time."""
    return ApiError(429, message, kind="rate_limit_error", code="busy", headers={"retry-after": "1"})


def stopping() -> ApiError:
    """Return the error of a request to a server that ends."""
    return ApiError(503, "The server is shutting down.", kind="server_error", code="shutting_down")


def timed_out(what: str, status: int = 504) -> ApiError:
    """Return the error of a request that took too long."""
    return ApiError(status, what, kind="timeout_error", code="timeout")


def unsupported(message: str) -> ApiError:
    """Return the error of what this server, with this model, does not do."""
    return ApiError(501, message, kind="not_supported_error", code="not_supported")


# The first that fits counts. What is not here is about the inside, and is not told.
_ASKED_WRONGLY: tuple[tuple[type[errors.PyspecError], str | None], ...] = (
    (errors.ContextFullError, "context_length_exceeded"),
    (errors.GrammarError, "invalid_grammar"),
    (errors.TokenError, "invalid_token"),
    (errors.UnsupportedError, "not_supported"),
    (errors.ConfigError, None),
    (errors.VocabError, None),
)
_OTHERS: tuple[tuple[type[errors.PyspecError], Callable[[], ApiError]], ...] = (
    (errors.BusyError, lambda: busy("All slots are taken and the queue is full; try again later.")),
    (errors.DeadlineError, lambda: timed_out("The request took too long.")),
    (errors.ClosedError, stopping),
    (errors.LibraryNotFoundError, lambda: unsupported("Grammars and JSON schemas need llguidance on the server.")),
)


_FIELDS = {"drafting": "speculative.types", "types": "speculative.types", "rule": "speculative.rule"}
"""What a request calls the settings that have another name in the library."""


def translated(error: Exception) -> ApiError:
    """Return an exception as a client may see it."""
    if isinstance(error, ApiError):
        return error
    for kind, code in _ASKED_WRONGLY:
        if isinstance(error, kind):
            return invalid(str(error), param=_parameter(error), code=code)
    for other, answer in _OTHERS:
        if isinstance(error, other):
            return answer()
    return ApiError(500, "The server failed to answer; its log says why.", kind="server_error", code="internal_error")


def _parameter(error: errors.PyspecError) -> str | None:
    """Return the setting that a message is about: it begins with the setting's name."""
    first = str(error).partition(" ")[0]
    is_name = len(first) > 1 and first.isidentifier() and first.islower()
    return _FIELDS.get(first, first) if is_name and isinstance(error, errors.ConfigError) else None
