"""The command line; one file per command.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130 Ctrl-C,
128 and its number any other signal.
What a command needs beyond this is imported when it runs, so that ``--help`` stays quick.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

import pyspec
from pyspec.cli import bench, generate, info, models, ngram_cache, probe, serve, trace
from pyspec.cli.failing import CommandGroup, Settings, one_line
from pyspec.cli.logs import DebugFlag, LogLevelFlag, VerboseFlag, start_logging
from pyspec.cli.signals import exit_code, like_ctrl_c
from pyspec.errors import PyspecError

__all__ = ["app", "main"]

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the plain form keeps every flag whole at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("info")(info.info)
app.command("probe")(probe.probe)
app.command("bench")(bench.bench)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.add_typer(models.app)
app.add_typer(ngram_cache.app)
app.add_typer(trace.app)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's form
    if wanted:
        typer.echo(f"pyspec {pyspec.__version__}")
        raise typer.Exit


@app.callback()
def start(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
    debug: DebugFlag = False,
    verbose: VerboseFlag = 0,
    log_level: LogLevelFlag = None,
) -> None:
    """Lossless speculative decoding of GGUF models."""
    del version, debug, verbose, log_level  # their callbacks have done the work


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop


def main() -> None:
    """Run the command line and leave with its exit code."""
    _prepare_streams()
    settings = Settings()
    start_logging()
    with like_ctrl_c():
        try:
            app(prog_name="pyspec", obj=settings)
        except KeyboardInterrupt:
            sys.exit(exit_code())
        except Exception as error:  # noqa: BLE001 - the last resort
            _report(error, debug=settings.debug)
            sys.exit(1)


def _report(error: Exception, *, debug: bool) -> None:
    """Say what went wrong in one line, after the traceback if it is wanted."""
    if debug:
        traceback.print_exc()
    unwritable = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO)
    expected = isinstance(error, PyspecError) or unwritable
    hint = "" if expected or debug else " (unexpected; --debug shows where)"
    what = one_line(error) if expected else f"{type(error).__name__}: {one_line(error)}"
    if unwritable:
        what = f"The output cannot be written: {error.strerror}."  # type: ignore[attr-defined]
    typer.echo(f"error: {what}{hint}", err=True)
