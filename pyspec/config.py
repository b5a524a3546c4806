"""Frozen settings, validated once, when they are made."""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspec.errors import ConfigError

__all__ = ["ContextConfig", "ModelConfig", "SamplingConfig"]

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
MAX_THREADS = 512
MAX_INT32 = 2**31 - 1
MAX_SEED = 2**32 - 1
_MAX_SHOWN = 200  # characters
_MIN_TEMPERATURE = 1e-6  # dividing logits by less overflows


def as_index(value: object) -> int | None:
    """Return an integer, which numpy's are too, as an int; None for anything else, bools included."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def as_list(values: object) -> list[Any] | None:
    """Return what can be iterated over as a list; None for anything else, and for text, bytes and what has no order."""
    if type(values) is list:
        return values.copy()
    if isinstance(values, (str, bytes, bytearray, Mapping, AbstractSet)):
        return None
    try:
        return list(values)  # type: ignore[call-overload,no-any-return]
    except TypeError:
        return None


def shown(value: object) -> str:
    """Return a value as a message quotes it: in short, and also one that cannot be printed."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - integers have limits, and classes of others may raise anything
        return f"a value of the type {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def require_int(name: str, value: object, low: int, high: int) -> int:
    """Return ``value`` when it is an integer in ``[low, high]``.

    Raises:
        ConfigError: It is not.
    """
    number = as_index(value)
    if number is None:
        msg = f"{name} must be an integer, not {shown(value)}."
        raise ConfigError(msg)
    if not low <= number <= high:
        msg = f"{name} must be between {low} and {high}, not {shown(number)}."
        raise ConfigError(msg)
    return number


def require_float(name: str, value: object, low: float, high: float) -> float:
    """Return ``value`` as a float when it is a finite number in ``[low, high]``.

    Raises:
        ConfigError: It is not.
    """
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        msg = f"{name} must be a number, not {shown(value)}."
        raise ConfigError(msg)
    if not low <= number <= high:
        msg = f"{name} must be between {low:g} and {high:g}, not {number:g}."
        raise ConfigError(msg)
    return number


