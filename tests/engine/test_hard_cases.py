"""Requests that are long, broken off, or oddly sized: with speculation they end as they do without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec.errors import ConfigError, UnsupportedError
from pyspec.speculation import Outcome

OpenZoo = Callable[[str], pyspec.Model]
LONG = [1, *(20 + i % 90 for i in range(200))]
HEADS = [
    ("draft-eagle3", "target-llama", "draft-eagle3"),
    ("draft-mtp", "target-mtp", None),
    ("draft-mtp", "target-mtp-chain", None),
    ("draft-dflash", "target-llama", "draft-dflash"),
    ("draft-dspark", "target-llama", "draft-dspark"),
    ("draft-simple", "target-llama", "draft-llama"),
]


def make(open_zoo: OpenZoo, target: str, types: str = "none", draft: str | None = None, **settings: Any) -> Any:
    options = settings.pop("options", {})
    sizes = {"n_ctx": 512, "n_batch": 64, "n_ubatch": 16, "n_threads": 1, **settings}
    speculation = pyspec.Speculation(types, open_zoo(draft) if draft else None, options, self_check=False)
    return pyspec.Engine(open_zoo(target), speculation=speculation, context=pyspec.ContextConfig(**sizes))


@pytest.mark.parametrize(("types", "target", "draft"), HEADS)
@pytest.mark.parametrize("n_prompt", [20, 40, 41, 90, 200])
def test_a_draft_context_that_is_too_small_only_stops_the_drafting(
    open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture, types: str, target: str, draft: str | None, n_prompt: int
) -> None:
    with make(open_zoo, target) as plain, make(open_zoo, target, types, draft, options={types: {"n_ctx": 48}}) as one:
        for _request in range(2):
            expected = plain.generate(LONG[:n_prompt], max_tokens=60).tokens
            assert one.generate(LONG[:n_prompt], max_tokens=60).tokens == expected
    assert caplog.text.count(f"goes on without {types}") == 1


@pytest.mark.parametrize("types", ["ngram-simple", "ngram-mod", "draft-mtp"])
@pytest.mark.parametrize("n_ubatch", [1, 2, 3, 4, 16])
def test_small_batches_on_a_hybrid_target(open_zoo: OpenZoo, types: str, n_ubatch: int) -> None:
    with (
        make(open_zoo, "target-mtp", n_ubatch=n_ubatch) as plain,
        make(open_zoo, "target-mtp", types, n_ubatch=n_ubatch) as one,
    ):
        assert one.generate(LONG[:30], max_tokens=20).tokens == plain.generate(LONG[:30], max_tokens=20).tokens


@pytest.mark.parametrize(("types", "target", "draft"), HEADS)
def test_embeddings_after_a_long_text(open_zoo: OpenZoo, types: str, target: str, draft: str | None) -> None:
    width = open_zoo(target).info.n_embd_inp
    prompt = [LONG[:90], pyspec.Embeddings(np.ones((2, width)) / 8), [50]]
    with make(open_zoo, target) as plain, make(open_zoo, target, types, draft) as one:
        assert one.generate(prompt, max_tokens=8).tokens == plain.generate(prompt, max_tokens=8).tokens


@pytest.mark.parametrize("flash_attn", ["on", "off", "auto"])
def test_a_prompt_of_one_token_with_a_shared_memory(open_zoo: OpenZoo, flash_attn: str) -> None:
    with (
        make(open_zoo, "target-gemma4", flash_attn=flash_attn) as plain,
        make(open_zoo, "target-gemma4", "draft-mtp", "draft-gemma4", flash_attn=flash_attn) as one,
    ):
        for _request in range(2):
            result = one.generate([1], max_tokens=30)
            assert result.tokens == plain.generate([1], max_tokens=30).tokens
            assert result.stats.n_accepted > 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="finite"):
        pyspec.Embeddings(np.full((2, 64), value))


@pytest.mark.parametrize("rows", [np.full((2, 4), None), np.ones((2, 4), complex), np.zeros((2, 4), "M8[s]")])
def test_rows_of_something_else_are_refused(rows: Any) -> None:
    with pytest.raises(ConfigError, match="rows must be an array of floats"):
        pyspec.Embeddings(rows)


class Raises:
    """An observer that raises at its third round."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.n_rounds = 0

    def begin(self, info: Any) -> None: ...

    def end(self, result: Any) -> None: ...

    def round(self, outcome: Outcome) -> None:  # noqa: ARG002
        self.n_rounds += 1
        if self.n_rounds == 3:
            raise self.error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_lost_when_an_observer_raises(open_zoo: OpenZoo, error: type[BaseException]) -> None:
    with make(open_zoo, "target-llama", "draft-simple", "draft-llama") as one:
        whole = one.generate(LONG[:20], max_tokens=200, n_top=1)  # enough that the engine is not over before it raises
        with pytest.raises(error) as caught:
            one.generate(LONG[:20], max_tokens=200, n_top=1, observer=Raises(error))
        partial: pyspec.Result = caught.value.partial  # type: ignore[attr-defined]
        n_tokens = len(partial.tokens)
        assert partial.tokens == whole.tokens[:n_tokens]
        assert n_tokens == len(partial.sources) == len(partial.top)
        assert partial.text
        assert whole.text.startswith(partial.text.rstrip("\ufffd"))
        assert partial.finish is (pyspec.Finish.CANCELLED if error is KeyboardInterrupt else pyspec.Finish.ERROR)
        assert list(partial.drafters) == (["draft-simple"] if error is KeyboardInterrupt else [])
        assert one.generate(LONG[:20], max_tokens=200).tokens == whole.tokens


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
@pytest.mark.parametrize("method", ["begin", "round", "end"])
def test_an_observer_cannot_end_an_answer_like_an_iteration(
    open_zoo: OpenZoo, error: type[Exception], method: str
) -> None:
    def fail(_: Any) -> None:
        raise error

    observer: Any = SimpleNamespace(**{name: lambda _: None for name in ("begin", "round", "end")} | {method: fail})
    with make(open_zoo, "target-llama") as one:

        async def listen() -> None:
            async for _ in one.astream(LONG[:20], max_tokens=9, observer=observer):
                pass

        for ask in (
            lambda: one.generate(LONG[:20], max_tokens=9, observer=observer),
            lambda: list(one.stream(LONG[:20], max_tokens=9, observer=observer)),
            lambda: asyncio.run(one.agenerate(LONG[:20], max_tokens=9, observer=observer)),
            lambda: asyncio.run(listen()),
        ):
            with pytest.raises(RuntimeError, match=f"observer's .* raised {error.__name__}"):
                ask()
        assert len(one.generate(LONG[:20], max_tokens=9).tokens) == 9


