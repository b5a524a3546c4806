"""Drafters that are fed by the target read the right rows: with wrong ones their drafts are worse.

Output would be right either way, so nothing else would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import pyspec
from pyspec.drafters.draft_dflash import DraftDFlash, DraftDSpark
from pyspec.drafters.draft_eagle3 import DraftEagle3
from pyspec.drafters.draft_mtp import DraftMtp
from tests.pairs import LONG, SHORT, OpenZoo, Pair, sizes
from tests.zoo import NEGATIVES, make_zoo

CLASSES: dict[str, Any] = {cls.name: cls for cls in (DraftEagle3, DraftMtp, DraftDFlash, DraftDSpark)}
PROMPTS = (SHORT, LONG, [1, 99, 98, 97], [1, 200, 150, 77, 301, 222])
N_TOKENS = 56
MOST_SHARE = 0.85  # of the acceptance with the right features, with wrong ones


class Case(NamedTuple):
    """A pair, about what it reaches, and what reads wrong features in its place.

    Attributes:
        pair: Target and draft model.
        least: A little less than its acceptance, a property of these models.
        wrong: Draft models, or a target for its own next-n layers.
    """

    pair: Pair
    least: float
    wrong: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.pair)


CASES = [
    Case(Pair("target-llama", "draft-eagle3", "draft-eagle3-shared"), 0.40),
    Case(Pair("target-llama", "draft-eagle3", "draft-eagle3-d2t"), 0.36),
    Case(Pair("target-llama", "draft-eagle3", "draft-eagle3"), 0.40, ("neg-eagle3-permfc", "neg-eagle3-swapped")),
    Case(Pair("target-mtp", "draft-eagle3", "draft-eagle3"), 0.52, ("neg-eagle3-zerofc", "neg-eagle3-swapped")),
    Case(Pair("target-mtp", "draft-eagle3", "draft-eagle3-nextn"), 0.50, ("neg-eagle3-nextn-swapped",)),
    Case(Pair("target-mtp", "draft-mtp"), 0.48, ("neg-mtp-permh",)),
    Case(Pair("target-mtp", "draft-mtp", "draft-mtp"), 0.48),
    Case(Pair("target-mtp-chain", "draft-mtp"), 0.60, ("neg-mtp-chain-swapped",)),
    Case(Pair("target-gemma4", "draft-mtp", "draft-gemma4"), 0.47, ("neg-gemma4-permh",)),
    Case(Pair("target-llama", "draft-dflash", "draft-dflash"), 0.30, ("neg-dflash-permfc", "neg-dflash-swapped")),
    Case(Pair("target-llama", "draft-dflash", "draft-dflash2"), 0.37, ("neg-dflash2-permfc", "neg-dflash2-swapped")),
    Case(Pair("target-lfm2", "draft-dflash", "draft-dflash2"), 0.36, ("neg-dflash2-swapped",)),
    Case(Pair("target-llama", "draft-dspark", "draft-dspark"), 0.41, ("neg-dspark-permfc", "neg-dspark-swapped")),
    Case(Pair("target-llama", "draft-dspark", "draft-dspark-noanchor"), 0.40, ("neg-dspark-noanchor-swapped",)),
    Case(Pair("target-llama", "draft-dspark", "draft-dspark-noconf"), 0.41, ("neg-dspark-noconf-swapped",)),
    Case(Pair("target-moe", "draft-dspark", "draft-dspark"), 0.38, ("neg-dspark-swapped",)),
]


@pytest.fixture(scope="module")
def open_any(open_zoo: OpenZoo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenZoo]:
    """Return a model by name, negatives included."""
    folder = tmp_path_factory.mktemp("negatives")
    make_zoo(folder, NEGATIVES)
    wrong = {name: pyspec.Model(folder / f"{name}.gguf") for name in NEGATIVES}
    yield lambda name: wrong[name] if name in wrong else open_zoo(name)
    for model in wrong.values():
        model.close()


def acceptance(pair: Pair, open_any: OpenZoo) -> float:
    """Return the accepted share of all that is drafted for the prompts."""
    with pyspec.Engine(open_any(pair.target), speculation=pair.speculation(open_any), context=sizes()) as engine:
        stats = [engine.generate(prompt, max_tokens=N_TOKENS).stats for prompt in PROMPTS]
    return sum(each.n_accepted for each in stats) / sum(each.n_drafted for each in stats)


def shifted(features: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Give each position the row of the one before it."""
    last: list[Any] = []

    def wrong(drafter: Any, hidden: Any) -> Any:
        rows = features(drafter, hidden)
        moved = np.concatenate([last.pop() if last else rows[:1], rows[:-1]])
        last.append(rows[-1:])
        return moved

    return wrong


@pytest.mark.parametrize("case", CASES, ids=str)
def test_with_wrong_features_fewer_tokens_stand(case: Case, open_any: OpenZoo, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = case.pair
    right = acceptance(pair, open_any)
    assert right > case.least
    for name in case.wrong:
        other = pair._replace(draft_model=name) if pair.draft_model else pair._replace(target=name)
        assert acceptance(other, open_any) < MOST_SHARE * right, name
    cls = CLASSES[pair.drafter]
    monkeypatch.setattr(cls, "_features", shifted(cls._features))
    assert acceptance(pair, open_any) < MOST_SHARE * right, "rows shifted by one"


def test_every_wrong_model_of_the_zoo_is_tried() -> None:
    assert {name for case in CASES for name in case.wrong} == set(NEGATIVES)
