"""The flags that choose and set up drafters."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pyspec.cli.failing import wrong_usage
from pyspec.cli.naming import meant, parsed_setting, require_option
from pyspec.cli.options import gpu_layers
from pyspec.config import ModelConfig

if TYPE_CHECKING:
    from pyspec.llama import Model
    from pyspec.speculation.config import Speculation

ANY_MODEL = "draft-*"  # every drafter with a model; as a drafter's name, the one that the draft model is made for
_N_MAX = "--spec-draft-n-max"

# field: (flag, drafter, its option)
_DRAFTER_OPTIONS = {
    "draft_n_max": (_N_MAX, ANY_MODEL, "n_max"),
    "draft_n_min": ("--spec-draft-n-min", ANY_MODEL, "n_min"),
    "draft_p_min": ("--spec-draft-p-min", ANY_MODEL, "p_min"),
    "draft_sampling": ("--spec-draft-sampling", ANY_MODEL, "sampling"),
    "draft_threads": ("-td", ANY_MODEL, "n_threads"),
    "draft_type_k": ("-ctkd", ANY_MODEL, "type_k"),
    "draft_type_v": ("-ctvd", ANY_MODEL, "type_v"),
    "draft_backend_sampling": ("--spec-draft-backend-sampling", ANY_MODEL, "backend_sampling"),
    "suffix_n_max": ("--spec-suffix-n-max", "suffix", "n_max"),
    "suffix_n_min": ("--spec-suffix-n-min", "suffix", "n_min"),
    "suffix_n_match": ("--spec-suffix-n-match", "suffix", "n_match"),
    "suffix_factor": ("--spec-suffix-factor", "suffix", "factor"),
    "suffix_p_min": ("--spec-suffix-p-min", "suffix", "p_min"),
    "suffix_share": ("--spec-suffix-share", "suffix", "share"),
    "suffix_max_tokens": ("--spec-suffix-max-tokens", "suffix", "max_tokens"),
    "suffix_file": ("--spec-suffix-file", "suffix", "file"),
    "ngram_simple_size_n": ("--spec-ngram-simple-size-n", "ngram-simple", "size_n"),
    "ngram_simple_size_m": ("--spec-ngram-simple-size-m", "ngram-simple", "size_m"),
    "ngram_map_k_size_n": ("--spec-ngram-map-k-size-n", "ngram-map-k", "size_n"),
    "ngram_map_k_size_m": ("--spec-ngram-map-k-size-m", "ngram-map-k", "size_m"),
    "ngram_map_k4v_size_n": ("--spec-ngram-map-k4v-size-n", "ngram-map-k4v", "size_n"),
    "ngram_map_k4v_size_m": ("--spec-ngram-map-k4v-size-m", "ngram-map-k4v", "size_m"),
    "ngram_map_k4v_min_hits": ("--spec-ngram-map-k4v-min-hits", "ngram-map-k4v", "min_hits"),
    "ngram_mod_n_match": ("--spec-ngram-mod-n-match", "ngram-mod", "n_match"),
    "ngram_mod_n_max": ("--spec-ngram-mod-n-max", "ngram-mod", "n_max"),
    "ngram_mod_n_min": ("--spec-ngram-mod-n-min", "ngram-mod", "n_min"),
    "ngram_cache_n_max": ("--spec-ngram-cache-n-max", "ngram-cache", "n_max"),
    "ngram_cache_static": ("--lookup-cache-static", "ngram-cache", "static"),
    "ngram_cache_dynamic": ("--lookup-cache-dynamic", "ngram-cache", "dynamic"),
}


class DraftSampling(str, enum.Enum):
    """Values of ``--spec-draft-sampling``."""

    GREEDY = "greedy"
    PROBABILISTIC = "probabilistic"
    COUPLED = "coupled"


class Rule(str, enum.Enum):
    """Values of ``--spec-rule``."""

    MATCH = "match"
    REJECTION = "rejection"
    COUPLED = "coupled"
    SYNTHETIC = "synthetic"


class Switch(str, enum.Enum):
    """Values of a flag that is switched on or off."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelOptions:
    """The draft model."""

    panel: ClassVar[str] = "Speculation"
    draft_model: Annotated[
        str | None,
        typer.Option("--spec-draft-model", "--model-draft", "-md", metavar="MODEL", help="The draft model, as for -m."),
    ] = None
    draft_gpu_layers: Annotated[
        int | None,
        typer.Option(
            "--spec-draft-ngl",
            "--gpu-layers-draft",
            "-ngld",
            metavar="N",
            parser=gpu_layers,
            help="Layers of the draft model on the GPU; -1: all.",
        ),
    ] = None

    def config(self) -> ModelConfig:
        """Return the settings to load the draft model with."""
        layers = self.draft_gpu_layers
        if self.draft_model is None and layers is not None:
            msg = "there is no draft model; give one with -md."
            raise typer.BadParameter(msg, param_hint="-ngld")
        with wrong_usage(flag="-ngld"):
            return ModelConfig() if layers is None else ModelConfig(n_gpu_layers=layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """Which drafters propose, and how."""

    panel: ClassVar[str] = "Speculation"
    spec_type: Annotated[
        str | None,
        typer.Option(
            "--spec-type",
            metavar="LIST",
            help="Drafters separated by commas, see `pyspec info`; none: plain decoding; auto (default): what is best,"
            " round by round. A draft model brings the drafter along that it is made for.",
        ),
    ] = None
    draft_n_max: Annotated[
        int | None, typer.Option(_N_MAX, metavar="N", help="Longest draft of a draft model (3); with auto, of any.")
    ] = None
    draft_n_min: Annotated[
        int | None, typer.Option("--spec-draft-n-min", metavar="N", help="Shorter drafts are not verified (0).")
    ] = None
    draft_p_min: Annotated[
        float | None,
        typer.Option("--spec-draft-p-min", metavar="P", help="Stop drafting before a less likely token (0)."),
    ] = None
    draft_sampling: Annotated[
        DraftSampling | None, typer.Option("--spec-draft-sampling", help="How a draft model chooses (greedy).")
    ] = None
    draft_backend_sampling: Annotated[
        Switch | None,
        typer.Option("--spec-draft-backend-sampling", help="Let the device select a draft model's tokens (off)."),
    ] = None
    draft_threads: Annotated[
        int | None,
        typer.Option("--spec-draft-threads", "--threads-draft", "-td", metavar="N", help="Its threads; as for -t."),
    ] = None
    draft_type_k: Annotated[
        str | None,
        typer.Option("--spec-draft-type-k", "--cache-type-k-draft", "-ctkd", metavar="TYPE", help="Its keys (f16)."),
    ] = None
    draft_type_v: Annotated[
        str | None,
        typer.Option("--spec-draft-type-v", "--cache-type-v-draft", "-ctvd", metavar="TYPE", help="Its values (f16)."),
    ] = None
    suffix_n_max: Annotated[
        int | None, typer.Option("--spec-suffix-n-max", metavar="N", help="Longest draft of suffix (32).")
    ] = None
    suffix_n_min: Annotated[
        int | None, typer.Option("--spec-suffix-n-min", metavar="N", help="Shorter drafts are not verified (0).")
    ] = None
    suffix_n_match: Annotated[
        int | None, typer.Option("--spec-suffix-n-match", metavar="N", help="Shorter matches are not used (2).")
    ] = None
    suffix_factor: Annotated[
        float | None,
        typer.Option("--spec-suffix-factor", metavar="X", help="Tokens drafted for each token of the match (0.5)."),
    ] = None
    suffix_p_min: Annotated[
        float | None,
        typer.Option("--spec-suffix-p-min", metavar="P", help="Stop before a draft less likely than this (0.5)."),
    ] = None
    suffix_share: Annotated[
        Switch | None,
        typer.Option("--spec-suffix-share", help="Draft what past requests said, whoever sent them (off)."),
    ] = None
    suffix_max_tokens: Annotated[
        int | None, typer.Option("--spec-suffix-max-tokens", metavar="N", help="Tokens of past requests kept (262144).")
    ] = None
    suffix_file: Annotated[
        str | None,
        typer.Option("--spec-suffix-file", metavar="FILE", help="Past requests of former runs; read, and added to."),
    ] = None
    ngram_simple_size_n: Annotated[
        int | None, typer.Option("--spec-ngram-simple-size-n", metavar="N", help="Tokens to look up (12).")
    ] = None
    ngram_simple_size_m: Annotated[
        int | None, typer.Option("--spec-ngram-simple-size-m", metavar="N", help="Longest draft of ngram-simple (48).")
    ] = None
    ngram_map_k_size_n: Annotated[
        int | None, typer.Option("--spec-ngram-map-k-size-n", metavar="N", help="Tokens to look up (12).")
    ] = None
    ngram_map_k_size_m: Annotated[
        int | None, typer.Option("--spec-ngram-map-k-size-m", metavar="N", help="Longest draft of ngram-map-k (48).")
    ] = None
    ngram_map_k4v_size_n: Annotated[
        int | None, typer.Option("--spec-ngram-map-k4v-size-n", metavar="N", help="Tokens to look up (12).")
    ] = None
    ngram_map_k4v_size_m: Annotated[
        int | None,
        typer.Option("--spec-ngram-map-k4v-size-m", metavar="N", help="Longest draft of ngram-map-k4v (48)."),
    ] = None
    ngram_map_k4v_min_hits: Annotated[
        int | None,
        typer.Option("--spec-ngram-map-k4v-min-hits", metavar="N", help="Hits before ngram-map-k4v proposes (1)."),
    ] = None
    ngram_mod_n_match: Annotated[
        int | None, typer.Option("--spec-ngram-mod-n-match", metavar="N", help="Tokens per look-up (24).")
    ] = None
    ngram_mod_n_max: Annotated[
        int | None, typer.Option("--spec-ngram-mod-n-max", metavar="N", help="Longest draft of ngram-mod (64).")
    ] = None
    ngram_mod_n_min: Annotated[
        int | None, typer.Option("--spec-ngram-mod-n-min", metavar="N", help="Shorter drafts are not verified (48).")
    ] = None
    ngram_cache_n_max: Annotated[
        int | None, typer.Option("--spec-ngram-cache-n-max", metavar="N", help="Longest draft of ngram-cache (8).")
    ] = None
    ngram_cache_static: Annotated[
        str | None,
        typer.Option(
            "--lookup-cache-static", "-lcs", metavar="FILE", help="Counts of a large text, see `pyspec ngram-cache`."
        ),
    ] = None
    ngram_cache_dynamic: Annotated[
        str | None,
        typer.Option(
            "--lookup-cache-dynamic", "-lcd", metavar="FILE", help="Counts of former requests; read, and added to."
        ),
    ] = None

    rule: Annotated[
        Rule | None, typer.Option("--spec-rule", help="How drafts are accepted (match; synthetic with --spec-synth-*).")
    ] = None
    synth_length: Annotated[
        float | None,
        typer.Option("--spec-synth-len", metavar="L", help="Benchmarks: emit L tokens a round; invalid output."),
    ] = None
    synth_rates: Annotated[
        str | None,
        typer.Option("--spec-synth-rates", metavar="LIST", help="Benchmarks: acceptance per position; invalid output."),
    ] = None
    spec_set: Annotated[
        list[str] | None,
        typer.Option("--spec-set", metavar="NAME.OPTION=VALUE", help="Set any option of a drafter, also of a plug-in."),
    ] = None

    def names(self, draft_model: str | None) -> tuple[str, ...]:
        """Return the drafters asked for; none means plain decoding.

        ``ANY_MODEL`` stands for the drafter that the draft model is made for.

        Raises:
            typer.BadParameter: One is not installed, or an option is given for one that is not among them.
        """
        from pyspec import drafters  # noqa: PLC0415 - --help does without
        from pyspec.drafters.automatic import LOOKUPS  # noqa: PLC0415
        from pyspec.drafters.registry import is_available  # noqa: PLC0415
        from pyspec.speculation.config import AUTO, Speculation  # noqa: PLC0415

        self._rule()  # is refused here when it is wrong, before a model is loaded
        _numbers(self.synth_rates)
        with wrong_usage(flag="--spec-type"):
            asked = Speculation(AUTO if self.spec_type is None else self.spec_type)
        names = asked.names
        for name in names:
            if name not in drafters.names():
                hint = meant(name, [*drafters.names(), AUTO])
                installed = ", ".join(drafters.names())
                msg = f"there is no drafter {name!r}; installed are {installed}, and auto, which chooses.{hint}"
                raise typer.BadParameter(msg, param_hint="--spec-type")
        wants_model = draft_model is not None and (asked.auto or names)
        if wants_model and not any(name.startswith("draft-") for name in names):
            names = (*names, ANY_MODEL)
        if asked.auto:
            names = (AUTO, *(name for name in LOOKUPS if is_available(name)), *names)
        if self.spec_type != "none":  # off: nothing to set
            self._check_given([name for name in names if name != AUTO], auto=asked.auto)
        return names

    def _check_given(self, names: list[str], *, auto: bool) -> None:
        """Refuse options without a drafter that has them, and a file of what is not kept."""
        given = self._given()
        for flag, drafter, option in given:
            whose = [name for name in names if _is(name, drafter)]
            if not whose and not (auto and flag == _N_MAX):
                owner = "a draft model (give one with -md)" if drafter == ANY_MODEL else drafter
                msg = f"it belongs to {owner}, which is not among the drafters ({', '.join(names) or 'none'})."
                raise typer.BadParameter(msg, param_hint=flag)
            for name in whose:
                if name != ANY_MODEL:  # which drafter that is, the draft model says
                    require_option(name, option, flag)
        is_shared = any(value is True for (_, *key), value in given.items() if key == ["suffix", "share"])
        if self.suffix_file is not None and not is_shared:
            msg = "past requests are only kept with --spec-suffix-share on; give that, too, or leave the file out."
            raise typer.BadParameter(msg, param_hint="--spec-suffix-file")

    def speculation(self, names: tuple[str, ...], draft_model: Model | None) -> Speculation:
        """Return the settings of the drafters ``names``."""
        from pyspec.speculation.config import AUTO, Speculation  # noqa: PLC0415
        from pyspec.speculation.detection import drafter_for  # noqa: PLC0415

        found = [drafter_for(draft_model) if name == ANY_MODEL and draft_model else name for name in names]
        options: dict[str, dict[str, Any]] = {}
        auto = AUTO in names
        for (flag, drafter, option), value in self._given().items() if names else ():
            for name in found:
                if _is(name, drafter) and not (auto and flag == _N_MAX):
                    require_option(name, option, flag)
                    options.setdefault(name, {})[option] = value
        return Speculation(
            found or "none",
            draft_model=draft_model,
            options=options,
            rule=self._rule(),
            synthetic_rates=_numbers(self.synth_rates),
            synthetic_length=self.synth_length,
            n_max=self.draft_n_max if auto else None,
        )

    def _rule(self) -> str:
        if self.synth_length is not None and self.synth_rates is not None:
            msg = "give one of --spec-synth-len and --spec-synth-rates: rates have a length of their own."
            raise typer.BadParameter(msg, param_hint="--spec-synth-len")
        synthetic = self.synth_length is not None or self.synth_rates is not None
        if self.rule is None:
            return "synthetic" if synthetic else "match"
        if synthetic is not (self.rule is Rule.SYNTHETIC):
            msg = "--spec-synth-len or --spec-synth-rates belong to the rule synthetic, and it needs one of them."
            raise typer.BadParameter(msg, param_hint="--spec-rule")
        return self.rule.value

    @property
    def flags(self) -> dict[str, str]:
        """Name of a setting, a drafter's option for example, to the flag that gave it."""
        rule = {"rates": "--spec-synth-rates", "length": "--spec-synth-len"}
        return rule | {option: flag for flag, _drafter, option in self._given()}

    def _given(self) -> dict[tuple[str, str, str], Any]:
        """Return (flag, drafter, option) to value, for what was given."""
        values = {key: getattr(self, name) for name, key in _DRAFTER_OPTIONS.items()}
        given = {key: _plain(value) for key, value in values.items() if value is not None}
        for setting in self.spec_set or ():
            drafter, option, value = parsed_setting(setting)
            given["--spec-set", drafter, option] = value
        return given


def _numbers(text: str | None) -> list[float] | None:
    """Return numbers that are separated by commas."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        msg = f"it must be numbers separated by commas, such as 0.9,0.7,0.5; found {text!r}."
        raise typer.BadParameter(msg, param_hint="--spec-synth-rates") from None


def _is(name: str, drafter: str) -> bool:
    """Return whether a drafter is, or may turn out to be, the one or one of those that an option belongs to."""
    any_model = (drafter == ANY_MODEL and name.startswith("draft-")) or (
        name == ANY_MODEL and drafter.startswith("draft-")
    )
    return name == drafter or any_model


def _plain(value: Any) -> Any:
    """Return the value of a flag as a drafter takes it."""
    if isinstance(value, Switch):
        return value is Switch.ON
    return value.value if isinstance(value, enum.Enum) else value