def require_bool(name: str, value: object) -> bool:
    """Return ``value`` when it is a bool.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, bool):
        msg = f"{name} must be True or False, not {shown(value)}."
        raise ConfigError(msg)
    return value


def _keep(config: object, name: str, value: object) -> None:
    """Set a field of a frozen config to its checked value, so that numpy's numbers become Python's."""
    object.__setattr__(config, name, value)


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS`` where it is set, else the number of physical cores this process may use."""
    wish = os.environ.get("OMP_NUM_THREADS", "")
    if wish.isdecimal() and int(wish) > 0:
        return min(int(wish), MAX_THREADS)
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return max(1, (os.cpu_count() or 2) // 2)
    cores = {_core_of(cpu) for cpu in allowed}
    return max(1, len(cores))


def _core_of(cpu: int) -> str:
    """Return the hardware threads that share a core with ``cpu``, as Linux lists them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How a model is loaded.

    Attributes:
        n_gpu_layers: Layers to keep on the GPU; -1 means all.
        main_gpu: The device for what is not split.
        use_mmap: Map the file instead of reading it. It must not be written over or cut as long as the model is open:
            the system ends a process that reads what is gone.
        use_mlock: Keep the weights in RAM.
        check_tensors: Look for invalid values while loading.
        vocab_only: Load the vocabulary and metadata only; such a model cannot make a context.
        repack: Lay out quantised weights again for the CPU at hand (faster, uses memory of its own).
        next_n: Load next-n (MTP) layers where the file has them; draft-mtp drafts with them.
        large_pages: On Linux, move the weights to large pages when only a CPU computes and they take little of the
            free memory; decodes are some percent faster. Of a mapped file that is a copy of its own. Weights that are
            locked (``use_mlock``) stay where they are.
    """

    n_gpu_layers: int = -1
    main_gpu: int = 0
    use_mmap: bool = True
    use_mlock: bool = False
    check_tensors: bool = False
    vocab_only: bool = False
    repack: bool = True
    next_n: bool = True
    large_pages: bool = True

    def __post_init__(self) -> None:
        require_int("n_gpu_layers", self.n_gpu_layers, -1, MAX_INT32)
        require_int("main_gpu", self.main_gpu, 0, 1023)
        for name in ("use_mmap", "use_mlock", "check_tensors", "vocab_only", "repack", "next_n", "large_pages"):
            require_bool(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """How a context is made.

    Attributes:
        n_ctx: Tokens of memory for all sequences together; 0 means what the model was trained for.
        n_batch: Most tokens in one decode.
        n_ubatch: Most tokens computed at once; at most ``n_batch``.
        n_seq_max: Most sequences, 1 to 256.
        n_rs_seq: Snapshots of a recurrent state per sequence, so that as many positions can be dropped again;
            each costs as much memory as the state. Models without snapshots take 0.
        n_outputs_max: Most logits rows in one decode; 0 means ``n_batch``. Each row costs memory for one
            float per vocabulary entry.
        n_threads: Threads for a few tokens; 0 means the physical cores.
        n_threads_batch: Threads for many tokens; 0 means ``n_threads``.
        flash_attn: Flash attention: "auto", "on" or "off".
        type_k: Type of the keys in memory, such as "f16" or "q8_0".
        type_v: Type of the values in memory; a quantised one needs flash attention.
        offload_kqv: Keep memory on the device of its layer.
        op_offload: Send large host operations to a device.
        swa_full: Keep all positions of sliding-window layers, so that they can be trimmed like any other.
        kv_unified: One buffer shared by all sequences, so that any of them can be decoded together at once; else
            sequences whose numbers are apart, or with drafts of unequal length, are computed one after the other. None:
            an engine with several slots has one, unless it shifts full contexts; a context by itself has none.
        n_ctx_seq: Most tokens of one sequence in a buffer that is shared; 0 means as many as there is room for.
        rope_freq_base: 0 means the model's.
        rope_freq_scale: 0 means the model's.
    """

    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_rs_seq: int = 0
    n_outputs_max: int = 0
    n_threads: int = 0
    n_threads_batch: int = 0
    flash_attn: Literal["auto", "on", "off"] = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = True
    kv_unified: bool | None = None
    n_ctx_seq: int = 0
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0

    def __post_init__(self) -> None:
        require_int("n_ctx", self.n_ctx, 0, MAX_INT32)
        require_int("n_batch", self.n_batch, 1, 1 << 20)
        require_int("n_ubatch", self.n_ubatch, 1, 1 << 20)
        require_int("n_seq_max", self.n_seq_max, 1, MAX_SEQUENCES)
        require_int("n_rs_seq", self.n_rs_seq, 0, 1 << 16)
        require_int("n_outputs_max", self.n_outputs_max, 0, 1 << 20)
        require_int("n_threads", self.n_threads, 0, MAX_THREADS)
        require_int("n_threads_batch", self.n_threads_batch, 0, MAX_THREADS)
        require_float("rope_freq_base", self.rope_freq_base, 0.0, 1e30)
        require_float("rope_freq_scale", self.rope_freq_scale, 0.0, 1e6)
        require_int("n_ctx_seq", self.n_ctx_seq, 0, MAX_INT32)
        for name in ("offload_kqv", "op_offload", "swa_full"):
            require_bool(name, getattr(self, name))
        if self.kv_unified is not None:
            require_bool("kv_unified", self.kv_unified)
        if self.n_ubatch > self.n_batch:
            msg = f"n_ubatch ({self.n_ubatch}) must not be larger than n_batch ({self.n_batch})."
            raise ConfigError(msg)
        if not isinstance(self.flash_attn, str) or self.flash_attn not in ("auto", "on", "off"):
            msg = f'flash_attn must be "auto", "on" or "off", not {shown(self.flash_attn)}.'
            raise ConfigError(msg)
        self._check_cache_types()

    def _check_cache_types(self) -> None:
        for name, value in (("type_k", self.type_k), ("type_v", self.type_v)):
            if not isinstance(value, str) or value not in CACHE_TYPES:
                msg = f"{name} must be one of {', '.join(CACHE_TYPES)}, not {shown(value)}."
                raise ConfigError(msg)
        if self.flash_attn == "off" and self.type_v not in ("f32", "f16", "bf16"):
            msg = f'type_v "{self.type_v}" needs flash attention; use flash_attn "auto" or "on", or type_v "f16".'
            raise ConfigError(msg)


_MAX_BREAKER_BYTES = 40
_SAMPLING_NUMBERS = {  # lowest and highest
    "temperature": (0.0, 1e6),
    "dynatemp_range": (0.0, 1e6),
    "dynatemp_exponent": (0.0, 100.0),
    "top_n_sigma": (-1.0, 1e6),
    "typical_p": (0.0, 1.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "repeat_penalty": (1e-6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
    "presence_penalty": (-1e6, 1e6),
    "dry_multiplier": (0.0, 1e6),
    "dry_base": (1.0, 1e6),
    "mirostat_ent": (0.0, 100.0),
    "mirostat_lr": (0.0, 100.0),
}
_SAMPLING_INTEGERS = {
    "top_k": (0, MAX_INT32),
    "repeat_last_n": (0, 1 << 20),
    "dry_allowed_length": (0, MAX_INT32),
    "dry_penalty_last_n": (0, 1 << 20),
    "mirostat": (0, 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How the target chooses a token.

    The fields bear the names of llama.cpp's options and are applied in the order of its default chain: ``logit_bias``,
    penalties, DRY, ``top_n_sigma``, ``top_k``, ``typical_p``, ``top_p``, ``min_p``, XTC, temperature, draw. At
    temperature 0 what comes after DRY changes nothing.

    Attributes:
        temperature: Logits are divided by it. 0 takes the most likely token.
        dynatemp_range: Let the temperature follow the entropy of what is left, from ``temperature - dynatemp_range`` to
            ``temperature + dynatemp_range``; 0 is off.
        dynatemp_exponent: The entropy's share of the largest possible one, to this power, says where in the range.
        top_k: Keep the k most likely; 0 keeps all.
        top_p: Keep the most likely ones that have this probability together; 1 keeps all.
        min_p: Keep tokens with at least this share of the best one's probability; 0 keeps all.
        typical_p: Keep those whose surprise is closest to the expected one, until they have more than this probability
            together; 1 keeps all.
        top_n_sigma: Keep tokens at most so many standard deviations of all logits below the best one; 0 or less is off.
        xtc_probability: How often the top choices are excluded: of the tokens with a probability of at least
            ``xtc_threshold``, when there are two or more, only the least likely stays. 0 is off.
        xtc_threshold: See there; above 0.5 there never are two.
        repeat_penalty: Divides the positive and multiplies the negative logits of recent tokens; 1 is off.
        frequency_penalty: Subtracted per occurrence; 0 is off.
        presence_penalty: Subtracted once; 0 is off.
        repeat_last_n: How many recent tokens these penalties see.
        dry_multiplier: DRY takes ``dry_multiplier * dry_base ** (n - dry_allowed_length)`` from the logit of a token
            with which the newest n tokens, and it, would stand there a second time; 0 is off.
        dry_base: See there; at least 1.
        dry_allowed_length: Repetitions shorter than this cost nothing.
        dry_penalty_last_n: How many recent tokens DRY looks through.
        dry_sequence_breakers: Texts that no repetition reaches across, each of at most 40 bytes.
        mirostat: 1 or 2 truncates so that the surprise of the tokens stays near ``mirostat_ent``, instead of everything
            from ``top_n_sigma`` to XTC; 0 is off. What is drawn moves its bound: see ``SamplerChain.exact_per_row``.
        mirostat_lr: How fast the bound moves.
        mirostat_ent: The surprise aimed at, in bits.
        logit_bias: Token id to added logit; -inf bans a token.
        seed: Seed of the random draws. None takes a fresh one, which the result reports.

    Raises:
        ConfigError: A value is out of its range.
    """

    temperature: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_lr: float = 0.1
    mirostat_ent: float = 5.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _SAMPLING_NUMBERS.items():
            _keep(self, name, require_float(name, getattr(self, name), low, high))
        for name, limits in _SAMPLING_INTEGERS.items():
            _keep(self, name, require_int(name, getattr(self, name), *limits))
        if 0.0 < self.temperature < _MIN_TEMPERATURE:
            msg = f"temperature must be 0 (the most likely token) or at least {_MIN_TEMPERATURE}."
            raise ConfigError(msg)
        if self.seed is not None:
            _keep(self, "seed", require_int("seed", self.seed, 0, MAX_SEED))
        _keep(self, "dry_sequence_breakers", _checked_breakers(self.dry_sequence_breakers))
        _keep(self, "logit_bias", _checked_biases(self.logit_bias))

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on the tokens before, so that those of the prompt matter too."""
        off = self.repeat_penalty == 1.0 and self.frequency_penalty == 0.0 and self.presence_penalty == 0.0
        return (not off and self.repeat_last_n > 0) or self.has_dry

    @property
    def has_dry(self) -> bool:
        """Whether repetitions are penalised."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n > 0


def _checked_biases(biases: object) -> dict[int, float]:
    if not isinstance(biases, dict):
        msg = f"logit_bias must be a dict from token ids to biases, not {shown(biases)}."
        raise ConfigError(msg)
    checked = {}
    for token, bias in biases.items():
        banned = isinstance(bias, numbers.Real) and bias == -math.inf
        value = -math.inf if banned else require_float("a value of logit_bias", bias, -1e9, 1e9)
        checked[require_int("a token of logit_bias", token, 0, MAX_INT32)] = value
    return checked


def _checked_breakers(breakers: object) -> tuple[str, ...]:
    texts = as_list(breakers)
    if texts is None or not all(isinstance(text, str) for text in texts):
        msg = f"dry_sequence_breakers must be a list of texts, not {shown(breakers)}."
        raise ConfigError(msg)
    for text in texts:
        try:
            n_bytes = len(text.encode())
        except UnicodeEncodeError:
            n_bytes = 0
        if not 0 < n_bytes <= _MAX_BREAKER_BYTES:
            msg = f"dry_sequence_breakers must be texts of 1 to {_MAX_BREAKER_BYTES} bytes of UTF-8, not {shown(text)}."
            raise ConfigError(msg)
    return tuple(texts)
