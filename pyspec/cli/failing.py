"""How a command fails: wrong usage is told from work that failed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from pyspec.cli.signals import exit_code
from pyspec.errors import ConfigError


@dataclass(slots=True)
class Settings:
    """What ``main`` must know after a command ended.

    Attributes:
        debug: Show the traceback of an error.
    """

    debug: bool = False


class CommandGroup(TyperGroup):
    """The commands; Ctrl-C, and what goes its way, ends any of them quietly."""

    def invoke(self, ctx: Any) -> object:  # typer.Context, or click.Context in older ones
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(exit_code()) from None


@contextlib.contextmanager
def wrong_usage(flags: Mapping[str, str] | None = None, *, flag: str | None = None) -> Iterator[None]:
    """Report an option that the library refuses as wrong usage.

    Args:
        flags: Name of a setting, with which messages begin, to the flag that gave it.
        flag: The flag for all other messages.

    Raises:
        typer.BadParameter: Instead of a ``ConfigError``.
    """
    try:
        yield
    except ConfigError as error:
        message = one_line(error)
        setting = re.match(r"\w*", message)
        hint = (flags or {}).get(setting[0] if setting else "", flag)
        raise typer.BadParameter(message, param_hint=hint) from error


def one_line(error: BaseException) -> str:
    """Return an error's message without line breaks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line if line[-1] in ".:;," else f"{line};" for line in lines).removesuffix(";")
