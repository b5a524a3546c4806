"""``pyspec probe``: what speculation can do for a model on this machine."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspec import drafters
from pyspec.cli.failing import one_line, wrong_usage
from pyspec.cli.grouping import command
from pyspec.cli.options import ContextOptions, TargetOptions, gpu_layers
from pyspec.cli.speculating import DraftModelOptions
from pyspec.cli.terminal import load_model, print_table, share_bar
from pyspec.config import ContextConfig, ModelConfig
from pyspec.errors import PyspecError

if TYPE_CHECKING:
    from pyspec.cli.probing import Timing
    from pyspec.llama import Context, Model

_FLOAT_BYTES = 4
_VERDICT_N_CTX = 256  # tokens of context, enough to find out whether a drafter can work


@command
def probe(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file or a name, as for -m.")],
    *,
    n_gpu_layers: Annotated[
        int, typer.Option("--gpu-layers", "-ngl", metavar="N", parser=gpu_layers, help="Layers on the GPU; -1: all.")
    ] = -1,
    draft: DraftModelOptions,
    context: ContextOptions,
    timing: Annotated[bool, typer.Option("--timing/--no-timing", help="Measure decodes, for some seconds.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find out whether and how far speculation can help a model, with a draft model or without."""
    sizes, draft_config = context.config(), draft.config()
    target_config = TargetOptions(model=name, n_gpu_layers=n_gpu_layers).config()
    with load_model(name, target_config, flag="MODEL") as model:
        report: dict[str, Any] = {"target": _examined(model, sizes, timing=timing)}
        if draft.draft_model is None:
            _add_drafters(report, model, None, sizes)
        else:
            _add_draft_model(report, model, (draft.draft_model, draft_config), sizes, timing=timing)
    report["possible"] = any(entry["possible"] for entry in report["drafters"])
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)


def _add_draft_model(
    report: dict[str, Any], model: Model, source: tuple[str, ModelConfig], sizes: ContextConfig, *, timing: bool
) -> None:
    from pyspec.speculation.vocab_gate import vocab_difference  # noqa: PLC0415 - --help does without

    with load_model(*source, flag="-md") as draft_model:
        report["draft_model"] = _examined_draft(draft_model, sizes, timing=timing)
        difference = vocab_difference(model.vocab, draft_model.vocab)
        report["vocabularies"] = {"fit": difference is None, "difference": difference}
        _add_drafters(report, model, draft_model, sizes)
    if "timing" in report["draft_model"]:
        report["draft_cost"] = report["draft_model"]["timing"]["seconds"][0] / report["target"]["timing"]["seconds"][0]


def _examined_draft(model: Model, sizes: ContextConfig, *, timing: bool) -> dict[str, Any]:
    """Say what a draft model is made for; one that is a language model by itself is measured like a target."""
    from pyspec.speculation.detection import drafter_for  # noqa: PLC0415 - --help does without

    if model.is_head:
        report: dict[str, Any] = {"path": str(model.path), "description": model.info.description}
    else:
        report = _examined(model, sizes, timing=timing)
    return {**report, "made_for": drafter_for(model)}


def _examined(model: Model, sizes: ContextConfig, *, timing: bool) -> dict[str, Any]:
    """Make a context as an engine would, and measure it."""
    from pyspec.cli.probing import N_TIMED, time_decodes  # noqa: PLC0415 - it loads the native library
    from pyspec.engine import Engine  # noqa: PLC0415
    from pyspec.speculation.config import Speculation  # noqa: PLC0415

    with wrong_usage(flag="--ctx-size"):
        sizes = dataclasses.replace(sizes, n_outputs_max=sizes.n_outputs_max or N_TIMED)
        engine = Engine(model, speculation=Speculation("none"), context=sizes)
    with engine:
        report = engine.call(lambda workshop: _measured(workshop.context))
        if timing:
            with share_bar(f"timing {model.path.name}") as progress:
                measured = engine.call(lambda workshop: time_decodes(workshop.context, progress=progress))
                report["timing"] = _timing_report(measured)
    return report


def _measured(context: Context) -> dict[str, Any]:
    """Return what a context is, and what its memory costs."""
    from pyspec.cli.probing import memory_cost  # noqa: PLC0415 - it loads the native library

    cost = memory_cost(context)
    return {
        "path": str(context.model.path),
        "description": context.model.info.description,
        "rollback": context.memory.rollback.value,
        "n_ctx": context.n_ctx_seq,
        "n_ctx_train": context.model.info.n_ctx_train,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "logits_row": _FLOAT_BYTES * context.n_vocab,
        "memory": None if cost is None else dataclasses.asdict(cost),
    }


def _timing_report(timing: Timing) -> dict[str, Any]:
    n, gain = timing.ceiling()
    return {
        "seconds": list(timing.seconds),
        "relative": list(timing.relative),
        "repeats": timing.repeats,
        "ceiling": {"n": n, "speed_up": gain},
    }


