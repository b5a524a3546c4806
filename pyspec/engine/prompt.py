"""Checking and reading a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.config import as_list
from pyspec.errors import ConfigError, ContextFullError
from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.vocab import Vocab


def checked_prompt(prompt: str | Sequence[int], vocab: Vocab, n_ctx_seq: int) -> list[int]:
    """Return the prompt's tokens, at least one.

    Raises:
        ConfigError: The prompt is empty or of the wrong type.
        TokenError: A token id is outside the vocabulary.
        VocabError: The text cannot be tokenised.
        ContextFullError: The prompt does not fit.
    """
    if isinstance(prompt, (str, bytes)):
        tokens = vocab.tokenize(prompt, add_special=True, parse_special=True)
        if not tokens and vocab.bos is not None:
            tokens = [vocab.bos]
    else:
        tokens = list(vocab.check(prompt))
    if not tokens:
        msg = "The prompt is empty; give at least one token."
        raise ConfigError(msg)
    if len(tokens) > n_ctx_seq:
        msg = f"The prompt has {len(tokens)} tokens; the context has room for {n_ctx_seq}. Use a larger n_ctx."
        raise ContextFullError(msg)
    return tokens


def checked_stops(stop: str | Sequence[str]) -> list[bytes]:
    """Return stop strings as bytes.

    Raises:
        ConfigError: One is empty or not a string.
    """
    stops = as_list(stop)
    if stops is None:
        stops = [stop]
    for text in stops:
        if not isinstance(text, str) or not text:
            msg = f"stop strings must be non-empty strings, not {text!r}."
            raise ConfigError(msg)
    return [text.encode("utf-8", errors="surrogatepass") for text in stops]


def prefill(context: Context, tokens: Sequence[int], seq_id: int) -> None:
    """Take tokens into an empty sequence, a physical batch at a time; no logits are wanted.

    The pieces depend on the context's sizes only, so plain and speculative runs read a prompt alike.
    """
    batch = Batch()
    for first in range(0, len(tokens), context.n_ubatch):
        batch.clear()
        batch.extend(tokens[first : first + context.n_ubatch], first, seq_id)
        context.decode(batch)
