from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer
from typer.testing import CliRunner

from pyspec.cli.grouping import command


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    panel: ClassVar[str] = "Sizes"
    width: Annotated[int, typer.Option("--width", "-w")]
    height: Annotated[int, typer.Option("--height", "-ht", help="Height.")] = 3


@command
def draw(name: Annotated[str, typer.Argument()], *, sizes: Sizes, bold: bool = False) -> None:
    """Draw."""
    typer.echo(f"{name} {sizes} {bold}")


def test_groups_become_flags_and_values_again() -> None:
    app = typer.Typer()
    app.command()(draw)
    result = CliRunner().invoke(app, ["box", "-w", "5", "-ht", "7", "--bold"])
    assert result.output == "box Sizes(width=5, height=7) True\n"
    assert CliRunner().invoke(app, ["box", "--width", "5"]).output == "box Sizes(width=5, height=3) False\n"
    assert CliRunner().invoke(app, ["box"]).exit_code == 2


def test_signature_has_the_flags_of_every_command_and_no_group() -> None:
    parameters = inspect.signature(draw).parameters
    assert list(parameters) == ["name", "bold", "width", "height", "debug", "verbose", "log_level"]
    assert parameters["width"].annotation.__metadata__[0].rich_help_panel == "Sizes"
    assert draw.__doc__ == "Draw."