def _add_drafters(report: dict[str, Any], model: Model, draft_model: Model | None, sizes: ContextConfig) -> None:
    """Say which drafters can work, and which of them ``auto`` takes."""
    from pyspec.drafters.automatic import resolved  # noqa: PLC0415 - --help does without
    from pyspec.speculation.config import Speculation  # noqa: PLC0415

    report["drafters"] = _verdicts(model, draft_model, sizes)
    possible = {entry["name"] for entry in report["drafters"] if entry["possible"]}
    report["auto"] = [name for name in resolved(Speculation(draft_model=draft_model)).names if name in possible]


def _verdicts(model: Model, draft_model: Model | None, sizes: ContextConfig) -> list[dict[str, Any]]:
    """Try each installed drafter in an engine of its own; only it knows whether it can work."""
    from pyspec.engine import Engine  # noqa: PLC0415
    from pyspec.speculation.config import Speculation  # noqa: PLC0415
    from pyspec.speculation.detection import drafter_for  # noqa: PLC0415

    small = dataclasses.replace(sizes, n_ctx=min(sizes.n_ctx or _VERDICT_N_CTX, _VERDICT_N_CTX))
    verdicts = []
    for name in drafters.names():
        if name == "none":
            continue
        reason = None
        try:
            own = name == "draft-mtp" and draft_model is not None and drafter_for(draft_model) != name
            given = draft_model if name.startswith("draft-") and not own else None
            speculation = Speculation(name, draft_model=given)
            Engine(model, speculation=speculation, context=small).close()
        except PyspecError as error:
            reason = one_line(error)
        verdicts.append({"name": name, "possible": reason is None, "reason": reason})
    return verdicts


def _print(report: dict[str, Any]) -> None:
    for title, key in (("Target", "target"), ("Draft model", "draft_model")):
        if key in report:
            _print_model(title, report[key])
    if "vocabularies" in report:
        typer.echo(f"Vocabularies\n  {report['vocabularies']['difference'] or 'they fit'}\n")
    typer.echo("Drafters")
    rows = [(entry["name"], "possible" if entry["possible"] else entry["reason"]) for entry in report["drafters"]]
    print_table(rows, indent=2)
    typer.echo(f"\nauto, the default, chooses round by round among {', '.join([*report['auto'], 'plain decoding'])}.")
    if "timing" in report["target"]:
        _print_timing(report["target"]["timing"], report.get("draft_cost"))


def _print_model(title: str, model: dict[str, Any]) -> None:
    typer.echo(title)
    rows = [("file", model["path"]), ("model", model["description"])]
    if "made_for" in model:
        rows.append(("made for", model["made_for"]))
    if "rollback" in model:
        rows += [
            ("rollback", model["rollback"]),
            ("context", f"{model['n_ctx']} tokens (trained for {model['n_ctx_train']})"),
            ("batch", f"{model['n_batch']} tokens, {model['n_ubatch']} at once"),
            ("logits", _logits_text(model["logits_row"])),
        ]
    if model.get("memory") is not None:
        rows.append(("memory", _memory_text(model["memory"])))
        if model["memory"]["checkpoint"]:
            rows.append(("checkpoint", _checkpoint_text(model["memory"])))
    print_table(rows, indent=2)
    typer.echo()


def _checkpoint_text(memory: dict[str, Any]) -> str:
    from rich.filesize import decimal  # noqa: PLC0415

    return f"{decimal(memory['checkpoint'])}; the same again for each snapshot, one per drafted token and sequence"


def _logits_text(n_bytes: int) -> str:
    from rich.filesize import decimal  # noqa: PLC0415

    return f"{decimal(n_bytes)} per row; an engine keeps slots x (1 + longest draft) rows"


def _memory_text(memory: dict[str, Any]) -> str:
    from rich.filesize import decimal  # noqa: PLC0415

    if memory["per_token"] < 1:
        return f"{decimal(memory['fixed'])} per sequence, however long"
    return f"{decimal(round(memory['per_token']))} per token, {decimal(memory['full'])} with the context full"


def _print_timing(timing: dict[str, Any], draft_cost: float | None) -> None:
    from pyspec.cli.probing import Timing  # noqa: PLC0415 - it loads the native library

    measured = Timing(tuple(timing["seconds"]), timing["repeats"])
    typer.echo("\nTime to verify n tokens with the target, from an empty memory")
    rows = [
        (str(n), f"{seconds * 1e3:.2f} ms", f"{relative:.2f}", f"{n / relative:.2f}")
        for n, (seconds, relative) in enumerate(zip(measured.seconds, measured.relative, strict=True), 1)
    ]
    print_table(rows, header=("n", "time", "t(n)", "n/t(n)"), indent=2)
    n, gain = measured.ceiling()
    typer.echo(
        f"\nCeiling: {gain:.2f} times plain decoding, when drafts of {n - 1} tokens cost nothing and always stand."
    )
    if draft_cost is not None:
        n, gain = measured.ceiling(draft_cost)
        best = f"{gain:.2f} times, when drafts of {n - 1} tokens always stand" if n > 1 else "no gain"
        typer.echo(f"With this draft model: {best}; drafting a token takes {draft_cost:.2f} of a target decode.")
