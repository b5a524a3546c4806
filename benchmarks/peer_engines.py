"""One engine in a process of its own, for peers.py: pyspec, xllamacpp or llama-cpp-python.

Reads a JSON object a line from stdin and answers with one on stdout::

    {"open": {"setting": ..., "n_slots": 1, ...}}   ->  {}
    {"run": {"prompts": [...], "n_tokens": 48}}     ->  {"texts": [...], "tokens": 47, "seconds": 0.9, ...}

``tokens`` and ``seconds`` count for the speed as in ``pyspec.bench.Run``: one prompt counts from its first token on,
several count as a whole. Those go on where the model would end, so that all engines say as much: texts differ by
rounding, and slots without an answer would make the others slower per token. What the libraries print goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol


class Engine(Protocol):
    """Answers prompts."""

    def run(self, prompts: Sequence[str], n_tokens: int) -> dict[str, Any]:
        """Answer some prompts at once, at temperature 0."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...

    @staticmethod
    def system() -> str:
        """Return what llama.cpp says it was compiled for."""
        ...


class PyspecEngine:
    """This package."""

    versions = ("pyspec-llama",)

    def __init__(self, given: dict[str, Any]) -> None:
        import pyspec  # noqa: PLC0415 - each process needs one of the libraries
        from pyspec.bench import parse_setting  # noqa: PLC0415
        from pyspec.bench.engines import EngineRunner  # noqa: PLC0415

        setting = parse_setting(given["pyspec"])
        self._models = contextlib.ExitStack()
        model = self._models.enter_context(pyspec.Model(given["model"]))
        has_draft = setting.wants_model and given["draft"] is not None
        draft = self._models.enter_context(pyspec.Model(given["draft"])) if has_draft else None
        threads = given["n_threads"]
        context = pyspec.ContextConfig(n_ctx=given["n_ctx"], n_threads=threads, n_threads_batch=threads)
        engine = pyspec.Engine(model, speculation=setting.speculation(draft), context=context, n_slots=given["n_slots"])
        self._runner = EngineRunner(engine)
        self._endless = pyspec.SamplingConfig(logit_bias=dict.fromkeys(model.vocab.eog, -math.inf))

    def run(self, prompts: Sequence[str], n_tokens: int) -> dict[str, Any]:
        """See ``Engine``."""
        run = self._runner.run(prompts, n_tokens) if len(prompts) == 1 else self._run_together(prompts, n_tokens)
        return {
            "texts": [result.text for result in run.results],
            "tokens": run.counted_tokens,
            "seconds": run.counted_seconds,
            "all_tokens": sum(len(result.tokens) for result in run.results),
            "all_seconds": run.seconds,
            "drafted": sum(result.stats.n_drafted for result in run.results),
            "accepted": sum(result.stats.n_accepted for result in run.results),
        }

    def _run_together(self, prompts: Sequence[str], n_tokens: int) -> Any:
        from pyspec.bench import Run  # noqa: PLC0415 - as above

        began = time.perf_counter()
        engine, sampling = self._runner.engine, self._endless
        results = engine.generate_many(prompts, max_tokens=n_tokens, sampling=sampling, progress=False)
        return Run(tuple(results), time.perf_counter() - began)

    def close(self) -> None:
        """See ``Engine``."""
        self._runner.close()
        self._models.close()

    @staticmethod
    def system() -> str:
        """See ``Engine``."""
        from pyspec.llama.devices import library_info  # noqa: PLC0415

        return str(library_info()["system"])


