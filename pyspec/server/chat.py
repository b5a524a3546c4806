"""``/v1/chat/completions``: the next message of a conversation."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from pyspec.engine import Chunk
from pyspec.server import counting, tools
from pyspec.server.answers import Call as ToolCall
from pyspec.server.answers import ChatChoice, ChatLogprobs, Delta, DeltaChoice, FinishReason
from pyspec.server.bodies.chat import ChatBody
from pyspec.server.calling import Call, new_id, now, reason
from pyspec.server.generating import Generations
from pyspec.server.jobs import chat_jobs, chat_text
from pyspec.server.logprobs import ScoredText, for_chat
from pyspec.server.service import Service
from pyspec.server.tool_calls import CallReader
from pyspec.speculation import Finish


class _Voice:
    """Turns the chunks of one generation into parts of a message."""

    def __init__(self, call: Call, names: list[str]) -> None:
        body: ChatBody = call.body
        self._call = call
        self._wants_logprobs = bool(body.logprobs)
        self._scored = ScoredText()
        self._reader = CallReader(names, several=body.parallel_tool_calls is not False)

    def push(self, chunk: Chunk) -> tuple[str, list[ToolCall]]:
        """Take in a chunk and return text and calls."""
        text, calls = self._reader.push(chunk.text)
        if chunk.finish is not None:
            rest, more = self._reader.finish()
            text, calls = text + rest, calls + more
        return text, calls

    def logprobs(self, chunks: list[Chunk]) -> ChatLogprobs | None:
        """Return the log-probabilities of what the chunks say, where they are asked for."""
        if not self._wants_logprobs:
            return None
        return for_chat((entry for chunk in chunks for entry in self._scored.push(chunk)), self._call.piece)

    @property
    def n_calls(self) -> int:
        """Calls made so far."""
        return self._reader.n_calls

    def reason(self, finish: Finish | None) -> FinishReason | None:
        """Return why the message ends with a chunk that ends so."""
        return "tool_calls" if self.n_calls and finish in (Finish.EOG, Finish.STOP) else reason(finish)


async def chat(call: Call) -> None:
    """Answer a request for the next message."""
    body: ChatBody = call.body
    jobs = await call.computed(chat_jobs)
    names = [tool["function"]["name"] for tool in tools.forced(body) or tools.offered(body)]
    async with call.generations(jobs) as running:
        voices = [_Voice(call, names) for _ in jobs]
        named = {"model": call.service.model, "system_fingerprint": call.service.fingerprint}
        common = {"id": new_id("chatcmpl"), "created": now(), **named}
        if body.stream:
            pending = {"usage": None} if body.wants_usage else {}  # which says that it will come
            await _stream(call, running, voices, {**common, "object": "chat.completion.chunk", **pending})
            return
        chunks = await call.whole(running)
        choices = [_choice(i, voices[i], of_one) for i, of_one in enumerate(chunks)]
        await call.reply.json({**common, "object": "chat.completion", "choices": choices, **_counts(running)})


async def apply_template(call: Call) -> None:
    """Answer with a conversation as text; what the next message could be is not looked at."""
    await call.reply.json({"prompt": await call.computed(_applied)})


def _applied(service: Service, body: ChatBody) -> str:
    return service.speech.unmarked(chat_text(service, body, tools.forced(body) or tools.offered(body)))


def _counts(running: Generations) -> dict[str, Any]:
    results = running.results
    return {"usage": counting.usage(results, len(results)), "speculation": counting.speculation(results)}


def _choice(index: int, voice: _Voice, chunks: list[Chunk]) -> ChatChoice:
    text = ""
    calls: list[ToolCall] = []
    for chunk in chunks:
        more, made = voice.push(chunk)
        text, calls = text + more, calls + made
    message: Any = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message.update(content=text or None, tool_calls=calls)
    ended = voice.reason(chunks[-1].finish if chunks else None)
    return {"index": index, "message": message, "logprobs": voice.logprobs(chunks), "finish_reason": ended or "stop"}


async def _stream(call: Call, running: Generations, voices: list[_Voice], common: dict[str, Any]) -> None:
    body: ChatBody = call.body

    async def send(index: int, delta: Delta, chunk: Chunk | None = None) -> None:
        voice = voices[index]
        choice: DeltaChoice = {
            "index": index,
            "delta": delta,
            "logprobs": None if chunk is None else voice.logprobs([chunk]),
            "finish_reason": None if chunk is None else voice.reason(chunk.finish),
        }
        await call.reply.event({**common, "choices": [choice]})

    await call.reply.begin()
    for i in range(len(voices)):
        await send(i, {"role": "assistant", "content": ""})
    async with aclosing(call.streamed(running)) as events:
        async for index, chunk in events:
            n_before = voices[index].n_calls
            text, calls = voices[index].push(chunk)
            delta: Delta = {"content": text} if text else {}
            if calls:
                delta["tool_calls"] = [{"index": i, **made} for i, made in enumerate(calls, n_before)]
            if delta or chunk.finish is not None or body.logprobs:
                await send(index, delta, chunk)
    if body.wants_usage:
        await call.reply.event({**common, "choices": [], **_counts(running)})
    await call.reply.end(done=True)
