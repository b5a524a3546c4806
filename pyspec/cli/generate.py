"""``pyspec generate``: one prompt in, its continuation out."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pyspec.cli.grouping import command
from pyspec.cli.opening import opened_engine
from pyspec.cli.options import ContextOptions, GrammarOptions, SamplingOptions, ShiftOptions, TargetOptions
from pyspec.cli.speculating import DraftModelOptions, SpeculationOptions
from pyspec.cli.streaming import TextPrinter
from pyspec.cli.terminal import ColorChoice, shows_color
from pyspec.errors import VocabError
from pyspec.files import read_whole
from pyspec.speculation import Finish

if TYPE_CHECKING:
    from pyspec.engine import Engine, Generation, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What to continue, and how far."""

    panel: ClassVar[str] = "Prompt"
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt, as it is.")] = None
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option("--file", "-f", metavar="FILE", help="A UTF-8 file with it, -: stdin; one last newline is cut."),
    ] = None
    prompt_tokens: Annotated[
        typer.FileBinaryRead | None,
        typer.Option("--prompt-tokens", metavar="FILE.json", help="A JSON list of token ids instead of text."),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--predict",
            "--n-predict",
            "-n",
            min=-1,
            metavar="N",
            help="Most tokens to generate; -1: until the model ends or the context is full.",
        ),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Stop before this text. May be repeated.")
    ] = None

    def read(self) -> str | list[int]:
        """Return the prompt, as text or as tokens.

        Raises:
            typer.BadParameter: None or several are given, or the file cannot be read, or holds something else.
            VocabError: The file is not UTF-8.
        """
        if sum(given is not None for given in (self.prompt, self.file, self.prompt_tokens)) != 1:
            msg = "give exactly one of --prompt, --file and --prompt-tokens."
            raise typer.BadParameter(msg)
        if self.prompt_tokens is not None:
            return _read_tokens(self.prompt_tokens)
        return self.prompt if self.file is None else _read_text(self.file)  # type: ignore[return-value]

    def stops(self) -> list[str]:
        """Return the texts to stop before.

        Raises:
            typer.BadParameter: One is empty or no text, so that it could never be found.
        """
        for text in self.stop or ():
            try:
                found = bool(text.encode())
            except UnicodeEncodeError:  # bytes that are not UTF-8
                found = False
            if not found:
                msg = f"{text!r} is no text that an output could have."
                raise typer.BadParameter(msg, param_hint="--stop")
        return self.stop or []


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What to show and keep."""

    panel: ClassVar[str] = "Output"
    color: Annotated[
        ColorChoice, typer.Option("--color", help="Show accepted drafts in another colour; auto: on a terminal.")
    ] = ColorChoice.AUTO
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.jsonl", dir_okay=False, help="Write what each round did to this file."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of its text.")] = False


@command
def generate(  # noqa: PLR0913 - a group of flags each
    *,
    target: TargetOptions,
    prompt: PromptOptions,
    draft: DraftModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    grammar: GrammarOptions,
    context: ContextOptions,
    shift: ShiftOptions,
    n_slots: Annotated[
        int,
        typer.Option(
            "--parallel", "-np", min=1, max=256, metavar="N", help="Slots to divide the context among; one is used."
        ),
    ] = 1,
    output: OutputOptions,
) -> None:
    """Continue a prompt, and print what was generated."""
    from pyspec.trace import TraceWriter  # noqa: PLC0415 - --help does without

    settings, sizes = sampling.config(), context.config()
    text, stops, wanted = prompt.read(), prompt.stops(), grammar.read()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(
            opened_engine(target, draft, speculation, sizes, n_slots=n_slots, n_keep=shift.n_keep)
        )
        writer = None if output.trace is None else stack.enter_context(TraceWriter(output.trace))
        generation = stack.enter_context(
            engine.stream(
                text,
                max_tokens=None if prompt.max_tokens == -1 else prompt.max_tokens,
                sampling=settings,
                stop=stops,
                grammar=wanted,
                logprobs=output.as_json,
                observer=writer,
            )
        )
        if output.as_json:
            _print_json(engine, generation)
        else:
            _print_text(generation, TextPrinter(sys.stdout, color=shows_color(output.color)))


def _print_text(generation: Generation, printer: TextPrinter) -> None:
    """Print text as it comes; what there is stays, whatever happens."""
    try:
        for chunk in generation:
            printer.show(chunk)
    except BrokenPipeError:  # nobody reads on, and nobody wants a summary
        raise
    except BaseException:
        _end_text(generation, printer)
        raise
    _end_text(generation, printer)


def _end_text(generation: Generation, printer: TextPrinter) -> None:
    """Begin a new line and print the summary, also of a generation that was broken off."""
    generation.close()
    result = generation.result
    if not printer.ends_line:
        typer.echo(err=not sys.stdout.isatty())  # in a pipe, stdout is the text and nothing else
    if result.tokens or result.finish is not Finish.ERROR:
        typer.echo(summary(result), err=True)


def _print_json(engine: Engine, generation: Generation) -> None:
    """Print the result, also of a generation that was broken off."""
    try:
        for _chunk in generation:
            pass
    finally:
        generation.close()
        typer.echo(json.dumps({**_describe(engine), **generation.result.to_dict()}))


def _describe(engine: Engine) -> dict[str, Any]:
    speculation = engine.speculation
    draft_model = speculation.draft_model
    return {
        "model": str(engine.model.path),
        "draft_model": None if draft_model is None else str(draft_model.path),
        "spec": {
            "types": list(speculation.types or ()),
            "options": {k: dict(v) for k, v in speculation.options.items()},
        },
        "context": {"n_ctx": engine.context_config.n_ctx, "n_batch": engine.context_config.n_batch},
    }


def summary(result: Result) -> str:
    """Return a line about a finished generation."""
    stats = result.stats
    parts = [] if result.valid else ["INVALID OUTPUT: acceptance was synthetic"]
    parts.append(_n_tokens(stats.n_emitted))
    if stats.tokens_per_second > 0.0:  # the first token's time is the prompt's
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.n_drafted:
        forced = f", the grammar forced {stats.n_forced}" if stats.n_forced else ""
        drafted = f"{stats.n_accepted} of {stats.n_drafted} draft tokens{forced}"
        parts.append(f"acceptance {stats.acceptance:.0%} ({drafted})")
        parts.append(f"acceptance length {stats.n_emitted / stats.n_rounds:.2f}")
    elif result.drafters:
        parts.append("nothing was drafted")
    parts.append(f"prompt of {_n_tokens(stats.n_prompt)} in {stats.prompt_seconds:.2f} s")
    parts.append(f"finish {result.finish.value if result.finish else 'unknown'}")
    return f"[{', '.join(parts)}]"


def _n_tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _content(file: typer.FileBinaryRead, flag: str) -> bytes:
    try:
        return read_whole(file)
    except OSError as error:
        msg = f"the file {file.name} cannot be read: {error.strerror}."
        raise typer.BadParameter(msg, param_hint=flag) from None


def _read_text(file: typer.FileBinaryRead) -> str:
    try:
        text = _content(file, "--file").decode()
    except UnicodeDecodeError as error:
        msg = f"The prompt file {file.name} is not UTF-8: {error}."
        raise VocabError(msg) from None
    return text.removesuffix("\n")


def _read_tokens(file: typer.FileBinaryRead) -> list[int]:
    data = _content(file, "--prompt-tokens")
    try:
        tokens = json.loads(data)
    except (ValueError, RecursionError) as error:  # malformed, not even UTF-8, or nested without end
        msg = f"it is not JSON: {error}."
        raise typer.BadParameter(msg, param_hint="--prompt-tokens") from None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        msg = "it must hold a list of token ids, for example [1, 15043]."
        raise typer.BadParameter(msg, param_hint="--prompt-tokens")
    return tokens
