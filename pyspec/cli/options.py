"""The flags of a model at work, in groups; named as in llama.cpp where it has them."""

from __future__ import annotations

import codecs
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar

import typer

from pyspec.cli.failing import wrong_usage
from pyspec.config import CACHE_TYPES, ContextConfig, ModelConfig, SamplingConfig
from pyspec.files import refuse_device

if TYPE_CHECKING:
    from pyspec.llama.grammar import Grammar

_TYPES = ", ".join(CACHE_TYPES)
_MAX_SHOWN = 40  # characters of what was given that a message quotes
_DEFAULT_UBATCH = 512
_CONTEXT_FLAGS = {
    "n_ctx": "--ctx-size",
    "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size",
    "n_threads": "--threads",
    "n_threads_batch": "--threads-batch",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
}
_SAMPLING_FLAGS = {
    "temperature": "--temp",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "typical_p": "--typical-p",
    "repeat_penalty": "--repeat-penalty",
    "frequency_penalty": "--frequency-penalty",
    "presence_penalty": "--presence-penalty",
    "repeat_last_n": "--repeat-last-n",
    "seed": "--seed",
    "top_n_sigma": "--top-n-sigma",
    "xtc_probability": "--xtc-probability",
    "xtc_threshold": "--xtc-threshold",
    "dry_multiplier": "--dry-multiplier",
    "dry_base": "--dry-base",
    "dry_allowed_length": "--dry-allowed-length",
    "dry_penalty_last_n": "--dry-penalty-last-n",
    "dynatemp_range": "--dynatemp-range",
    "dynatemp_exponent": "--dynatemp-exp",
    "mirostat": "--mirostat",
    "mirostat_lr": "--mirostat-lr",
    "mirostat_ent": "--mirostat-ent",
}


