"""llama.cpp's own endpoints: ``/completion``, ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from pyspec.config import SamplingConfig
from pyspec.engine import Chunk, Result
from pyspec.server import counting
from pyspec.server.about import generation_settings
from pyspec.server.bodies.text import DetokenizeBody, LlamaCompletionBody, TokenizeBody
from pyspec.server.calling import Call
from pyspec.server.generating import Generations, Job
from pyspec.server.jobs import llama_job
from pyspec.server.llama_answers import Content, GenerationSettings, LlamaCompletion, Piece, Tokens
from pyspec.server.logprobs import ScoredText, for_llama
from pyspec.server.service import Service
from pyspec.speculation import Finish

_STOP_TYPES = {Finish.EOG: "eos", Finish.STOP: "word", Finish.LENGTH: "limit", Finish.CONTEXT: "limit"}


async def complete(call: Call) -> None:
    """Answer a request to continue text."""
    body: LlamaCompletionBody = call.body
    job = await call.computed(llama_job)
    async with call.generations([job]) as running:
        scored = ScoredText()
        if not body.stream:
            chunks = (await call.whole(running))[0]
            await call.reply.json(_last(call, running, job, _part(call, chunks, scored)))
            return
        n_emitted, n_prompt = 0, len(job.prompt)
        await call.reply.begin()
        async with aclosing(call.streamed(running)) as events:
            async for _, chunk in events:
                part = _part(call, [chunk], scored)
                n_emitted += len(chunk.tokens)
                if chunk.finish is None:
                    counts = {"tokens_predicted": n_emitted, "tokens_evaluated": n_prompt}
                    await call.reply.event({"index": 0, "stop": False, **counts, **part})
                else:
                    await call.reply.event(_last(call, running, job, part))
        await call.reply.end(done=False)


def _part(call: Call, chunks: list[Chunk], scored: ScoredText) -> dict[str, Any]:
    """Return what chunks add to the answer."""
    body: LlamaCompletionBody = call.body
    part: dict[str, Any] = {"content": "".join(chunk.text for chunk in chunks)}
    wants_tokens = body.return_tokens or body.stream
    part["tokens"] = [token for chunk in chunks for token in chunk.tokens] if wants_tokens else []
    if body.n_probs:
        entries = [entry for chunk in chunks for entry in scored.push(chunk)]
        part["completion_probabilities"] = for_llama(entries, call.piece)
    return part


def _last(call: Call, running: Generations, job: Job, part: dict[str, Any]) -> LlamaCompletion:
    """Return the answer's end, or all of it."""
    result, vocab = running.results[0], call.service.engine.model.vocab
    n_prompt, n_emitted = len(result.prompt_tokens), len(result.tokens)
    answer: Any = {
        "index": 0,
        "stop": True,
        "model": call.service.model,
        "tokens_predicted": n_emitted,
        "tokens_evaluated": n_prompt,
        "tokens_cached": n_prompt + max(n_emitted - 1, 0),  # the last one is pending
        "truncated": result.finish is Finish.CONTEXT,
        "stop_type": _STOP_TYPES.get(result.finish or Finish.EOG, "eos"),
        "stopping_word": _stopping_word(call, result, job),
        "prompt": vocab.detokenize(result.prompt_tokens, special=True),
        "generation_settings": _settings(call.body, result, job),
        "timings": counting.timings(result),
        "speculation": counting.speculation([result]),
        **part,
    }
    return answer  # type: ignore[no-any-return]


def _stopping_word(call: Call, result: Result, job: Job) -> str:
    """Return the text that the answer stopped before; it ends in the last token, so that only one can come first."""
    if result.finish is not Finish.STOP:
        return ""
    said = b"".join(call.service.engine.model.vocab.pieces(result.tokens))
    stops = [text for text in job.settings.get("stop", ()) if text.encode() in said]
    return min(stops, key=lambda text: said.find(text.encode()), default="")


def _settings(body: LlamaCompletionBody, result: Result, job: Job) -> GenerationSettings:
    settings = job.settings
    return generation_settings(
        settings.get("sampling") or SamplingConfig(),
        settings.get("max_tokens"),
        seed=result.seed,
        stop=list(settings.get("stop", ())),
        n_probs=body.n_probs or 0,
        stream=bool(body.stream),
    )


async def tokenize(call: Call) -> None:
    """Answer with the tokens of a text."""
    await call.reply.json(await call.computed(_tokens))


def _tokens(service: Service, body: TokenizeBody) -> Tokens:
    vocab = service.engine.model.vocab
    tokens = service.speech.read(body.content, add_special=body.add_special, parse_special=body.parse_special)
    if not body.with_pieces:
        return {"tokens": tokens}
    pieces = vocab.pieces(tokens, special=True)
    return {"tokens": [_piece(token, piece) for token, piece in zip(tokens, pieces, strict=True)]}


def _piece(token: int, piece: bytes) -> Piece:
    try:
        return {"id": token, "piece": piece.decode()}
    except UnicodeDecodeError:  # part of a character
        return {"id": token, "piece": list(piece)}


async def detokenize(call: Call) -> None:
    """Answer with the text of tokens."""
    await call.reply.json(await call.computed(_text))


def _text(service: Service, body: DetokenizeBody) -> Content:
    return {"content": service.engine.model.vocab.detokenize(body.tokens, special=True)}
