"""Plain decoding as a straight loop, written apart from the package: what every speculative run must equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tests.fake_sampling import choose
from tests.fakes import Logits


@dataclass(frozen=True)
class Request:
    """A request to a fake target.

    Attributes:
        logits: The target.
        n_vocab: Its vocabulary.
        prompt: At least one token.
        max_tokens: Most tokens to emit.
        n_ctx: Tokens the context holds.
        eog: Tokens that end it.
        stops: Stop strings.
        pieces: Bytes per token; a token that is missing has none.
        seed: None takes the most likely token.
        penalty: See ``tests.fakes.choose``.
        banned: See ``tests.fakes.choose``.
    """

    logits: Logits
    n_vocab: int
    prompt: tuple[int, ...]
    max_tokens: int
    n_ctx: int = 64
    eog: frozenset[int] = frozenset()
    stops: tuple[bytes, ...] = ()
    pieces: Mapping[int, bytes] = field(default_factory=dict)
    seed: int | None = None
    penalty: float = 0.0
    banned: frozenset[int] = frozenset()

    def piece(self, token: int) -> bytes:
        return self.pieces.get(token, b"")


@dataclass(frozen=True)
class Plain:
    """What plain decoding gives.

    Attributes:
        tokens: Emitted tokens.
        text: Their text, cut before a stop string.
        finish: Value of the ``Finish``.
        history: Prompt and emitted tokens.
    """

    tokens: tuple[int, ...]
    text: str
    finish: str
    history: tuple[int, ...]


def plain_decode(request: Request) -> Plain:
    """Emit one token after the other until something ends it."""
    history = list(request.prompt)
    random = np.random.default_rng(request.seed)
    data = b""
    finish = None
    while finish is None:
        n_emitted = len(history) - len(request.prompt)
        if n_emitted == request.max_tokens:
            finish = "length"
        elif len(history) > request.n_ctx:
            finish = "context"
        else:
            uniform = None if request.seed is None else random.random()
            row = request.logits(tuple(history))
            token = choose(row, history, uniform=uniform, penalty=request.penalty, banned=request.banned)
            history.append(token)
            if token in request.eog:
                finish = "eog"
                continue
            data += request.piece(token)
            cuts = [data.index(stop) for stop in request.stops if stop in data]
            if cuts:
                data, finish = data[: min(cuts)], "stop"
    emitted = tuple(history[len(request.prompt) :])
    return Plain(emitted, data.decode("utf-8", errors="replace"), finish, tuple(history))