class XllamacppEngine:
    """llama.cpp's server, in this process."""

    versions = ("xllamacpp",)

    def __init__(self, given: dict[str, Any]) -> None:
        import xllamacpp  # noqa: PLC0415

        params = xllamacpp.CommonParams()
        params.model.path = given["model"]
        params.n_ctx = given["n_ctx"]
        params.n_parallel = given["n_slots"]
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given["n_threads"]
        params.verbosity = 0
        params.cache_ram_mib = 0  # nothing of a former request may help
        params.fit_params = False
        peer = given["peer"]
        if peer.get("type"):
            kinds = xllamacpp.common_speculative_type
            params.speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{peer['type']}")]
        if peer.get("n_max"):
            draft = params.speculative.draft
            draft.mparams.path = given["draft"]
            draft.n_max = peer["n_max"]
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = given["n_threads"]
        self._server = xllamacpp.Server(params)

    def run(self, prompts: Sequence[str], n_tokens: int) -> dict[str, Any]:
        """See ``Engine``."""
        answers: list[dict[str, Any]] = [{} for _ in prompts]

        def answer(i: int) -> None:
            request = {"prompt": prompts[i], "max_tokens": n_tokens, "temperature": 0, "cache_prompt": False}
            answers[i] = self._server.handle_completions({**request, "ignore_eos": len(prompts) > 1})

        began = time.perf_counter()
        if len(prompts) == 1:
            answer(0)
        else:
            threads = [threading.Thread(target=answer, args=(i,)) for i in range(len(prompts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return _report(answers, time.perf_counter() - began)

    def close(self) -> None:
        """See ``Engine``."""
        del self._server

    @staticmethod
    def system() -> str:
        """See ``Engine``."""
        import xllamacpp  # noqa: PLC0415

        return str(xllamacpp.get_system_info())


def _report(answers: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    wrong = next((answer for answer in answers if "timings" not in answer), None)
    if wrong is not None:
        raise RuntimeError(f"xllamacpp answered {wrong}")
    timings = [answer["timings"] for answer in answers]
    n_tokens = sum(each["predicted_n"] for each in timings)
    alone = len(answers) == 1
    return {
        "texts": [answer["choices"][0]["text"] for answer in answers],
        "tokens": n_tokens - 1 if alone else n_tokens,
        "seconds": seconds - timings[0]["prompt_ms"] / 1e3 if alone else seconds,
        "all_tokens": n_tokens,
        "all_seconds": seconds,
        "drafted": sum(each.get("draft_n", 0) for each in timings),
        "accepted": sum(each.get("draft_n_accepted", 0) for each in timings),
    }


class LlamaCppPythonEngine:
    """llama-cpp-python, plain or with its prompt lookup."""

    versions = ("llama-cpp-python",)

    def __init__(self, given: dict[str, Any]) -> None:
        from llama_cpp import Llama  # noqa: PLC0415
        from llama_cpp.llama_speculative import (  # noqa: PLC0415
            LlamaPromptLookupDecoding,
        )

        looks_up = given["peer"].get("type") is not None
        threads = given["n_threads"]
        self._llama = Llama(
            given["model"],
            n_ctx=given["n_ctx"],
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=2) if looks_up else None,  # its advice for CPUs
            verbose=False,
        )

    def run(self, prompts: Sequence[str], n_tokens: int) -> dict[str, Any]:
        """See ``Engine``; the first token ends the reading of the prompt."""
        began, first, texts = time.perf_counter(), 0.0, []
        for piece in self._llama(prompts[0], max_tokens=n_tokens, temperature=0.0, stream=True):
            first = first or time.perf_counter()
            texts.append(piece["choices"][0]["text"])
        ended = time.perf_counter()
        n = len(self._llama.tokenize("".join(texts).encode(), add_bos=False))
        counts = {"tokens": n - 1, "seconds": ended - first, "all_tokens": n, "all_seconds": ended - began}
        return {"texts": ["".join(texts)], **counts, "drafted": 0, "accepted": 0}

    def close(self) -> None:
        """See ``Engine``."""
        self._llama.close()

    @staticmethod
    def system() -> str:
        """See ``Engine``."""
        from llama_cpp import llama_print_system_info  # noqa: PLC0415

        return str(llama_print_system_info().decode())


ENGINES: dict[str, Any] = {
    "pyspec": PyspecEngine,
    "xllamacpp": XllamacppEngine,
    "llama-cpp-python": LlamaCppPythonEngine,
}


def main() -> None:
    """Serve one engine until stdin ends."""
    kind = ENGINES[sys.argv[1]]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        ((order, given),) = json.loads(line).items()
        answer: dict[str, Any] = {}
        try:
            if order == "version":
                versions = ", ".join(f"{name} {version(name)}" for name in kind.versions)
                answer = {"version": versions, "system": kind.system()}
            elif order == "open":
                if engine is not None:
                    engine.close()
                engine = kind(given)
            elif engine is not None:
                answer = engine.run(given["prompts"], given["n_tokens"])
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    if engine is not None:
        engine.close()


if __name__ == "__main__":
    main()
