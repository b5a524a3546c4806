"""A chat template's world: what Hugging Face's templates expect, inside Jinja's sandbox.

A template comes with a model file, so it is a stranger's program: it sees JSON values and nothing else.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RESERVED = frozenset({"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"})


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here its content simply stands."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> Node | list[Node]:
        """Return what stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """Return the environment that templates are written for."""
    made = ImmutableSandboxedEnvironment(
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


def explained(error: Exception) -> str:
    """Return what went wrong in a template, in one line."""
    line = getattr(error, "lineno", None)
    where = f" in line {line}" if isinstance(line, int) else ""
    known = isinstance(error, jinja2.TemplateError)
    text = " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())
    return f"{text.removesuffix('.')}{where}"


def _tojson(value: Any, indent: int | None = None, separators: Any = None, *, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, separators=separators, ensure_ascii=ensure_ascii)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(text: str) -> str:
    return dt.datetime.now().astimezone().strftime(text)
