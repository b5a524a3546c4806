"""``pyspec serve``: an OpenAI-compatible server."""

from __future__ import annotations

import contextlib
import logging
import signal
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pyspec.cli.failing import wrong_usage
from pyspec.cli.grouping import command
from pyspec.cli.opening import opened_engine
from pyspec.cli.options import ContextOptions, SamplingOptions, ShiftOptions, TargetOptions
from pyspec.cli.signals import exit_code
from pyspec.cli.speculating import DraftModelOptions, SpeculationOptions
from pyspec.errors import LibraryNotFoundError
from pyspec.files import read_whole

if TYPE_CHECKING:
    from pyspec.config import SamplingConfig
    from pyspec.server import ServerSettings

_MIB = 1 << 20
_FLAGS = {
    "aliases": "--alias",
    "api_keys": "--api-key",
    "allowed_hosts": "--allow-host",
    "cors_origins": "--cors-origin",
    "max_tokens": "--predict",
    "pooling": "--pooling",
    "timeout": "--timeout",
    "body_timeout": "--body-timeout",
    "shutdown_timeout": "--shutdown-timeout",
    "max_body_bytes": "--max-body",
    "max_prompt_tokens": "--max-prompt",
    "max_requests": "--max-requests",
    "max_choices": "--max-choices",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where to listen, whom to let in, what to say."""

    panel: ClassVar[str] = "Server"
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; by default, for this machine only.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: any free one.")] = 8080
    alias: Annotated[
        str | None, typer.Option("--alias", "-a", metavar="LIST", help="Names of the model, separated by commas.")
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="LIST",
            envvar="PYSPEC_API_KEY",
            help="Keys, separated by commas; requests must bring one. Other users can see what is given here.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", metavar="FILE", dir_okay=False, help="A file with a key in each line."),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Let in requests for this name. May be repeated."),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        typer.Option("--cors-origin", metavar="ORIGIN", help="Let pages of this origin use it. May be repeated."),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option("--chat-template", metavar="JINJA", help="In place of the model's own; none: without any."),
    ] = None
    chat_template_file: Annotated[
        Path | None, typer.Option("--chat-template-file", metavar="FILE", dir_okay=False, help="A file with one.")
    ] = None
    pooling: Annotated[
        str | None,
        typer.Option("--pooling", metavar="KIND", help="How embeddings are pooled: mean, cls or last."),
    ] = None
    slots: Annotated[bool, typer.Option("--slots/--no-slots", help="Answer /slots.")] = True
    metrics: Annotated[bool, typer.Option("--metrics/--no-metrics", help="Answer /metrics.")] = True
    log_json: Annotated[bool, typer.Option("--log-json", help="Write log lines as JSON.")] = False

    def keys(self) -> list[str]:
        """Return the keys that were given.

        Raises:
            typer.BadParameter: The file cannot be read, or has none.
        """
        keys = _listed(self.api_key)
        if self.api_key_file is not None:
            lines = _read(self.api_key_file, "--api-key-file").splitlines()
            found = [line.strip() for line in lines if line.strip()]
            if not found:
                msg = f"{self.api_key_file} has no key."
                raise typer.BadParameter(msg, param_hint="--api-key-file")
            keys += found
        return keys

    def template(self) -> str | None:
        """Return the chat template that was given.

        Raises:
            typer.BadParameter: There are two, or the file cannot be read.
        """
        if self.chat_template_file is None:
            return self.chat_template
        if self.chat_template is not None:
            msg = "give one of --chat-template and --chat-template-file."
            raise typer.BadParameter(msg)
        return _read(self.chat_template_file, "--chat-template-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """How much at once, and for how long."""

    panel: ClassVar[str] = "Limits"
    n_slots: Annotated[int, typer.Option("--parallel", "-np", metavar="N", help="Generations at once.")] = 4
    n_queue: Annotated[int, typer.Option("--queue", metavar="N", help="Generations that may wait for a slot.")] = 64
    cache_ram: Annotated[
        int | None,
        typer.Option(
            "--cache-ram", "-cram", min=0, metavar="MIB", help="Memory for beginnings of prompts that may come again."
        ),
    ] = None
    max_tokens: Annotated[
        int,
        typer.Option(
            "--predict", "--n-predict", "-n", min=-1, metavar="N", help="Most tokens where a request does not say."
        ),
    ] = -1
    max_prompt: Annotated[
        int | None, typer.Option("--max-prompt", metavar="N", help="Longest prompt in tokens; what the context holds.")
    ] = None
    max_choices: Annotated[int, typer.Option("--max-choices", metavar="N", help="Most answers of one request.")] = 16
    max_requests: Annotated[int, typer.Option("--max-requests", metavar="N", help="Most requests at once.")] = 256
    max_body: Annotated[int, typer.Option("--max-body", metavar="BYTES", help="Longest request.")] = 8 * _MIB
    timeout: Annotated[
        float, typer.Option("--timeout", "-to", metavar="S", help="Seconds for a request, waiting included.")
    ] = 600.0
    body_timeout: Annotated[
        float, typer.Option("--body-timeout", metavar="S", help="Seconds for a request to arrive.")
    ] = 30.0
    shutdown_timeout: Annotated[
        float, typer.Option("--shutdown-timeout", metavar="S", help="Seconds for what is running at the end.")
    ] = 30.0


@command
def serve(  # noqa: PLR0913 - a group of flags each
    *,
    target: TargetOptions,
    server: ServerOptions,
    limits: LimitOptions,
    draft: DraftModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    context: ContextOptions,
    shift: ShiftOptions,
) -> None:
    """Answer requests over HTTP, as OpenAI and llama.cpp do, until Ctrl-C, SIGTERM or SIGHUP."""
    running, app = _server_modules()
    settings = _settings(server, limits, sampling.config())
    _start_logging(as_json=server.log_json)
    options = {"n_slots": limits.n_slots, "n_queue": limits.n_queue, "n_keep": shift.n_keep}
    if limits.cache_ram is not None:
        options["cache_bytes"] = limits.cache_ram * _MIB
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(running.bind(server.host, server.port))  # first, because loading takes its time
        engine = stack.enter_context(opened_engine(target, draft, speculation, context.config(), **options))
        stopped_by = running.serve(app.make_service(engine, settings), bound, typer.echo)
    if stopped_by not in (None, signal.SIGTERM):  # which is how a server is meant to be ended
        raise typer.Exit(exit_code(stopped_by))


def _server_modules() -> tuple[ModuleType, ModuleType]:
    try:
        from pyspec.server import app, running  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        msg = f"The server needs packages that are not installed ({error}); run: pip install 'pyspec-llama[server]'."
        raise LibraryNotFoundError(msg) from None
    return running, app


def _settings(server: ServerOptions, limits: LimitOptions, sampling: SamplingConfig) -> ServerSettings:
    from pyspec.server import ServerSettings  # noqa: PLC0415 - --help does without
    from pyspec.server.security import default_hosts  # noqa: PLC0415

    keys = server.keys()
    with wrong_usage(_FLAGS):
        return ServerSettings(
            aliases=_listed(server.alias),
            api_keys=keys,
            allowed_hosts=default_hosts(server.host, has_keys=bool(keys), more=server.allow_host or ()),
            cors_origins=server.cors_origin or (),
            sampling=sampling,
            max_tokens=None if limits.max_tokens == -1 else limits.max_tokens,
            chat_template=server.template(),
            pooling=server.pooling,
            timeout=limits.timeout,
            body_timeout=limits.body_timeout,
            shutdown_timeout=limits.shutdown_timeout,
            max_body_bytes=limits.max_body,
            max_prompt_tokens=limits.max_prompt,
            max_requests=limits.max_requests,
            max_choices=limits.max_choices,
            slots=server.slots,
            metrics=server.metrics,
        )


def _start_logging(*, as_json: bool) -> None:
    """Write a line for each request, unless only errors are wanted."""
    from pyspec.server import logs  # noqa: PLC0415 - --help does without

    is_default = logging.getLogger("pyspec").level == logging.WARNING
    logs.set_up(as_json=as_json, level=logging.INFO if is_default else None)


def _listed(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


def _read(path: Path, flag: str) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return read_whole(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        msg = f"{path} cannot be read: {reason}."
        raise typer.BadParameter(msg, param_hint=flag) from None
