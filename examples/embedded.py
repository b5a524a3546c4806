"""A model inside an asyncio program: answers made at once, one that is streamed, and one that is no longer wanted.

    python examples/embedded.py [MODEL.gguf]

Without an argument it takes SmolLM2-135M from the cache (``pyspec models fetch smollm2-135m``). The engine computes on
a thread of its own, so the event loop stays free for whatever else the program does; here it counts its turns.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pyspec

QUESTIONS = ("Name three colours.", "Name a river in France.", "Say hello in Spanish.")
N_STORY = 24  # tokens
STORY = "Tell a story about a fox."
SPECULATION = pyspec.Speculation("ngram-simple", options={"ngram-simple": {"size_n": 3, "size_m": 6}})


def asked(question: str) -> str:
    """Return a question as SmolLM2 expects it; the names of its special tokens are read as these tokens."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


async def answer(engine: pyspec.Engine, question: str) -> None:
    """Wait for a whole answer; other tasks go on meanwhile."""
    result = await engine.agenerate(asked(question), max_tokens=32)
    print(f"{question} -> {result.text.strip()!r} ({result.finish}, {len(result.tokens)} tokens)")


async def story(engine: pyspec.Engine) -> None:
    """Take an answer piece by piece, and leave when it is long enough: its slot is free one round later."""
    sampling = pyspec.SamplingConfig(temperature=0.8, seed=1)
    async with engine.astream(asked(STORY), sampling=sampling) as stream:
        async for chunk in stream:
            if len(stream.result.tokens) >= N_STORY:
                break
            print(f"  story: {chunk.text!r}")
    print(f"The story was left after {len(stream.result.tokens)} tokens ({stream.result.finish}).")


async def impatient(engine: pyspec.Engine) -> None:
    """Give up; a task that is cancelled, here by the time limit, ends its generation too."""
    try:
        await asyncio.wait_for(engine.agenerate(asked(STORY), priority=1), timeout=0.05)
    except asyncio.TimeoutError:
        print("Nobody waits for the second story any more.")


async def count_turns(turns: list[float]) -> None:
    """Do something else all the time."""
    while True:
        turns.append(time.perf_counter())
        await asyncio.sleep(0.001)


async def converse(engine: pyspec.Engine) -> None:
    """Do all of it at once."""
    turns: list[float] = []
    other = asyncio.create_task(count_turns(turns))
    await asyncio.gather(story(engine), impatient(engine), *(answer(engine, question) for question in QUESTIONS))
    while (status := engine.status()).n_running:  # noqa: ASYNC110 - what was left has its slot for one more round
        await asyncio.sleep(0.001)
    other.cancel()
    print(f"{status.n_requests} requests, {status.n_emitted_tokens} tokens in {status.n_rounds} rounds;", end=" ")
    print(f"the event loop had {len(turns)} turns meanwhile; {status.n_running} requests are left.")


def main() -> None:
    """Open a model and let several requests share it."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else pyspec.hub.cached_path("smollm2-135m")
    if path is None:
        sys.exit("Run `pyspec models fetch smollm2-135m` first, or give a GGUF file.")
    context = pyspec.ContextConfig(n_ctx=4 * 512)  # divided among the slots
    with (
        pyspec.Model(path) as model,
        pyspec.Engine(model, speculation=SPECULATION, context=context, n_slots=4) as engine,
    ):
        asyncio.run(converse(engine))


if __name__ == "__main__":
    main()
