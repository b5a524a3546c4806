"""Logging to stderr, and the flags for it, which every command takes."""

from __future__ import annotations

import enum
import logging
from typing import Annotated

import typer

from pyspec.cli.failing import Settings

_PANEL = "Messages"
_OFF = logging.CRITICAL + 1
_llama_cpp = logging.getLogger("pyspec.llama_cpp")


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
    """Show warnings of this package.

    What llama.cpp says (the logger ``pyspec.llama_cpp``) is shown when asked for: its errors reach the user as
    exceptions, and its warnings are about its own affairs.
    """
    logger = logging.getLogger("pyspec")
    if not any(isinstance(handler, _Handler) for handler in logger.handlers):
        handler = _Handler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    _llama_cpp.setLevel(_OFF)


def _on_debug(context: typer.Context, value: bool) -> bool:  # noqa: FBT001 - typer's form
    if value:
        context.find_root().ensure_object(Settings).debug = True
    return value


def _on_verbose(value: int) -> int:
    if value:
        _set_level(logging.INFO if value == 1 else logging.DEBUG)
    return value


def _on_log_level(value: LogLevel | None) -> LogLevel | None:
    if value is not None:
        _set_level(_OFF if value is LogLevel.OFF else value.name)
    return value


def _set_level(level: int | str) -> None:
    logging.getLogger("pyspec").setLevel(level)
    _llama_cpp.setLevel(level)


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
