"""``pyspec trace``: what a trace says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspec.cli.grouping import command

if TYPE_CHECKING:
    from pyspec.trace import Trace

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
    """Say for each round what was expected of it and what came, and add that up; of each run if it has several."""
    from pyspec.trace import read_traces  # noqa: PLC0415 - --help does without
    from pyspec.trace.explain import totals  # noqa: PLC0415

    runs = read_traces(file)
    if as_json:
        found = [{"rounds": run.rounds if rounds else [], "totals": totals(run).to_dict()} for run in runs]
        typer.echo(json.dumps({"runs": found} if len(found) > 1 else found[0]))
        return
    for i, run in enumerate(runs, 1):
        if len(runs) > 1:
            typer.echo(f"run {i} of {len(runs)}")
        _explain(run, rounds=rounds)


def _explain(run: Trace, *, rounds: bool) -> None:
    from pyspec.trace.explain import round_lines, summary_lines, totals  # noqa: PLC0415

    for line in round_lines(run) if rounds else ():
        typer.echo(line)
    for line in summary_lines(totals(run)):
        typer.echo(line)
    if run.end is None:
        typer.echo("the run was broken off: its trace has no end line")
