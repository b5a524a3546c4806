"""What commands draw: progress on stderr when it is a terminal, tables and colours on stdout."""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from pyspec import hub
from pyspec.cli.failing import wrong_usage
from pyspec.config import ModelConfig

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, TaskID

    from pyspec.llama import Model

_NO_WRAP = 100_000  # columns of what is no terminal: lines are as long as they need to be


class ColorChoice(str, enum.Enum):
    """Values of ``--color``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def shows_color(choice: ColorChoice) -> bool:
    """Return whether stdout gets colours; rich knows terminals, NO_COLOR and FORCE_COLOR."""
    from rich.console import Console  # noqa: PLC0415 - --help does without

    if choice is not ColorChoice.AUTO:
        return choice is ColorChoice.ALWAYS
    console = Console(file=sys.stdout)
    return console.color_system is not None and not console.no_color


def load_model(name: str, config: ModelConfig, *, flag: str) -> Model:
    """Find and load a model, with progress on a terminal.

    Raises:
        typer.BadParameter: The name is malformed.
        PyspecError: It cannot be found, fetched or loaded.
    """
    from pyspec.llama import Model  # noqa: PLC0415 - it loads the native library

    with byte_bar() as bytes_done, wrong_usage(flag=flag):
        path = hub.resolve(name, progress=bytes_done)
    with share_bar(path.name) as progress:
        return Model(path, config, progress=progress)


def print_table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = (), indent: int = 0) -> None:
    """Print rows in columns, on a terminal folded to its width."""
    from rich.console import Console  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = _NO_WRAP
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(header), header_style="bold", pad_edge=False)
    shown = [[str(cell) for cell in row] for row in rows]
    for i in range(len(header) or len(shown[0]) if shown else 0):
        table.add_column(header[i] if header else "", overflow="fold")
    for row in shown:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as printed:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())


@contextlib.contextmanager
def byte_bar() -> Generator[hub.Progress | None, None, None]:
    """Draw a bar on a terminal, one line for each stage; elsewhere there is nothing to report to."""
    from rich.progress import DownloadColumn  # noqa: PLC0415

    with bar(DownloadColumn()) as drawn:
        if drawn is None:
            yield None
            return
        tasks: dict[str, TaskID] = {}

        def progress(done_bytes: int, total_bytes: int, stage: str) -> None:
            if stage not in tasks:
                tasks[stage] = drawn.add_task(stage, total=None)
            drawn.update(tasks[stage], completed=done_bytes, total=total_bytes or None)

        yield progress


@contextlib.contextmanager
def count_bar(what: str) -> Generator[Callable[[int, int], bool] | None, None, None]:
    """Draw how many of a number of things are done."""
    from rich.progress import MofNCompleteColumn  # noqa: PLC0415

    with bar(MofNCompleteColumn()) as drawn:
        if drawn is None:
            yield None
            return
        task = drawn.add_task(what, total=None)

        def progress(done: int, total: int) -> bool:
            drawn.update(task, completed=done, total=total or None)
            return True

        yield progress


@contextlib.contextmanager
def share_bar(what: str) -> Generator[Callable[[float], None] | None, None, None]:
    """Draw a share that grows from 0 to 1."""
    from rich.progress import TaskProgressColumn  # noqa: PLC0415

    with bar(TaskProgressColumn()) as drawn:
        if drawn is None:
            yield None
            return
        task = drawn.add_task(what, total=1.0)
        yield lambda share: drawn.update(task, completed=share)


@contextlib.contextmanager
def bar(count: ProgressColumn) -> Generator[Bar | None, None, None]:
    """Draw a bar on stderr, which vanishes at the end; None when stderr is no terminal."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    label = TextColumn("{task.description:>11}", markup=False)
    with Bar(label, BarColumn(), count, console=console, transient=True, redirect_stdout=False) as drawn:
        yield drawn
