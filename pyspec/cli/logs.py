"""Logging to stderr, and the flags for it, which every command takes."""

from __future__ import annotations

import enum
import logging
from typing import Annotated

import typer

from pyspec.cli.failing import Settings

_PANEL = "Messages"


class LogLevel(str, enum.Enum):
    """What is worth a line on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    OFF = "off"


class _Handler(logging.Handler):
    """Writes to whatever stderr is now, so that lines appear above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(self.format(record), err=True)


def start_logging() -> None:
    """Show warnings of this package and of llama.cpp (the logger ``pyspec.llama_cpp``)."""
    logger = logging.getLogger("pyspec")
    if not any(isinstance(handler, _Handler) for handler in logger.handlers):
        handler = _Handler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.WARNING)


def _on_debug(context: typer.Context, value: bool) -> bool:  # noqa: FBT001 - typer's form
    if value:
        context.find_root().ensure_object(Settings).debug = True
    return value


def _on_verbose(value: int) -> int:
    if value:
        logging.getLogger("pyspec").setLevel(logging.INFO if value == 1 else logging.DEBUG)
    return value


def _on_log_level(value: LogLevel | None) -> LogLevel | None:
    if value is not None:
        off = logging.CRITICAL + 1
        logging.getLogger("pyspec").setLevel(off if value is LogLevel.OFF else value.name)
    return value


DebugFlag = Annotated[
    bool,
    typer.Option("--debug", help="Show the traceback of an error.", callback=_on_debug, rich_help_panel=_PANEL),
]
VerboseFlag = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        metavar="",
        help="Show what happens, llama.cpp's log included; -vv shows more.",
        callback=_on_verbose,
        rich_help_panel=_PANEL,
    ),
]
LogLevelFlag = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        show_default=False,
        help="What to report on stderr (warning).",
        callback=_on_log_level,
        rich_help_panel=_PANEL,
    ),
]
