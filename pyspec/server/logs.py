"""One line per event, for people or for programs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

LOGGER = "pyspec.server"
_UVICORN = "uvicorn.error"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    """Return what a record says besides its message: ``extra={"fields": {...}}``."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


class TextFormatter(logging.Formatter):
    """``INFO pyspec.server: request method=GET status=200``."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line."""
        parts = [super().formatMessage(record), *(f"{name}={_word(value)}" for name, value in _fields(record).items())]
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with time, level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _word(value: object) -> str:
    """Return a value as one word: what a client says cannot begin a new line, or another field."""
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return text if text.isprintable() and not set(' "=') & set(text) and text else json.dumps(text)


def set_up(*, as_json: bool, level: int | None = None) -> None:
    """Let a server's lines, and uvicorn's complaints, go where the package's messages go.

    Args:
        as_json: Write JSON.
        level: What is worth a line; None leaves that as it is.
    """
    package, uvicorn = logging.getLogger("pyspec"), logging.getLogger(_UVICORN)
    formatter = JsonFormatter() if as_json else TextFormatter()
    for handler in package.handlers:
        handler.setFormatter(formatter)
    uvicorn.handlers = list(package.handlers)
    uvicorn.propagate = False
    uvicorn.setLevel(logging.WARNING)
    if level is not None:
        logging.getLogger(LOGGER).setLevel(level)
