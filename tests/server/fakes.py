"""An engine that says what a test wants, over a vocabulary of bytes. No native code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pyspec.engine import Chunk, Drafting, EngineStatus, Result, Settings, SlotState, SlotStatus
from pyspec.engine.text import TextStream
from pyspec.errors import BusyError, ConfigError, TokenError
from pyspec.llama.model import Model
from pyspec.llama.vocab import VocabType
from pyspec.server.service import ServedEngine
from pyspec.speculation import DrafterStats, Finish, GenerationStats
from pyspec.speculation.config import Speculation
from pyspec.speculation.ending import Ending

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = (b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>")
BOS, EOS, IM_START, IM_END = range(256, 260)
_SETTINGS = set(Settings.__annotations__) - {"observer"}
_N_PER_ROUND = 3


class ByteVocab:
    """Ids 0 to 255 are bytes; then come control tokens."""

    type = VocabType.BPE
    n_tokens = 256 + len(NAMES)
    add_bos, add_eos = True, False
    bos, eos, eot = BOS, EOS, IM_END
    eog = frozenset({EOS, IM_END})

    def tokenize(self, text: str | bytes, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        tokens = list(text.encode() if isinstance(text, str) else text)
        for token, name in enumerate(NAMES, 256) if parse_special else ():
            tokens = _replaced(tokens, list(name), token)
        return [BOS, *tokens] if add_special else tokens

    def pieces(self, tokens: Iterable[int], *, special: bool = False) -> list[bytes]:
        found = []
        for token in tokens:
            if not 0 <= token < self.n_tokens:
                msg = f"Token {token} is outside the vocabulary."
                raise TokenError(msg)
            found.append(bytes([token]) if token < 256 else NAMES[token - 256] if special else b"")
        return found

    def all_pieces(self) -> list[bytes]:
        return self.pieces(range(self.n_tokens))

    def detokenize_bytes(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        return b"".join(self.pieces(tokens, special=special))

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> str:
        return self.detokenize_bytes(tokens, special=special).decode("utf-8", "replace")

    def attributes(self) -> npt.NDArray[np.int32]:
        return np.array([4] * 256 + [8] * len(NAMES), dtype=np.int32)  # llama.cpp's NORMAL and CONTROL


def _replaced(tokens: list[int], name: list[int], by: int) -> list[int]:
    found, i = [], 0
    while i < len(tokens):
        is_name = tokens[i : i + len(name)] == name
        found.append(by if is_name else tokens[i])
        i += len(name) if is_name else 1
    return found


class Gate(Protocol):
    """What rounds wait for, such as an ``asyncio.Event``."""

    async def wait(self) -> object: ...


@dataclass
class Script:
    """How a generation goes.

    Attributes:
        text: What is said.
        delay: Seconds before each round.
        error: Raised in place of the end.
        gate: Each round but the first waits for it.
    """

    text: str | bytes = "Hello, world!"
    delay: float = 0.0
    error: Exception | None = None
    gate: Gate | None = None


@dataclass
class Request:
    """What the engine was asked for."""

    prompt: list[int]
    settings: dict[str, Any]

    @property
    def text(self) -> str:
        return ByteVocab().detokenize(self.prompt, special=True)


class FakeEngine:
    """Says what its script says.

    Attributes:
        script: One for all requests, or a function of the request.
        requests: All that were taken in.
        n_running: Generations that were begun and have not ended.
        n_closed: Generations that were closed before their end.
        refuses: Raised in place of taking a request in.
        embedded: Texts that were made into vectors.
    """

    def __init__(
        self, script: Script | Callable[[Request], Script] | None = None, *, template: str | None = CHATML
    ) -> None:
        self.script: Script | Callable[[Request], Script] = script or Script()
        self.model = cast("Model", _model(template))
        self.n_slots = 2
        self.n_ctx_seq = 1000
        self.n_queue = 8
        self.n_keep: int | None = None
        self.speculation = Speculation("fake")
        self.requests: list[Request] = []
        self.running: set[FakeGeneration] = set()
        self.n_closed = 0
        self.refuses: Exception | None = None
        self.embedded: list[list[int]] = []
        self.drafters = {"fake": DrafterStats()}
        self.n_emitted = self.n_prompt = self.n_rounds = 0

    def astream(self, prompt: Sequence[int], **settings: Any) -> FakeGeneration:
        assert settings.keys() <= _SETTINGS
        return FakeGeneration(self, Request(list(prompt), settings))

    def admit(self, generation: FakeGeneration, request: Request) -> Script:
        """Take a request in, and return what is said to it."""
        if self.refuses is not None:
            raise self.refuses
        if len(self.running) >= self.n_slots + self.n_queue:
            msg = "the queue is full"
            raise BusyError(msg)
        drafting: Drafting | None = request.settings.get("drafting")
        unknown = set(drafting.types or ()) - {"fake"} if drafting and not isinstance(drafting.types, str) else set()
        if unknown:
            msg = f"types names {unknown}."
            raise ConfigError(msg)
        if "grammar" in request.settings:
            request.settings["grammar"].compile(ByteVocab())
        self.requests.append(request)
        self.n_prompt += len(request.prompt)
        self.running.add(generation)
        return self.script if isinstance(self.script, Script) else self.script(request)

    def embed(self, prompt: Sequence[int], *, pooling: str | None) -> npt.NDArray[np.float32]:
        """Return the tokens' number, their sum, and the length of the pooling's name."""
        self.embedded.append(list(prompt))
        assert pooling is not None
        return np.array([len(prompt), sum(prompt), len(pooling)], np.float32)

    def status(self) -> EngineStatus:
        n_running = min(len(self.running), self.n_slots)
        states = [SlotState.GENERATING] * n_running + [SlotState.IDLE] * (self.n_slots - n_running)
        return EngineStatus(
            n_slots=self.n_slots,
            n_running=n_running,
            n_waiting=len(self.running) - n_running,
            slots=tuple(
                SlotStatus(seq_id=i, state=state, n_tokens=0, n_prompt=0, n_emitted=0) for i, state in enumerate(states)
            ),
            drafters=self.drafters,
            n_requests=len(self.requests),
            n_prompt_tokens=self.n_prompt,
            n_reused_tokens=0,
            n_emitted_tokens=self.n_emitted,
            n_rounds=self.n_rounds,
        )


class FakeGeneration:
    """Rounds of three tokens: two accepted ones and a bonus."""

    def __init__(self, engine: FakeEngine, request: Request) -> None:
        self._engine, self._request, self._script = engine, request, Script()
        self.result = Result(prompt_tokens=request.prompt, stats=GenerationStats(n_prompt=len(request.prompt)))
        self.result.drafters["fake"] = DrafterStats()
        self._chunks = self._play()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def begin(self) -> None:
        self._script = self._engine.admit(self, self._request)

    async def aclose(self) -> None:
        self._engine.n_closed += self.result.finish is None
        self.result.finish = self.result.finish or Finish.CANCELLED
        self._engine.running.discard(self)

    async def _play(self) -> AsyncIterator[Chunk]:
        script, settings, vocab = self._script, self._request.settings, ByteVocab()
        limit = settings.get("max_tokens")
        ending = Ending(
            eog=vocab.eog,
            max_tokens=1_000_000 if limit is None else limit,
            stops=[text.encode() for text in settings.get("stop", ())],
            piece=lambda token: vocab.pieces([token])[0],
        )
        text = TextStream()
        said = vocab.tokenize(script.text)
        rounds = [said[i : i + _N_PER_ROUND] for i in range(0, len(said), _N_PER_ROUND)]
        for i, tokens in enumerate([*rounds, [EOS]] if script.error is None else rounds):
            await asyncio.sleep(script.delay)
            if i and script.gate is not None:
                await script.gate.wait()
            emitted, finish = [], Finish.LENGTH if ending.remaining <= 0 else None
            for token in tokens if finish is None else ():
                emitted.append(token)
                finish = ending.push(token)
                if finish is not None:
                    break
            yield self._chunk(emitted, text.take(ending.release(finish), finish), finish)
            if finish is not None:
                self._engine.running.discard(self)
                return
        assert script.error is not None
        self.result.finish = Finish.ERROR
        raise script.error

    def _chunk(self, tokens: list[int], text: str, finish: Finish | None) -> Chunk:
        n, settings, result = len(tokens), self._request.settings, self.result
        n_accepted = max(n - 1, 0)
        for stats in (result.drafters["fake"], self._engine.drafters["fake"]):
            if n_accepted:
                stats.count(n_accepted, n_accepted)
        result.tokens += tokens
        result.text += text
        result.finish = finish
        if n:
            result.stats.n_rounds += 1
            result.stats.lengths[n] += 1
            self._engine.n_rounds += 1
        result.stats.n_emitted += n
        result.stats.n_drafted += n_accepted
        result.stats.n_accepted += n_accepted
        if result.stats.n_emitted == n:  # the time of the first round is the prompt's
            result.stats.n_first = n
        else:
            result.stats.seconds["total"] = result.stats.seconds.get("total", 0.0) + 0.01
        self._engine.n_emitted += n
        return Chunk(
            text=text,
            tokens=tuple(tokens),
            sources=("draft:fake",) * n_accepted + ("bonus",) * (n - n_accepted),
            pieces=tuple(ByteVocab().pieces(tokens)),
            finish=finish,
            logprobs=(-0.25,) * n if settings.get("logprobs") else (),
            top=tuple(self._top(token) for token in tokens) if settings.get("n_top") else (),
        )

    def _top(self, token: int) -> tuple[tuple[int, float], ...]:
        alternatives = ((token, -0.25), (ord("?"), -2.0), (EOS, float("-inf")))
        return alternatives[: self._request.settings["n_top"]]


def _model(template: str | None) -> Any:
    return SimpleNamespace(
        vocab=ByteVocab(),
        path=Path("folder") / "fake.gguf",
        chat_template=lambda name=None: template if name is None else None,
        info=SimpleNamespace(
            architecture="fake", n_ctx_train=1000, n_embd=8, n_embd_out=3, n_params=123, size_bytes=456
        ),
        metadata={},
        identity="456 bytes",
    )


def as_served(engine: FakeEngine) -> ServedEngine:
    """Let the type checker compare the fake with what a server asks for."""
    return engine