def test_text_held_back_for_a_stop_string_is_there_after_closing(open_zoo: OpenZoo) -> None:
    with make(open_zoo, "target-llama") as one:
        whole = one.generate(LONG[:20], max_tokens=12)
        stream = one.stream(LONG[:20], max_tokens=12, stop=[whole.text[:12] + "@"])
        for _chunk in range(3):
            next(stream)
        stream.close()
    assert len(stream.result.tokens) >= 3  # the engine does not wait for who reads
    assert stream.result.text
    assert whole.text.startswith(stream.result.text)


@pytest.mark.parametrize("options", [{"resources": 3}, {"name": 3}, {1: 2}, {"zzz": 1}])
def test_options_that_no_drafter_has(open_zoo: OpenZoo, options: dict[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="has no option"):
        make(open_zoo, "target-llama", "ngram-simple", options={"ngram-simple": options})
    with pytest.raises(ConfigError, match="options must map"):
        pyspec.Speculation("ngram-simple", options={1: {}})  # type: ignore[dict-item]


def test_a_refused_head_leaves_nothing_behind_each_time(open_zoo: OpenZoo) -> None:
    from pyspec._native import handles

    def refused() -> int:
        with pytest.raises(UnsupportedError, match="does not hand out"):
            make(open_zoo, "target-swa", "draft-eagle3", "draft-eagle3")
        return len(handles._open)

    refused()  # the trial, which leaves a broken context
    assert refused() == refused()
