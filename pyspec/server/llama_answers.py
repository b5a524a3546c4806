"""What llama.cpp's own endpoints answer, as types; see ``answers.py`` for OpenAI's."""

from __future__ import annotations

from typing import Literal

from typing_extensions import NotRequired, TypedDict

from pyspec.server.answers import Alternative, SpeculationCounts


class Timings(TypedDict):
    """llama.cpp's account of a request."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class LlamaAlternative(Alternative):
    """A token that could have stood there."""

    id: int


class LlamaProbability(LlamaAlternative):
    """A token that stands there."""

    top_logprobs: list[LlamaAlternative]


class Bias(TypedDict):
    """What is added to a token's logit; null bans it."""

    token: int
    bias: float | None


class GenerationSettings(TypedDict):
    """How tokens are chosen and when they end, under llama.cpp's names; -1: no limit, or another seed each time."""

    seed: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: list[Bias]
    samplers: list[str]
    n_predict: int
    max_tokens: int
    stop: list[str]
    n_probs: int
    stream: bool


class LlamaCompletion(TypedDict):
    """llama.cpp's answer, or an event of it."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[LlamaProbability]]
    model: NotRequired[str]
    tokens_cached: NotRequired[int]
    truncated: NotRequired[bool]
    stop_type: NotRequired[Literal["eos", "limit", "word"]]
    stopping_word: NotRequired[str]
    prompt: NotRequired[str]
    generation_settings: NotRequired[GenerationSettings]
    timings: NotRequired[Timings]
    speculation: NotRequired[SpeculationCounts]


class Piece(TypedDict):
    """A token and its text; bytes where it is no whole characters."""

    id: int
    piece: str | list[int]


class Tokens(TypedDict):
    """A text as tokens."""

    tokens: list[int] | list[Piece]


class Content(TypedDict):
    """Tokens as a text."""

    content: str


class Prompt(TypedDict):
    """A conversation as text."""

    prompt: str


class DefaultSettings(TypedDict):
    """What holds where a request does not say."""

    n_ctx: int
    params: GenerationSettings


class Modalities(TypedDict):
    """What can be read besides text."""

    vision: bool
    audio: bool


class Props(TypedDict):
    """llama.cpp's description of a server."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    modalities: Modalities
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    drafters: list[str]


class Slot(TypedDict):
    """A seat in the engine."""

    id: int
    state: str
    is_processing: bool
    n_tokens: int
    n_prompt: int
    n_emitted: int
