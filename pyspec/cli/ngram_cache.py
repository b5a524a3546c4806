"""``pyspec ngram-cache``: make, merge and describe the files of the drafter ngram-cache."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspec.cli.grouping import command
from pyspec.cli.terminal import byte_bar, load_model, print_table
from pyspec.config import ModelConfig
from pyspec.errors import NgramFileError, VocabError
from pyspec.files import refuse_device

if TYPE_CHECKING:
    from pyspec.drafters.ngram_corpus import PairCounter
    from pyspec.drafters.ngram_counts import NgramCounts

__all__ = ["app"]

app = typer.Typer(
    name="ngram-cache", help="Make, merge and describe files for the drafter ngram-cache.", no_args_is_help=True
)

_STDIN = Path("-")

Texts = Annotated[list[Path], typer.Argument(metavar="FILE", help="UTF-8 texts; -: stdin.")]
Caches = Annotated[
    list[Path], typer.Argument(metavar="CACHE", exists=True, dir_okay=False, help="The later, the more recent.")
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", dir_okay=False, help="The file to make.")]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("build")
@command
def build(
    files: Texts,
    *,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="Whose tokens to count; as for `pyspec generate`.")
    ],
    output: Output,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Count which token follows each pair of tokens in texts, for --lookup-cache-static."""
    from pyspec.drafters import ngram_file  # noqa: PLC0415 - --help does without
    from pyspec.drafters.ngram_corpus import PairCounter  # noqa: PLC0415

    _check_texts(files, output)
    _check_output(output, force=force)
    with load_model(model, ModelConfig(vocab_only=True), flag="--model") as loaded:
        counter = PairCounter(loaded.vocab)
        with byte_bar() as progress:
            _read_texts(files, counter, progress)
    counts = counter.total()
    ngram_file.write(output, counts)
    _report(files, output, {"tokens": counter.n_tokens, **_describe(output, counts)}, as_json=as_json)


@app.command("merge")
@command
def merge(caches: Caches, *, output: Output, force: Force = False, as_json: AsJson = False) -> None:
    """Add up caches; OUT may be one of them."""
    from pyspec.drafters import ngram_file  # noqa: PLC0415
    from pyspec.drafters.ngram_counts import merged  # noqa: PLC0415

    _check_output(output, force=force)
    alone = ngram_file.locked(output) if output.exists() else contextlib.nullcontext()
    with alone:  # it may be a dynamic cache that is saved meanwhile
        counts = merged(map(ngram_file.read, caches))
        ngram_file.write(output, counts)
    _report(caches, output, _describe(output, counts), as_json=as_json)


@app.command("info")
@command
def info(
    cache: Annotated[Path, typer.Argument(metavar="CACHE", exists=True, dir_okay=False)], *, as_json: AsJson = False
) -> None:
    """Describe a cache."""
    from pyspec.drafters import ngram_file  # noqa: PLC0415

    counts = ngram_file.read(cache)
    described = {"path": str(cache), "form": ngram_file.form_of(cache), **_describe(cache, counts)}
    if as_json:
        typer.echo(json.dumps(described))
        return
    sizes = described.pop("ngrams")
    rows = [(name.replace("_", " "), str(value)) for name, value in described.items()]
    print_table([*rows, *((f"n-grams of {n}", str(n_ngrams)) for n, n_ngrams in sizes.items())])


def _read_texts(files: Sequence[Path], counter: PairCounter, progress: Callable[[int, int, str], None] | None) -> None:
    """Count the texts one after the other.

    Raises:
        VocabError: One cannot be read, or is not UTF-8.
    """
    from pyspec.drafters.ngram_corpus import pieces  # noqa: PLC0415

    total = 0 if _STDIN in files else sum(file.stat().st_size for file in files)
    n_read = 0
    for file in files:
        source = sys.stdin.fileno() if file == _STDIN else file
        try:
            with open(source, encoding="utf-8", newline="", closefd=file != _STDIN) as text:
                refuse_device(text)
                for piece in pieces(text):
                    counter.add(piece)
                    n_read += len(piece.text.encode())
                    if progress is not None:
                        progress(n_read, total, "counting")
        except OSError as error:
            msg = f"The text {file} cannot be read: {error.strerror}."
            raise VocabError(msg) from None
        except UnicodeDecodeError as error:
            msg = f"The text {file} is not UTF-8: {error.reason}."
            raise VocabError(msg) from None


def _check_texts(files: Sequence[Path], output: Path) -> None:
    for file in files:
        if file == _STDIN:
            continue
        if not file.exists() or file.is_dir():
            msg = f"{file} {'is a folder' if file.is_dir() else 'does not exist'}."
            raise typer.BadParameter(msg, param_hint="FILE")
        if output.exists() and file.samefile(output):
            msg = f"{output} is one of the texts."
            raise typer.BadParameter(msg, param_hint="OUT")


def _check_output(output: Path, *, force: bool) -> None:
    if not output.parent.is_dir():
        msg = f"the folder {output.parent} does not exist."
        raise typer.BadParameter(msg, param_hint="OUT")
    if output.exists() and not force:
        msg = f"{output} exists; give --force to replace it, or another OUT"
        raise NgramFileError(msg)


def _report(inputs: Sequence[Path], output: Path, made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"inputs": list(map(str, inputs)), "output": str(output), **made}))
        return
    tokens = f"{made['tokens']} tokens, " if "tokens" in made else ""
    n_ngrams, n_bytes = sum(made["ngrams"].values()), made["bytes"]
    typer.echo(f"{output}: {tokens}{n_ngrams} n-grams, {made['followers']} followers, {n_bytes / 1e6:.1f} MB")


def _describe(path: Path, counts: NgramCounts) -> dict[str, Any]:
    from pyspec.drafters.ngram_counts import MAX_N, NO_TOKEN  # noqa: PLC0415

    sizes = (counts.ngrams != NO_TOKEN).sum(axis=1)
    return {
        "bytes": path.stat().st_size,
        "ngrams": {str(n): int((sizes == n).sum()) for n in range(1, MAX_N + 1)},
        "followers": len(counts.tokens),
        "counted": int(counts.counts.sum()),
        "largest_token": counts.largest_token,
    }
