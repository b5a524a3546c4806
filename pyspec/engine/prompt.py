"""Checking and reading a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from pyspec.config import as_list, shown
from pyspec.errors import ConfigError, ContextFullError
from pyspec.llama.batch import NO_TOKEN
from pyspec.llama.model import Model
from pyspec.llama.vocab import Vocab


class Embeddings:
    """Part of a prompt that is not text, such as an image projected elsewhere: one row for each position.

    Args:
        rows: Floats, [n, n_embd_inp of the target].

    Raises:
        ConfigError: These are not rows of floats.

    Attributes:
        rows: The rows, [n][width].
    """

    __slots__ = ("rows",)

    def __init__(self, rows: npt.ArrayLike) -> None:
        try:
            given = np.asarray(rows)
        except (TypeError, ValueError) as error:
            msg = f"rows must be an array of floats, [n, width]: {error}."
            raise ConfigError(msg) from None
        if given.dtype.kind not in "fiu" or given.ndim != _N_DIMENSIONS or not given.size:
            msg = f"rows must be an array of floats, [n, width], not one of {given.dtype} with the shape {given.shape}."
            raise ConfigError(msg)
        with np.errstate(over="ignore"):  # what becomes infinite is refused below
            floats = given.astype(np.float32)
        if not np.isfinite(floats).all():
            msg = "rows must be finite numbers; some are not, or are too large for 32 bits."
            raise ConfigError(msg)
        self.rows = list(floats)


_N_DIMENSIONS = 2

PromptPart = str | Sequence[int] | Embeddings
Prompt = str | Sequence[int] | Sequence[PromptPart]


class CheckedPrompt(NamedTuple):
    """A prompt as the target reads it.

    Attributes:
        tokens: One per position; ``NO_TOKEN`` where a row stands in its place.
        rows: Position to row, [n_embd_inp].
    """

    tokens: list[int]
    rows: Mapping[int, npt.NDArray[np.float32]]


def checked_prompt(prompt: Prompt, model: Model, n_ctx_seq: int) -> CheckedPrompt:
    """Return the prompt's tokens, at least one, and its rows.

    Raises:
        ConfigError: The prompt is empty, of the wrong type, or ends with a row.
        TokenError: A token id is outside the vocabulary.
        VocabError: The text cannot be tokenised.
        ContextFullError: The prompt does not fit.
    """
    tokens: list[int] = []
    rows: dict[int, npt.NDArray[np.float32]] = {}
    for i, part in enumerate(_parts(prompt)):
        if isinstance(part, Embeddings):
            _check_width(part, model)
            rows.update(enumerate(part.rows, len(tokens)))
            tokens += [NO_TOKEN] * len(part.rows)
        elif isinstance(part, str | bytes | bytearray):
            tokens += _tokenized(part, model.vocab, first=i == 0)
        else:
            tokens += model.vocab.check(part)
    if not tokens or tokens[-1] == NO_TOKEN:
        what = "is empty" if not tokens else "ends with a row of floats"
        msg = f"The prompt {what}; give at least one token at its end."
        raise ConfigError(msg)
    if len(tokens) > n_ctx_seq:
        most = model.info.n_ctx_train
        advice = f"The model was made for {most}; shorten it." if 0 < most < len(tokens) else "Use a larger n_ctx (-c)."
        msg = f"The prompt has {len(tokens)} tokens; the context has room for {n_ctx_seq}. {advice}"
        raise ContextFullError(msg)
    return CheckedPrompt(tokens, rows)


def _parts(prompt: Prompt) -> Sequence[PromptPart]:
    """Return the parts of a prompt; text or token ids alone are one part."""
    parts = None if isinstance(prompt, Embeddings) else as_list(prompt)
    if parts is None:  # text, or what the vocabulary will refuse
        return [cast("PromptPart", prompt)]
    in_parts = any(isinstance(part, (str, bytes, bytearray, Embeddings)) or as_list(part) is not None for part in parts)
    return parts if in_parts else [parts]


def _tokenized(text: str | bytes | bytearray, vocab: Vocab, *, first: bool) -> list[int]:
    tokens = list(vocab.tokenize(text, add_special=first, parse_special=True))
    return [vocab.bos] if first and not tokens and vocab.bos is not None else tokens


def _check_width(part: Embeddings, model: Model) -> None:
    width = len(part.rows[0])
    if width != model.info.n_embd_inp:
        msg = f"Embeddings have rows of width {width}; {model.path.name} reads rows of {model.info.n_embd_inp}."
        raise ConfigError(msg)


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
            msg = f"stop strings must be non-empty strings, not {shown(text)}."
            raise ConfigError(msg)
    return [text.encode("utf-8", errors="surrogatepass") for text in stops]
