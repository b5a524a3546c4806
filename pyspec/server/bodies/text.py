"""Bodies of ``/v1/completions`` and llama.cpp's ``/completion``, ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pyspec.server.bodies.base import Body, ListOf, TokenId
from pyspec.server.bodies.generation import MAX_TOP, GenerationFields, OpenAIFields, Speculative

_MOST_TEXT = 1 << 20  # more would keep a processor busy for minutes
Mixed = ListOf[str | TokenId]


class CompletionBody(OpenAIFields):
    """OpenAI's request to continue text."""

    prompt: str | ListOf[TokenId] | ListOf[str] | ListOf[ListOf[TokenId]] = Field(
        description="str, token ids, or several of either; names of special tokens in text are these tokens."
    )
    logprobs: int | None = Field(
        default=None, description="Report log-probabilities, and so many alternatives.", ge=0, le=MAX_TOP
    )
    echo: bool = Field(default=False, description="Put the prompt before the answer.")
    best_of: int | None = Field(default=None, description="Accepted where it equals n.", ge=1)
    suffix: str | None = Field(default=None, description="Not supported.")


class LlamaCompletionBody(GenerationFields):
    """llama.cpp's request to continue text."""

    prompt: str | Mixed = Field(description="str, token ids, or a list with both.")
    n_predict: int | None = Field(default=None, description="Most tokens to generate; -1: until the model ends.", ge=-1)
    max_tokens: int | None = Field(default=None, description="The same.", ge=-1)
    n_probs: int | None = Field(default=None, description="Report so many alternatives.", ge=0, le=MAX_TOP)
    return_tokens: bool | None = Field(default=None, description="Report token ids.")
    cache_prompt: bool | None = Field(
        default=None, description="Accepted, without effect: what is in memory is reused."
    )
    id_slot: int | None = Field(default=None, description="Only -1, any slot.", ge=-1, le=-1)
    n_keep: int | None = Field(
        default=None, description="As the server was started; without effect where contexts are not shifted.", ge=-1
    )
    n_discard: int | None = Field(default=None, description="Only 0: half of what may be forgotten.", ge=0, le=0)
    t_max_predict_ms: int | None = Field(default=None, description="Only none: 0 or less.", le=0)
    min_keep: int | None = Field(default=None, description="Only 0.", ge=0, le=0)
    n_indent: int | None = Field(default=None, description="Only 0.", ge=0, le=0)
    return_progress: Literal[False] | None = Field(default=None, description="Only false.")
    timings_per_token: Literal[False] | None = Field(default=None, description="Only false: timings come at the end.")
    post_sampling_probs: bool | None = Field(default=None, description="Only false.")
    speculative_n_max: int | None = Field(default=None, alias="speculative.n_max", ge=0)
    speculative_n_min: int | None = Field(default=None, alias="speculative.n_min", ge=0)
    speculative_p_min: float | None = Field(default=None, alias="speculative.p_min", ge=0, le=1)

    def speculation(self) -> Speculative | None:
        """Return how the request is speculated on, whichever way it is said."""
        names = ("n_max", "n_min", "p_min")
        flat = {name: value for name in names if (value := getattr(self, f"speculative_{name}")) is not None}
        return (self.speculative or Speculative()).model_copy(update=flat) if flat else self.speculative


class TokenizeBody(Body):
    """llama.cpp's request to turn text into tokens."""

    content: str = Field(max_length=_MOST_TEXT)
    add_special: bool = Field(default=False, description="Add BOS and EOS where the model wants them.")
    parse_special: bool = Field(default=True, description="Read the names of special tokens as these tokens.")
    with_pieces: bool = Field(default=False, description="Also return the text of each token.")


class DetokenizeBody(Body):
    """llama.cpp's request to turn tokens into text."""

    tokens: ListOf[TokenId] = Field(max_length=_MOST_TEXT)


class EmbeddingsBody(Body):
    """OpenAI's request for embeddings."""

    input: str | ListOf[TokenId] | ListOf[str] | ListOf[ListOf[TokenId]] = Field(
        description="str, token ids, or several of either."
    )
    model: str | None = Field(default=None, description="Any name: there is one model here.")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="base64: 32-bit floats, little endian."
    )
    dimensions: int | None = Field(default=None, description="Only the model's own width.", ge=1)
    user: str | None = Field(default=None, description="Accepted, without effect.")
