"""Engines that are measured: answers that share the slots do not end together."""

from __future__ import annotations

from collections.abc import Callable

import pyspec
from pyspec import ContextConfig
from pyspec.bench.engines import EngineLab
from pyspec.bench.setting import PLAIN

OpenZoo = Callable[[str], pyspec.Model]


def lengths(open_zoo: OpenZoo, n_prompts: int, n_tokens: int) -> list[int]:
    lab = EngineLab(open_zoo("target-llama"), None, ContextConfig(), n_slots=2, longest=16, n_tokens=n_tokens)
    runner = lab.open(PLAIN)
    try:
        run = runner.run([f"{i}. Hi" for i in range(n_prompts)], n_tokens)
    finally:
        runner.close()
    assert len(run.results) == n_prompts
    return [len(result.tokens) for result in run.results]


def test_answers_end_at_different_lengths(open_zoo: OpenZoo) -> None:
    assert lengths(open_zoo, 7, 8) == [4, 6, 8, 4, 6, 8, 4]


def test_every_answer_may_say_something(open_zoo: OpenZoo) -> None:
    assert min(lengths(open_zoo, 3, 2)) >= 1


def test_a_prompt_that_is_alone_may_say_all(open_zoo: OpenZoo) -> None:
    assert lengths(open_zoo, 1, 8) == [8]
