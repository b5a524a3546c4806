"""Same, tie or different."""

from __future__ import annotations

import pytest

from pyspec.engine.result import Result
from pyspec.errors import ConfigError
from pyspec.trace import Verdict, compare

Top = tuple[tuple[int, float], ...]


def result(tokens: list[int], *, last: Top = ((0, 0.0), (1, -9.0)), prompt: tuple[int, ...] = (1, 2)) -> Result:
    return Result(tokens=tokens, prompt_tokens=list(prompt), top=[((9, 1.0), (8, 0.0))] * (len(tokens) - 1) + [last])


def test_equal_runs_are_the_same() -> None:
    comparison = compare(result([3, 4, 5]), result([3, 4, 5]))
    assert comparison.verdict is Verdict.SAME
    assert str(comparison) == "yes"


def test_level_candidates_are_a_tie() -> None:
    plain = result([3, 4, 5], last=((5, 2.00), (6, 1.99)))
    other = result([3, 4, 6], last=((6, 2.01), (5, 2.00)))
    comparison = compare(plain, other)
    assert comparison.verdict is Verdict.TIE
    assert (comparison.index, comparison.plain_token, comparison.other_token) == (2, 5, 6)
    assert comparison.plain_gap == pytest.approx(0.01)
    assert "a tie at token 2" in str(comparison)


@pytest.mark.parametrize(
    "last",
    [((6, 3.0), (5, 2.0)), ((6, 2.0), (7, 1.9))],
    ids=["a clear preference", "the plain token is not even near"],
)
def test_everything_else_is_a_fault(last: Top) -> None:
    plain = result([3, 4, 5], last=((5, 2.00), (6, 1.99)))
    comparison = compare(plain, result([3, 4, 6], last=last))
    assert comparison.verdict is Verdict.DIFFERENT
    assert str(comparison).startswith("NO, token 2")


def test_both_runs_must_be_level() -> None:
    plain = result([3, 4, 5], last=((5, 9.0), (6, 1.0)))
    other = result([3, 4, 6], last=((6, 2.01), (5, 2.00)))
    assert compare(plain, other).verdict is Verdict.DIFFERENT


def test_a_run_that_ends_earlier_differs() -> None:
    comparison = compare(result([3, 4]), result([3, 4, 5]))
    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.index == 2
    assert "ends" in str(comparison)


def test_epsilon_is_the_callers() -> None:
    plain = result([5], last=((5, 2.0), (6, 1.0)))
    other = result([6], last=((6, 2.0), (5, 1.0)))
    assert compare(plain, other).verdict is Verdict.DIFFERENT
    assert compare(plain, other, epsilon=1.5).verdict is Verdict.TIE


def test_other_prompts_and_missing_candidates_are_refused() -> None:
    with pytest.raises(ConfigError, match="different prompts"):
        compare(result([1]), result([1], prompt=(7,)))
    bare = Result(tokens=[1], prompt_tokens=[1, 2])
    with pytest.raises(ConfigError, match="n_top"):
        compare(bare, result([2]))