class FlashAttention(str, enum.Enum):
    """Values of ``-fa``."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


def gpu_layers(text: object) -> int:
    """Read a number of layers; "all" and "auto" are -1."""
    if text in ("all", "auto"):
        return -1
    try:
        return int(str(text))
    except ValueError:
        msg = f"{text!r} is neither a number nor 'all'."
        raise typer.BadParameter(msg) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Which model, and where it lies."""

    panel: ClassVar[str] = "Model"
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="A GGUF file, a name of `pyspec models list`, or hf:owner/repo/file."
        ),
    ]
    n_gpu_layers: Annotated[
        int,
        typer.Option(
            "--gpu-layers", "--n-gpu-layers", "-ngl", metavar="N", parser=gpu_layers, help="Layers on the GPU; -1: all."
        ),
    ] = -1
    mmap: Annotated[
        bool,
        typer.Option("--mmap/--no-mmap", help="Map the model's file, or read it, so that it may change meanwhile."),
    ] = True
    mlock: Annotated[bool, typer.Option("--mlock", help="Keep the weights in RAM.")] = False

    def config(self) -> ModelConfig:
        """Return the settings to load the target with."""
        with wrong_usage(flag="--gpu-layers"):
            return ModelConfig(n_gpu_layers=self.n_gpu_layers, use_mmap=self.mmap, use_mlock=self.mlock)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """Sizes and types of the target's context."""

    panel: ClassVar[str] = "Context"
    n_ctx: Annotated[
        int,
        typer.Option("--ctx-size", "-c", metavar="N", help="Tokens of context; 0: what the model has, at most 4096."),
    ] = 0
    n_batch: Annotated[int, typer.Option("--batch-size", "-b", metavar="N", help="Most tokens in a decode.")] = 2048
    n_ubatch: Annotated[
        int | None,
        typer.Option("--ubatch-size", "-ub", metavar="N", help="Most tokens computed at once (512)."),
    ] = None
    n_threads: Annotated[
        int, typer.Option("--threads", "-t", metavar="N", help="Threads to generate; 0: the physical cores.")
    ] = 0
    n_threads_batch: Annotated[
        int, typer.Option("--threads-batch", "-tb", metavar="N", help="Threads to read the prompt; 0: as for -t.")
    ] = 0
    flash_attn: Annotated[FlashAttention, typer.Option("--flash-attn", "-fa", help="Flash attention.")] = (
        FlashAttention.AUTO
    )
    type_k: Annotated[str, typer.Option("--cache-type-k", "-ctk", metavar="TYPE", help=f"Keys: {_TYPES}.")] = "f16"
    type_v: Annotated[
        str, typer.Option("--cache-type-v", "-ctv", metavar="TYPE", help="Values, of the same types.")
    ] = "f16"
    kv_unified: Annotated[
        bool | None,
        typer.Option(
            "--kv-unified/--no-kv-unified",
            "-kvu/-no-kvu",
            help="One buffer, all of it for any slot, or one for each slot. By default one with a part for each.",
        ),
    ] = None

    def config(self) -> ContextConfig:
        """Return the settings of the context."""
        n_ubatch = min(_DEFAULT_UBATCH, max(self.n_batch, 1)) if self.n_ubatch is None else self.n_ubatch
        with wrong_usage(_CONTEXT_FLAGS):
            return ContextConfig(
                n_ctx=self.n_ctx,
                n_batch=self.n_batch,
                n_ubatch=n_ubatch,
                n_threads=self.n_threads,
                n_threads_batch=self.n_threads_batch,
                flash_attn=self.flash_attn.value,
                type_k=self.type_k,
                type_v=self.type_v,
                kv_unified=self.kv_unified,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftOptions:
    """What becomes of a request whose context is full."""

    panel: ClassVar[str] = "Context"
    shifts: Annotated[
        bool,
        typer.Option("--context-shift/--no-context-shift", help="When it is full, forget half of it and go on."),
    ] = False
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=0, metavar="N", help="First tokens never to forget, with --context-shift."),
    ] = None

    @property
    def n_keep(self) -> int | None:
        """The argument of ``Engine``.

        Raises:
            typer.BadParameter: There is something to keep, and nothing is forgotten.
        """
        if self.keep is not None and not self.shifts:
            msg = "without --context-shift nothing is forgotten."
            raise typer.BadParameter(msg, param_hint="--keep")
        return (self.keep or 0) if self.shifts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the target chooses a token."""

    panel: ClassVar[str] = "Sampling"
    temperature: Annotated[
        float,
        typer.Option(
            "--temp", "--temperature", metavar="T", help="0: always the most likely token. llama.cpp's default is 0.8."
        ),
    ] = 0.0
    top_k: Annotated[int, typer.Option("--top-k", metavar="N", help="Most tokens to choose from; 0: all.")] = 40
    top_p: Annotated[float, typer.Option("--top-p", metavar="P", help="Share of the tokens to choose from.")] = 0.95
    min_p: Annotated[float, typer.Option("--min-p", metavar="P", help="Least share of the best one's.")] = 0.05
    typical_p: Annotated[float, typer.Option("--typical-p", "--typical", metavar="P", help="1: off.")] = 1.0
    repeat_penalty: Annotated[float, typer.Option("--repeat-penalty", metavar="X", help="1: off.")] = 1.0
    repeat_last_n: Annotated[
        int, typer.Option("--repeat-last-n", metavar="N", help="Tokens that the penalties look at.")
    ] = 64
    frequency_penalty: Annotated[float, typer.Option("--frequency-penalty", metavar="X", help="0: off.")] = 0.0
    presence_penalty: Annotated[float, typer.Option("--presence-penalty", metavar="X", help="0: off.")] = 0.0
    top_n_sigma: Annotated[float, typer.Option("--top-n-sigma", metavar="X", help="-1: off.")] = -1.0
    xtc_probability: Annotated[float, typer.Option("--xtc-probability", metavar="P", help="0: off.")] = 0.0
    xtc_threshold: Annotated[float, typer.Option("--xtc-threshold", metavar="P", help="Of XTC.")] = 0.1
    dry_multiplier: Annotated[float, typer.Option("--dry-multiplier", metavar="X", help="0: off.")] = 0.0
    dry_base: Annotated[float, typer.Option("--dry-base", metavar="X", help="Of DRY.")] = 1.75
    dry_allowed_length: Annotated[int, typer.Option("--dry-allowed-length", metavar="N", help="Of DRY.")] = 2
    dry_penalty_last_n: Annotated[
        int, typer.Option("--dry-penalty-last-n", metavar="N", help="Tokens that DRY looks at.")
    ] = 64
    dry_sequence_breaker: Annotated[
        list[str] | None,
        typer.Option("--dry-sequence-breaker", metavar="TEXT", help="In place of DRY's own; none: no breakers."),
    ] = None
    dynatemp_range: Annotated[float, typer.Option("--dynatemp-range", metavar="X", help="0: off.")] = 0.0
    dynatemp_exponent: Annotated[float, typer.Option("--dynatemp-exp", metavar="X", help="Of dynamic temp.")] = 1.0
    mirostat: Annotated[int, typer.Option("--mirostat", metavar="N", help="Version 1 or 2; 0: off.")] = 0
    mirostat_lr: Annotated[float, typer.Option("--mirostat-lr", metavar="X", help="Its learning rate.")] = 0.1
    mirostat_ent: Annotated[float, typer.Option("--mirostat-ent", metavar="X", help="Its target entropy.")] = 5.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", "-l", metavar="ID=BIAS", help="Add BIAS to a token's logit; -inf bans it. May be repeated."
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", "-s", metavar="N", help="Seed of the draws; -1: another one each time.")
    ] = None

    def config(self) -> SamplingConfig:
        """Return the settings of the sampler."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in _SAMPLING_FLAGS}
        settings["seed"] = None if self.seed == -1 else self.seed
        if self.dry_sequence_breaker is not None:
            texts = self.dry_sequence_breaker
            settings["dry_sequence_breakers"] = () if texts == ["none"] else tuple(texts)
        biases = dict(_bias(text) for text in self.logit_bias or ())
        flags = {**_SAMPLING_FLAGS, "dry_sequence_breakers": "--dry-sequence-breaker"}
        with wrong_usage(flags, flag="--logit-bias"):
            return SamplingConfig(logit_bias=biases, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarOptions:
    """What the output must look like."""

    panel: ClassVar[str] = "Grammar"
    grammar: Annotated[str | None, typer.Option("--grammar", metavar="GBNF", help="A grammar in GBNF.")] = None
    grammar_file: Annotated[
        typer.FileBinaryRead | None, typer.Option("--grammar-file", metavar="FILE", help="A file with one; -: stdin.")
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(
            "--json-schema", "-j", metavar="SCHEMA", help="A JSON schema, or a file with one; {}: any object."
        ),
    ] = None
    json_schema_file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option("--json-schema-file", "-jf", metavar="FILE", help="A file with a JSON schema; -: stdin."),
    ] = None
    regex: Annotated[str | None, typer.Option("--regex", metavar="REGEX", help="A regular expression.")] = None
    lark: Annotated[str | None, typer.Option("--lark", metavar="LARK", help="A grammar in Lark's syntax.")] = None

    def read(self) -> Grammar | None:
        """Return the grammar asked for.

        Raises:
            typer.BadParameter: Several are given, or the file cannot be read.
        """
        from pyspec.llama.grammar import Grammar  # noqa: PLC0415 - --help does without

        ways: list[tuple[Any, Callable[[Any], Grammar]]] = [
            (self.grammar, Grammar.gbnf),
            (self.grammar_file, lambda file: Grammar.gbnf(_text(file, "--grammar-file"))),
            (self.json_schema, lambda given: _json_schema(_schema_text(given))),
            (self.json_schema_file, lambda file: _json_schema(_text(file, "--json-schema-file"))),
            (self.regex, Grammar.regex),
            (self.lark, Grammar.lark),
        ]
        found = [(given, make) for given, make in ways if given is not None]
        if len(found) > 1:
            msg = "give one of --grammar, --grammar-file, --json-schema, --json-schema-file, --regex and --lark."
            raise typer.BadParameter(msg)
        return found[0][1](found[0][0]) if found else None


