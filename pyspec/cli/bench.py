"""``pyspec bench``: speculation against plain decoding, measured."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pyspec.cli.failing import wrong_usage
from pyspec.cli.grouping import command
from pyspec.cli.options import ContextOptions, TargetOptions
from pyspec.cli.signals import exit_code
from pyspec.cli.speculating import DraftModelOptions
from pyspec.cli.terminal import count_bar, load_model, print_table, share_bar
from pyspec.errors import ConfigError, PyspecError

if TYPE_CHECKING:
    from pyspec.bench import Setting, Workload
    from pyspec.bench.reporting import Report
    from pyspec.config import ContextConfig
    from pyspec.llama import Model

_STDOUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What to measure, and how often."""

    panel: ClassVar[str] = "Measuring"
    spec_type: Annotated[
        list[str] | None,
        typer.Option(
            "--spec-type",
            metavar="SETTING",
            help="Drafters to compare with plain decoding, such as suffix,draft-simple:n_max=7. May be repeated.",
        ),
    ] = None
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", metavar="NAME|FILE", help="Prompts; all that are shipped. May be repeated."),
    ] = None
    n_tokens: Annotated[
        int, typer.Option("--predict", "--n-predict", "-n", min=2, metavar="N", help="Most tokens of an answer.")
    ] = 128
    n_pairs: Annotated[
        int, typer.Option("--pairs", min=0, metavar="N", help="Pairs per setting and workload; 0 with --check only.")
    ] = 5
    n_slots: Annotated[
        int, typer.Option("--parallel", "-np", min=1, max=256, metavar="N", help="Slots: prompts answered at once.")
    ] = 1
    check: Annotated[
        bool, typer.Option("--check", help="Compare outputs, by logits where they differ; exit code 1 if they do.")
    ] = False
    tie: Annotated[
        float | None,
        typer.Option("--tie", min=0.0, metavar="X", help="For --check: logits nearer than this are level (0.5)."),
    ] = None
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Search for the best threads and drafters, and print their flags.")
    ] = False
    timing: Annotated[bool, typer.Option("--timing/--no-timing", help="Measure decodes, for some seconds.")] = True

    def require_possible(self) -> None:
        """Refuse what makes no sense.

        Raises:
            typer.BadParameter: There are no pairs, and they are needed; or ``--tie`` has no use.
        """
        if self.tie is not None and not self.check:
            msg = "it says what --check takes for equal; give that, too."
            raise typer.BadParameter(msg, param_hint="--tie")
        if self.n_pairs < 1 and (self.suggest or not self.check):
            msg = "without pairs nothing is measured; 0 goes with --check."
            raise typer.BadParameter(msg, param_hint="--pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Where the results go besides the terminal."""

    panel: ClassVar[str] = "Reports"
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="JSON; -: stdout, and no table.")
    ] = None
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", dir_okay=False, help="A page in Markdown.")
    ] = None
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", dir_okay=False, help="A chart of the ratios.")
    ] = None

    @property
    def on_stdout(self) -> bool:
        """Whether stdout is for JSON."""
        return self.json_file is not None and str(self.json_file) == _STDOUT

    def require_writable(self, inputs: Sequence[str]) -> None:
        """Refuse what cannot be written, before anything is measured.

        Args:
            inputs: Names that may be of files, which must stay.

        Raises:
            typer.BadParameter: There is no such folder, it is no file or another's, or the chart is to be no SVG.
        """
        if self.plot is not None and self.plot.suffix.lower() != ".svg":
            msg = f"charts are SVG, which browsers show; name the file *.svg, not {self.plot.name!r}."
            raise typer.BadParameter(msg, param_hint="--plot")
        taken = {os.path.abspath(name) for name in inputs}  # noqa: PTH100 - a Path refuses some names
        for flag, file in (("--json", self.json_file), ("--markdown", self.markdown), ("--plot", self.plot)):
            if file is not None and (fault := _fault_of(file, taken, may_be_stdout=flag == "--json")):
                raise typer.BadParameter(fault, param_hint=flag)
            if file is not None:
                taken.add(os.path.abspath(file))  # noqa: PTH100


def _fault_of(file: Path, taken: Collection[str], *, may_be_stdout: bool) -> str:
    """Return why a report cannot go there, or nothing."""
    if str(file) == _STDOUT and not may_be_stdout:
        return "stdout is for the table, or for JSON with --json -; name a file."
    if os.path.abspath(file) in taken:  # noqa: PTH100
        return f"{str(file)!r} is another report, or what is measured with, and would be replaced."
    if not file.parent.is_dir():
        return f"there is no folder {str(file.parent)!r}."
    if file.exists() and not file.is_file():
        return f"{str(file)!r} is no file, and would be replaced by one; --json - writes to stdout."
    return ""


