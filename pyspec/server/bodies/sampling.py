"""How tokens are chosen: OpenAI's and llama.cpp's fields, and what they become."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from pyspec.config import MAX_INT32, MAX_SEED, SamplingConfig, shown
from pyspec.server.bodies.base import Body, ListOf, TokenId
from pyspec.server.errors import invalid

_MOST_RECENT = 1 << 20
_MOST_BIASES = 1 << 14
_MOST_BREAKERS = 8
_BIAS_HELP = "Token to what is added to its logit: a map of ids, or [id or text, number or false] each; false bans it."

Breaker = Annotated[str, Field(max_length=16)]  # each is looked up in the whole vocabulary, a long one slowly
Bias = float | bool
Biases = dict[str, Bias] | ListOf[Annotated[tuple[TokenId | str, Bias], Field(strict=False)]]  # JSON has no tuples


def _limited(biases: object) -> object:
    """Refuse too many biases before each is looked at."""
    if isinstance(biases, dict | list) and len(biases) > _MOST_BIASES:
        raise PydanticCustomError("too_long", f"At most {_MOST_BIASES} tokens can have a bias")
    return biases


class SamplingFields(Body):
    """Each field but the last four is one of ``SamplingConfig``, under llama.cpp's name for it."""

    temperature: float | None = Field(default=None, description="0 takes the most likely token.")
    top_p: float | None = Field(
        default=None, description="Keep the most likely tokens with this share together; 1 keeps all."
    )
    top_k: int | None = Field(default=None, description="Keep the k most likely tokens; 0 or -1 keeps all.")
    min_p: float | None = Field(default=None, description="Keep tokens with this share of the best one's probability.")
    typical_p: float | None = Field(default=None, description="Locally typical sampling; 1 is off.")
    top_n_sigma: float | None = Field(
        default=None, description="Keep tokens so many standard deviations below the best; -1."
    )
    xtc_probability: float | None = Field(default=None, description="How often the top choices are excluded; 0 is off.")
    xtc_threshold: float | None = Field(default=None, description="From which probability on a token is a top choice.")
    dynatemp_range: float | None = Field(default=None, description="Let the temperature follow the entropy; 0 is off.")
    dynatemp_exponent: float | None = Field(default=None, description="How it follows.")
    mirostat: int | None = Field(default=None, description="Version 1 or 2; 0 is off.")
    mirostat_tau: float | None = Field(default=None, description="The surprise it aims at, in bits.")
    mirostat_eta: float | None = Field(default=None, description="How fast it adapts.")
    repeat_penalty: float | None = Field(default=None, description="Penalty of recent tokens; 1 is off.")
    repeat_last_n: int | None = Field(default=None, description="Recent tokens that the penalties see; -1: all.")
    presence_penalty: float | None = Field(
        default=None, description="Taken once from a recent token's logit; 0 is off."
    )
    frequency_penalty: float | None = Field(default=None, description="Taken per occurrence; 0 is off.")
    dry_multiplier: float | None = Field(default=None, description="Penalise repetitions (DRY); 0 is off.")
    dry_base: float | None = Field(default=None, description="How the penalty grows.")
    dry_allowed_length: int | None = Field(default=None, description="Repetitions shorter than this cost nothing.")
    dry_penalty_last_n: int | None = Field(default=None, description="Recent tokens it looks through; -1: all.")
    dry_sequence_breakers: ListOf[Breaker] | None = Field(
        default=None, description="Texts that no repetition reaches across.", max_length=_MOST_BREAKERS
    )
    seed: int | None = Field(default=None, description="Seed of the draws; -1: another one each time.")
    logit_bias: Annotated[Biases | None, Field(description=_BIAS_HELP), BeforeValidator(_limited)] = None
    ignore_eos: bool | None = Field(default=None, description="Go on where the model would end.")
    repetition_penalty: float | None = Field(
        default=None, description="vLLM's name for repeat_penalty; it sees all tokens, unless repeat_last_n says less."
    )
    samplers: ListOf[str] | None = Field(
        default=None, description="What changes a row, in the order that /props tells; what is left out is off."
    )


class BiasVocab(Protocol):
    """What biases need of a vocabulary."""

    n_tokens: int
    eog: frozenset[int]

    def tokenize(self, text: str) -> list[int]:
        """Turn text into token ids."""
        ...