def _json_schema(text: str) -> Grammar:
    """Return the grammar of a schema; as in llama.cpp, an empty one is for any object, not for any value."""
    from pyspec.llama.grammar import Grammar  # noqa: PLC0415

    return Grammar.json() if re.fullmatch(r"\s*\{\s*\}\s*", text) else Grammar.json_schema(text)


def _schema_text(given: str) -> str:
    """Return the schema that was given, or that of the file that was named: a schema begins with a brace."""
    if given.lstrip().startswith("{") or given.strip() in ("true", "false"):
        return given
    try:
        with Path(given).open("rb") as file:
            return _text(file, "--json-schema")
    except OSError as error:
        shown = given if len(given) <= _MAX_SHOWN else f"{given[:_MAX_SHOWN]}..."
        msg = f"{shown!r} is neither a schema, which begins with a brace, nor a file: {error.strerror}."
        raise typer.BadParameter(msg, param_hint="--json-schema") from None


def _text(file: BinaryIO, flag: str) -> str:
    """Return the text of a file with a grammar. What is too long is not read to its end, which it may not have.

    Editors on Windows put a mark before a text, which is no part of it.

    Raises:
        typer.BadParameter: It cannot be read, is too long, or not UTF-8.
    """
    from pyspec.llama.grammar.description import MAX_TEXT  # noqa: PLC0415

    most = 4 * MAX_TEXT + len(codecs.BOM_UTF8)
    try:
        refuse_device(file)
        data = file.read(most + 1)
        if len(data) <= most:
            return data.decode("utf-8-sig")
        trouble = f"is too long; at most {MAX_TEXT} characters are compiled"
    except OSError as error:
        trouble = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        trouble = f"is not UTF-8: {error}"
    msg = f"the file {file.name} {trouble}."
    raise typer.BadParameter(msg, param_hint=flag)


def _bias(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"(\d+)(?:=|(?=[+-]))(.+)", text)
    try:
        return int(found[1]), float(found[2])  # type: ignore[index]
    except (TypeError, ValueError):
        msg = f"cannot read {text!r}; write a token id and a number, for example 42=-1.5, 42-1.5 or 42=-inf."
        raise typer.BadParameter(msg, param_hint="--logit-bias") from None