@command
def bench(
    *,
    target: TargetOptions,
    draft: DraftModelOptions,
    measure: MeasureOptions,
    context: ContextOptions,
    reports: ReportOptions,
) -> None:
    """Measure how fast speculation is, in turns with plain decoding, and whether it says the same."""
    measure.require_possible()
    reports.require_writable([target.model, draft.draft_model or target.model, *(measure.workload or ())])
    settings, workloads = _settings(measure), _workloads(measure)
    target_config, draft_config, sizes = target.config(), draft.config(), context.config()
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(load_model(target.model, target_config, flag="--model"))
        draft_model = None
        if draft.draft_model is not None:
            draft_model = stack.enter_context(load_model(draft.draft_model, draft_config, flag="-md"))
        report, failure = _measured(model, draft_model, settings, workloads, measure, sizes)
    report.base = ["pyspec", "generate", "-m", target.model]
    report.model_words = [] if draft.draft_model is None else ["-md", draft.draft_model]
    _show(report, reports)
    if failure is not None:
        raise failure
    if report.interrupted:
        raise typer.Exit(exit_code())
    if report.has_difference:
        raise typer.Exit(1)


def _settings(measure: MeasureOptions) -> list[Setting]:
    """Return the settings asked for.

    Raises:
        typer.BadParameter: One is wrong, or given twice.
    """
    from pyspec.bench import parse_setting  # noqa: PLC0415 - --help does without

    with wrong_usage(flag="--spec-type"):
        found = [parse_setting(text) for text in measure.spec_type or ()]
        _require_different([setting.label for setting in found])
    return found


def _workloads(measure: MeasureOptions) -> list[Workload]:
    """Return the workloads asked for.

    Raises:
        typer.BadParameter: One is not there, or given twice.
    """
    from pyspec.bench import load_workload, workload_names  # noqa: PLC0415

    with wrong_usage(flag="--workload"):
        found = [load_workload(name) for name in measure.workload or workload_names()]
        _require_different([workload.name for workload in found])
    return found


def _require_different(names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        msg = f"{twice} is given twice."
        raise ConfigError(msg)


def _measured(
    model: Model,
    draft_model: Model | None,
    settings: Sequence[Setting],
    workloads: Sequence[Workload],
    measure: MeasureOptions,
    sizes: ContextConfig,
) -> tuple[Report, PyspecError | None]:
    """Return what was measured, and what ended it too early."""
    from pyspec.bench import Plan  # noqa: PLC0415
    from pyspec.bench.session import Session  # noqa: PLC0415
    from pyspec.cli import benching  # noqa: PLC0415 - it loads the native library
    from pyspec.trace import TIE_EPSILON  # noqa: PLC0415

    with wrong_usage(flag="--workload"):
        lab = benching.lab_of(model, draft_model, sizes, workloads, n_slots=measure.n_slots, n_tokens=measure.n_tokens)
    tie = (TIE_EPSILON if measure.tie is None else measure.tie) if measure.check else None
    plan = Plan(n_tokens=measure.n_tokens, n_pairs=measure.n_pairs, n_slots=measure.n_slots, tie=tie)
    wanted = settings or benching.usual_settings(draft_model, searches=measure.suggest)
    curve: Sequence[float] = ()
    with wrong_usage({"n_ctx": "--ctx-size", "n_batch": "--batch-size"}, flag="--spec-type"):
        if measure.timing:
            with share_bar(f"timing {model.path.name}") as share:
                curve = benching.curve_of(lab, share)
        with count_bar("runs") as progress:
            session = Session(lab, workloads, plan, progress)
            if measure.suggest:
                counts = [sizes.n_threads] if sizes.n_threads else benching.thread_counts_here()
                session.search(wanted, counts)
            else:
                session.run(wanted)
    return benching.report_of(session, wanted, curve, benching.about(model, draft_model, sizes)), session.failure


def _show(report: Report, reports: ReportOptions) -> None:
    """Print the report, and write the files."""
    from pyspec.bench.plotting import ratio_chart  # noqa: PLC0415

    text = json.dumps(report.to_dict(), indent=2)
    if reports.on_stdout:
        typer.echo(text)
    else:
        _print(report)
    written = (
        _is_written(None if reports.on_stdout else reports.json_file, f"{text}\n"),
        _is_written(reports.markdown, report.markdown()),
        _is_written(reports.plot, ratio_chart(report.figures, "Speed relative to plain decoding")),
    )
    if not all(written):
        raise typer.Exit(1)


def _is_written(file: Path | None, content: str) -> bool:
    """Write a file, if there is one; when it cannot be written, say so and return False."""
    from pyspec.files import replace_file  # noqa: PLC0415

    try:
        if file is not None:
            replace_file(file, [content.encode()])
    except OSError as error:
        typer.echo(f"error: {file} cannot be written: {error.strerror or error}", err=True)
        return False
    return True


def _print(report: Report) -> None:
    from pyspec.bench.reporting import HEADER  # noqa: PLC0415

    typer.echo(report.headline())
    if report.interrupted:
        typer.echo("Broken off; this is what was measured until then.", err=True)
    if report.threads:
        typer.echo("\nPlain decoding by threads")
        rows = [(str(each.n_threads), f"{each.speed.median:.1f}") for each in report.threads]
        print_table(rows, header=("threads", "t/s"), indent=2)
    if report.tried:
        typer.echo("\nTried, with one pair")
        print_table(report.tried_rows(), header=("setting", "ratio"), indent=2)
    typer.echo("\nMeasured")
    print_table(report.rows(), header=HEADER, indent=2)
    if report.differences:
        typer.echo("\nDifferences")
    for line in report.differences:
        typer.echo(f"  {line}")
    words = report.suggestion()
    if words is not None:
        typer.echo(f"\nTo use the best of this, here and for `pyspec serve` too:\n  {shlex.join(words)}")
