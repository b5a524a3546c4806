"""Log-probabilities, in step with the text: a token whose text was cut away is not reported."""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pyspec.engine import Chunk
from pyspec.server.answers import Alternative, ChatLogprobs, TextLogprobs
from pyspec.server.llama_answers import LlamaAlternative, LlamaProbability

LOWEST = -9999.0  # JSON has no infinity; OpenAI says this

Pieces = Callable[[int], bytes]


class Scored(NamedTuple):
    """A token of the text.

    Attributes:
        token: Its id.
        piece: Its bytes.
        offset: Characters of the text before it.
        logprob: Its log-probability.
        top: The most likely tokens and theirs, best first.
    """

    token: int
    piece: bytes
    offset: int
    logprob: float
    top: Sequence[tuple[int, float]]


class ScoredText:
    """Hands out the tokens of a text as the text is released.

    Text may be held back (a character that is not complete, what may become a stop string) and cut at the end; a token
    is released with its first character, and one without text with the character after it.
    """

    __slots__ = ("_decoder", "_n_characters", "_released", "_waiting")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_characters = 0
        self._released = 0
        self._waiting: deque[Scored] = deque()

    def push(self, chunk: Chunk) -> list[Scored]:
        """Take in a chunk and return the tokens whose text has begun to be released."""
        tops: Iterable[Sequence[tuple[int, float]]] = chunk.top or ((),) * len(chunk.tokens)
        for token, piece, logprob, top in zip(chunk.tokens, chunk.pieces, chunk.logprobs, tops, strict=True):
            self._waiting.append(Scored(token, piece, self._n_characters, logprob, top))
            self._n_characters += len(self._decoder.decode(piece))
        self._released += len(chunk.text)
        ready = []
        while self._waiting and self._waiting[0].offset < self._released:
            ready.append(self._waiting.popleft())
        return ready


def for_chat(scored: Iterable[Scored], piece: Pieces) -> ChatLogprobs:
    """Return tokens as the chat endpoint reports them."""
    content = [
        {
            **_alternative(entry.piece, entry.logprob),
            "top_logprobs": [_alternative(piece(token), logprob) for token, logprob in entry.top],
        }
        for entry in scored
    ]
    return {"content": content, "refusal": None}  # type: ignore[typeddict-item]


def for_text(scored: Sequence[Scored], piece: Pieces, n_before: int = 0) -> TextLogprobs:
    """Return tokens as the completion endpoint reports them.

    Args:
        scored: The tokens.
        piece: Returns the bytes of a token.
        n_before: Characters before the text.
    """
    tops = [_best_by_text(entry.top, piece) for entry in scored]
    return {
        "tokens": [_shown(entry.piece) for entry in scored],
        "token_logprobs": [_finite(entry.logprob) for entry in scored],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": [n_before + entry.offset for entry in scored],
    }


def _best_by_text(top: Sequence[tuple[int, float]], piece: Pieces) -> dict[str, float]:
    """Several tokens can have the same text; the best one stands for it."""
    found: dict[str, float] = {}
    for token, logprob in top:
        found.setdefault(_shown(piece(token)), _finite(logprob))
    return found


def for_llama(scored: Iterable[Scored], piece: Pieces) -> list[LlamaProbability]:
    """Return tokens as llama.cpp reports them."""
    return [
        {
            **_with_id(entry.token, entry.piece, entry.logprob),
            "top_logprobs": [_with_id(token, piece(token), logprob) for token, logprob in entry.top],
        }
        for entry in scored
    ]


def _with_id(token: int, piece: bytes, logprob: float) -> LlamaAlternative:
    return {"id": token, **_alternative(piece, logprob)}


def _alternative(piece: bytes, logprob: float) -> Alternative:
    return {"token": _shown(piece), "logprob": _finite(logprob), "bytes": list(piece)}


def _shown(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST) if math.isfinite(logprob) else LOWEST
