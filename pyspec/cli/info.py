"""``pyspec info``: what is installed, and what a model file is."""

from __future__ import annotations

import dataclasses
import json
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pyspec
from pyspec.cli.grouping import command
from pyspec.cli.terminal import load_model, print_table
from pyspec.config import ModelConfig
from pyspec.errors import LibraryError

if TYPE_CHECKING:
    from pyspec.llama import Model

_LONGEST_VALUE = 200


@command
def info(
    name: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A GGUF file or a name, as for -m, to describe as well.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, the native library, devices and drafters; with MODEL also what the file says."""
    report, error = _installation()
    if error is None and name is not None:
        with load_model(name, ModelConfig(n_gpu_layers=0, repack=False), flag="MODEL") as model:
            report["model"] = _model(model)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if error is not None:
        raise error


def _installation() -> tuple[dict[str, Any], LibraryError | None]:
    """Return what is installed, and why there is no native library if there is none."""
    from pyspec.drafters.automatic import resolved  # noqa: PLC0415 - --help does without
    from pyspec.llama.devices import devices, library_candidates, library_info  # noqa: PLC0415
    from pyspec.speculation.config import Speculation  # noqa: PLC0415

    report: dict[str, Any] = {
        "version": pyspec.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "drafters": pyspec.drafters.names(),
        "auto": list(resolved(Speculation()).names),
        "library": None,
        "devices": [],
    }
    try:
        report["library"] = library_info()
        report["devices"] = [dataclasses.asdict(device) for device in devices()]
    except LibraryError as error:
        report["tried"] = [str(path) for path in library_candidates()]
        return report, error
    return report, None


def _model(model: Model) -> dict[str, Any]:
    vocab = model.vocab
    return {
        "path": str(model.path),
        **dataclasses.asdict(model.info),
        "vocab": {"type": vocab.type.name, "n_tokens": vocab.n_tokens, "bos": vocab.bos, "eog": sorted(vocab.eog)},
        "chat_template": model.chat_template() is not None,
        "metadata": dict(model.metadata),
    }


def _print(report: dict[str, Any]) -> None:
    library = report["library"]
    rows = [("pyspec", report["version"]), ("Python", f"{report['python']} on {report['platform']}")]
    if library is None:
        rows += [("library", "not usable; tried:"), *(("", path) for path in report["tried"])]
    else:
        rows += [
            ("library", library["path"]),
            ("ABI", str(library["abi"])),
            ("llama.cpp", library["llama_cpp"]),
            ("system", library["system"]),
        ]
    rows += [(f"device {i}", _device(device)) for i, device in enumerate(report["devices"])]
    rows.append(("drafters", ", ".join(report["drafters"]) or "none are registered; install the package"))
    rows.append(("auto", f"the default: what is best of {_shown([*report['auto'], 'a draft model'])}, round by round"))
    print_table(rows)
    if "model" in report:
        _print_model(report["model"])


def _print_model(model: dict[str, Any]) -> None:
    vocab, metadata = model.pop("vocab"), model.pop("metadata")
    typer.echo("\nModel")
    rows = [(key, _shown(value)) for key, value in model.items()]
    rows.append(("vocabulary", f"{vocab['n_tokens']} tokens, {vocab['type']}, ends with {_shown(vocab['eog'])}"))
    print_table(rows, indent=2)
    typer.echo("\nMetadata")
    print_table([(key, _shortened(value)) for key, value in sorted(metadata.items())], indent=2)


def _device(device: dict[str, Any]) -> str:
    memory = f", {device['memory_free'] >> 20} of {device['memory_total'] >> 20} MiB free"
    known = memory if device["memory_total"] else ""
    return f"{device['name']}: {device['description']} ({device['kind']}, {device['backend']}{known})"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shortened(value: str) -> str:
    line = value.replace("\n", "\\n")
    return line if len(line) <= _LONGEST_VALUE else f"{line[:_LONGEST_VALUE]}... ({len(value)} characters)"