RENAMED = {"mirostat_tau": "mirostat_ent", "mirostat_eta": "mirostat_lr"}
"""llama.cpp's name of a setting to ours, where they differ."""
_OFF: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
ORDER = tuple(_OFF)
"""What changes a row, in this order, under llama.cpp's names."""
_SYNONYMS = {"typical_p": "typ_p"}
_OTHERS = {"logit_bias", "ignore_eos", "repetition_penalty", "samplers"}
_ALL = {"top_k": 0, "repeat_last_n": _MOST_RECENT, "dry_penalty_last_n": _MOST_RECENT, "seed": None}  # what -1 means


def sampling_config(body: SamplingFields, defaults: SamplingConfig, vocab: BiasVocab) -> SamplingConfig:
    """Return the settings that a body asks for.

    Raises:
        ConfigError: A value is out of its range.
        ApiError: Two fields contradict each other, ``samplers`` is another order, or ``logit_bias`` names no token.
    """
    given: dict[str, Any] = {}
    for name in SamplingFields.model_fields.keys() - _OTHERS:
        value = getattr(body, name)
        if value is not None:
            given[RENAMED.get(name, name)] = _ALL[name] if value == -1 and name in _ALL else value
    given.update(_repetition(body))
    biases = dict(defaults.logit_bias)
    biases.update(_biases(body.logit_bias, vocab))
    if body.ignore_eos:
        biases.update(dict.fromkeys(vocab.eog, -math.inf))
    config = dataclasses.replace(defaults, **given, logit_bias=biases)
    return config if body.samplers is None else dataclasses.replace(config, **_switched_off(body.samplers, config))


def _repetition(body: SamplingFields) -> dict[str, Any]:
    """Return what vLLM's penalty is here."""
    penalty = body.repetition_penalty
    if penalty is None:
        return {}
    if body.repeat_penalty not in (None, penalty):
        raise invalid("repetition_penalty and repeat_penalty differ; give one.", param="repetition_penalty")
    everything = {"repeat_last_n": _MOST_RECENT} if body.repeat_last_n is None else {}
    return {"repeat_penalty": penalty, **everything}


def _switched_off(samplers: list[str], config: SamplingConfig) -> dict[str, Any]:
    """Return the settings without what is not among these samplers."""
    names = [_SYNONYMS.get(name, name) for name in samplers]
    if names != [name for name in ORDER if name in names]:
        msg = f"samplers must be some of {', '.join(ORDER)}, each once and in this order."
        raise invalid(msg, param="samplers")
    if config.mirostat:
        raise invalid("samplers cannot be chosen with mirostat.", param="samplers")
    return {key: value for name, off in _OFF.items() if name not in names for key, value in off.items()}


def with_seed(config: SamplingConfig, i: int) -> SamplingConfig:
    """Return the settings of the i-th of several generations, which a seed must not make equal."""
    if config.seed is None or i == 0:
        return config
    return dataclasses.replace(config, seed=(config.seed + i) % (MAX_SEED + 1))


def _biases(given: Biases | None, vocab: BiasVocab) -> dict[int, float]:
    entries = [(_named(key, vocab), bias) for key, bias in given.items()] if isinstance(given, dict) else given or ()
    biases = {}
    for key, bias in entries:
        value = (0.0 if bias else -math.inf) if isinstance(bias, bool) else float(bias)
        tokens = [key] if isinstance(key, int) else vocab.tokenize(key)
        if not tokens:
            raise invalid("logit_bias has an empty text, which stands for no token.", param="logit_bias")
        biases.update(dict.fromkeys(tokens, value))
    return biases


def _named(key: str, vocab: BiasVocab) -> int | str:
    """Return the id that a key of a JSON object is, as OpenAI has it; llama.cpp's may be text, but no number."""
    if key.isascii() and key.isdecimal() and len(key) <= len(str(MAX_INT32)) and int(key) < vocab.n_tokens:
        return int(key)
    with contextlib.suppress(ValueError):
        float(key)
        msg = f"logit_bias has the key {shown(key)}, which is no token: ids are 0 to {vocab.n_tokens - 1}."
        raise invalid(msg, param="logit_bias", code="invalid_token")
    return key
