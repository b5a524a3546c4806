"""What lookups say of their tokens."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.drafters import Drafter, DraftRequest, create

TEXT = [*range(100, 140), 7, *range(100, 108)]  # the last eight tokens stand at the beginning
OPTIONS: dict[str, dict[str, Any]] = {
    "suffix": {"factor": 1.0},
    "ngram-simple": {"size_n": 3, "size_m": 6},
    "ngram-map-k": {"size_n": 3, "size_m": 6},
    "ngram-map-k4v": {"size_n": 3, "size_m": 6},
    "ngram-mod": {"n_match": 3, "n_max": 6, "n_min": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_token_continues_a_match_that_those_before_it_belong_to(name: str) -> None:
    drafter: Drafter = create(name, **OPTIONS[name])
    drafter.begin(0, TEXT[:-1])
    request = DraftRequest(0, TEXT[:-1], TEXT[-1], len(TEXT) - 1, 6, wants_signals=True)
    (draft,) = drafter.draft([request])
    assert list(draft.tokens) == [*range(108, 114)]
    first = 3.0 if name == "ngram-mod" else 8.0  # it knows of no more than it looked up
    assert list(draft.signals or ()) == [first + i for i in range(6)]
