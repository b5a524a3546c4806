"""``pyspec trace``: what a trace says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pyspec.cli.grouping import command

__all__ = ["app"]

app = typer.Typer(name="trace", help="Look into traces.", no_args_is_help=True)


@app.callback()
def trace() -> None:
    """Look into traces, which `pyspec generate --trace FILE` writes."""  # keeps `explain` a subcommand of its own


@app.command()
@command
def explain(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace.", dir_okay=False)],
    *,
    rounds: Annotated[bool, typer.Option("--rounds/--no-rounds", help="Whether to list the rounds.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say for each round what was expected of it and what came, and add that up."""
    from pyspec.trace import read_trace  # noqa: PLC0415 - --help does without
    from pyspec.trace.explain import round_lines, summary_lines, totals  # noqa: PLC0415

    found = read_trace(file)
    if as_json:
        typer.echo(json.dumps({"rounds": found.rounds if rounds else [], "totals": totals(found).to_dict()}))
        return
    for line in round_lines(found) if rounds else ():
        typer.echo(line)
    for line in summary_lines(totals(found)):
        typer.echo(line)
    if found.end is None:
        typer.echo("the run was broken off: its trace has no end line")
