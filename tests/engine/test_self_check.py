"""The trial of drafters that are fed by the target, when an engine is made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import pyspec
from pyspec.drafters.draft_eagle3 import DraftEagle3
from pyspec.drafters.hidden import Features
from pyspec.engine.self_check import suspicion
from pyspec.speculation import DrafterStats

OpenZoo = Callable[[str], pyspec.Model]
RIGHT = [
    ("target-llama", "draft-eagle3"),
    ("target-llama", "draft-eagle3-d2t"),
    ("target-mtp", None),
    ("target-mtp-chain", None),
    ("target-gemma4", "draft-gemma4"),
    ("target-llama", "draft-dflash"),
    ("target-llama", "draft-dflash2"),
    ("target-llama", "draft-dspark"),
]


def engine(open_zoo: OpenZoo, target: str, draft: str | None, **settings: object) -> pyspec.Engine:
    speculation = pyspec.Speculation("draft-mtp" if draft is None else None, open_zoo(draft) if draft else None)
    for name, value in settings.items():
        object.__setattr__(speculation, name, value)
    config = pyspec.ContextConfig(n_ctx=256, n_ubatch=16, n_batch=64, n_threads=1)
    return pyspec.Engine(open_zoo(target), speculation=speculation, context=config)


@pytest.mark.parametrize(("target", "draft"), RIGHT)
def test_what_is_fed_rightly_raises_no_suspicion(
    open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture, target: str, draft: str | None
) -> None:
    with engine(open_zoo, target, draft) as made:
        assert "drafts badly" not in caplog.text
        assert made.call(lambda workshop: workshop.context.memory.length(0)) == 0
        result = made.generate([1, 60, 75, 112, 264], max_tokens=20)
        assert result.drafters[next(iter(result.drafters))].n_begin == 1


def test_layers_in_the_wrong_order_are_warned_of(open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture) -> None:
    with engine(open_zoo, "target-llama", "neg-eagle3-swapped"):
        assert caplog.text.count("draft-eagle3 drafts badly on target-llama.gguf") == 1
    with engine(open_zoo, "target-llama", "neg-eagle3-swapped", self_check=False):
        assert caplog.text.count("drafts badly") == 1


def test_rows_that_are_not_the_targets_are_warned_of(
    open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def same_everywhere(drafter: DraftEagle3, rows: Features) -> Features:
        return np.full((len(rows), drafter._context.model.info.n_embd), -100.0, np.float32)

    monkeypatch.setattr(DraftEagle3, "_prepared", same_everywhere)
    with engine(open_zoo, "target-llama", "draft-eagle3"):
        assert "draft-eagle3 drafts badly" in caplog.text


@pytest.mark.parametrize(
    ("drafts", "words"),
    [
        ([(3, 0)] * 24, "of 24 first tokens 0 were right"),
        ([(3, 2), *[(3, 0)] * 23], "of 24 first tokens 1 were right"),
        ([(3, 3)] * 8, "all of 24 tokens were right, which is too good"),
        ([(3, 3)] * 7, None),  # too few tokens to tell
        ([(3, 0)] * 10, None),  # too few drafts to tell
        ([(3, 2), (3, 0)] * 12, None),
        ([], None),
    ],
)
def test_what_is_suspicious(drafts: list[tuple[int, int]], words: str | None) -> None:
    stats = DrafterStats()
    for n_drafted, n_accepted in drafts:
        stats.count(n_drafted, n_accepted)
    found = suspicion(stats)
    assert (found is None) if words is None else (found is not None and words in found)
