"""docs/reference/cli.md names exactly the flags that the commands have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from pyspec.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def commands(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from commands(child)


def test_the_reference_names_every_flag_and_no_other() -> None:
    every = list(commands(typer.main.get_command(app)))
    flags = {
        flag
        for command in every
        for parameter in command.params
        if parameter.param_type_name == "option"
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    code = re.findall(r"`([^`]+)`", PAGE.read_text(encoding="utf-8"))
    named = {flag for part in code for flag in re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", part)}
    assert named - {"-inf", "-vv"} == flags | {"-h", "--help"}


def test_the_reference_has_every_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        assert f"## pyspec {name}" in page
        for child in getattr(command, "commands", {}):
            assert f"`pyspec {name} {child}" in page
