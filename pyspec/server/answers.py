"""What the server answers, as types: the handlers make them, ``/openapi.json`` describes them."""

from __future__ import annotations

from typing import Literal

from typing_extensions import NotRequired, TypedDict

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(TypedDict):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens read and generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class DrafterCounts(TypedDict):
    """How one drafter did; ``histogram[i]`` drafts had exactly i accepted tokens."""

    n_drafts: int
    n_drafted: int
    n_accepted: int
    acceptance: float
    acceptance_length: float
    histogram: list[int]


class SpeculationCounts(TypedDict):
    """How speculation did.

    ``lengths`` maps an acceptance length to rounds. Of the accepted tokens, a grammar proposed ``n_forced``, drafters
    the others. Not ``valid``: not the target's output.
    """

    valid: bool
    n_rounds: int
    n_drafted: int
    n_accepted: int
    n_forced: int
    acceptance: float
    acceptance_length: float
    lengths: dict[str, int]
    drafters: dict[str, DrafterCounts]


class TextLogprobs(TypedDict):
    """Log-probabilities of a continued text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(TypedDict):
    """One continuation, or a part of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class Completion(TypedDict):
    """OpenAI's answer to a request to continue text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: NotRequired[Usage | None]
    speculation: NotRequired[SpeculationCounts]


class Alternative(TypedDict):
    """A token that could have stood there."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Alternative):
    """A token that stands there."""

    top_logprobs: list[Alternative]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a message."""

    content: list[TokenLogprob]
    refusal: None


class Function(TypedDict):
    """A function to call."""

    name: str
    arguments: str


class Call(TypedDict):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: Function


class IndexedCall(Call):
    """The same in a stream."""

    index: int


class AnswerMessage(TypedDict):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[Call]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    """OpenAI's answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    speculation: SpeculationCounts


class Delta(TypedDict, total=False):
    """What a message grows by."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[IndexedCall]


class DeltaChoice(TypedDict):
    """What an answer grows by."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(TypedDict):
    """An event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[DeltaChoice]
    usage: NotRequired[Usage | None]
    speculation: NotRequired[SpeculationCounts]


class Embedding(TypedDict):
    """A text as a vector: numbers, or 32-bit floats, little endian, in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """OpenAI's answer to a request for embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ModelEntry(TypedDict):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: dict[str, int]


class ModelList(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelEntry]


class Health(TypedDict):
    """Requests are taken."""

    status: Literal["ok"]


class Version(TypedDict):
    """Which version this is, and of which llama.cpp."""

    version: str
    llama_cpp: str


class ErrorBody(TypedDict):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """OpenAI's form of an error."""

    error: ErrorBody
