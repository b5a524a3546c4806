"""``/v1/completions``: text continued."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from pyspec.engine import Chunk
from pyspec.server import counting
from pyspec.server.answers import Completion, TextChoice, TextLogprobs
from pyspec.server.bodies.text import CompletionBody
from pyspec.server.calling import Call, new_id, now, reason
from pyspec.server.generating import Generations
from pyspec.server.jobs import completion_jobs
from pyspec.server.logprobs import ScoredText, for_text


class _Answer:
    """Makes the answers to one request."""

    def __init__(self, call: Call, running: Generations) -> None:
        self._call = call
        self._body: CompletionBody = call.body
        self._running = running
        self._scored = [ScoredText() for _ in running.results]
        self._common: dict[str, Any] = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": now(),
            "model": call.service.model,
            "system_fingerprint": call.service.fingerprint,
        }

    def choice(self, index: int, text: str, chunks: list[Chunk]) -> TextChoice:
        """Return what chunks add to one of the answers."""
        finish = chunks[-1].finish if chunks else None
        logprobs: TextLogprobs | None = None
        if self._body.logprobs is not None:
            scored = [entry for chunk in chunks for entry in self._scored[index].push(chunk)]
            logprobs = for_text(scored, self._call.piece)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason(finish)}

    def prompt(self, index: int) -> str:
        """Return what stands before an answer."""
        if not self._body.echo:
            return ""
        return self._call.service.engine.model.vocab.detokenize(self._running.results[index].prompt_tokens)

    def whole(self, choices: list[TextChoice], *, counted: bool) -> Completion:
        """Return an answer with these choices."""
        answer: Any = {**self._common, "choices": choices}
        if counted:
            results = self._running.results
            answer["usage"] = counting.usage(results, self._body.n or 1)
            answer["speculation"] = counting.speculation(results)
        elif self._body.wants_usage:
            answer["usage"] = None  # it will come
        return answer  # type: ignore[no-any-return]


async def complete(call: Call) -> None:
    """Answer a request to continue text."""
    body: CompletionBody = call.body
    jobs = await call.computed(completion_jobs)
    async with call.generations(jobs) as running:
        answer = _Answer(call, running)
        if body.stream:
            await _stream(call, running, answer)
            return
        chunks = await call.whole(running)
        choices = [
            answer.choice(i, answer.prompt(i) + "".join(chunk.text for chunk in of_one), of_one)
            for i, of_one in enumerate(chunks)
        ]
        await call.reply.json(answer.whole(choices, counted=True))


async def _stream(call: Call, running: Generations, answer: _Answer) -> None:
    body: CompletionBody = call.body
    await call.reply.begin()
    if body.echo:
        for i in range(len(running.results)):
            await call.reply.event(answer.whole([answer.choice(i, answer.prompt(i), [])], counted=False))
    async with aclosing(call.streamed(running)) as events:
        async for index, chunk in events:
            await call.reply.event(answer.whole([answer.choice(index, chunk.text, [chunk])], counted=False))
    if body.wants_usage:
        await call.reply.event(answer.whole([], counted=True))
    await call.reply.end(done=True)
