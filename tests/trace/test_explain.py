"""What a trace says: what was expected of its rounds, and what came."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pyspec.trace import Trace
from pyspec.trace.explain import round_lines, summary_lines, totals

EXPECTED = {
    "drafter": "suffix",
    "length": 3,
    "tokens": 3.5,
    "seconds": 0.02,
    "plain_seconds": 0.01,
    "explores": False,
}
PLAIN = {"drafter": None, "length": 0, "tokens": 1.0, "seconds": 0.01, "plain_seconds": 0.01, "explores": False}


def line(i: int, n_drafted: int, n_accepted: int, total: float, expected: Any = None, **changes: Any) -> dict[str, Any]:
    return {
        "type": "round",
        "i": i,
        "pos": 10 + i,
        "drafter": "suffix" if n_drafted else None,
        "draft": [7] * n_drafted,
        "accepted": n_accepted,
        "emitted": [7] * (n_accepted + 1),
        "rollback": "none",
        "seconds": {"total": total},
        **({} if expected is None else {"expected": expected}),
        **changes,
    }


def trace(*lines: dict[str, Any]) -> Trace:
    return Trace({}, [line(0, 0, 0, 9.0), *lines], None)  # the first one reads the prompt


RUN = trace(
    line(1, 3, 2, 0.03, EXPECTED, rollback="replay"),
    line(2, 0, 0, 0.01, PLAIN),
    line(3, 3, 3, 0.02, {**EXPECTED, "explores": True}),
    line(4, 0, 0, 0.02, PLAIN),
)


def test_rounds_are_added_up_but_the_first() -> None:
    found = totals(RUN)
    assert (found.n_rounds, found.n_drafted_rounds, found.n_tokens) == (4, 2, 9)
    assert (found.n_drafted, found.n_accepted) == (6, 5)
    assert found.seconds == pytest.approx(0.08)
    assert found.tokens_per_second == pytest.approx(9 / 0.08)
    assert (found.plain_seconds, found.n_plain_rounds) == (0.01, 0)  # two rounds say little: what was expected counts
    assert found.speedup == pytest.approx(9 / 0.08 * 0.01)
    assert (found.expected_tokens, found.n_expected_rounds) == (9.0, 4)
    assert found.predicted_speedup == pytest.approx(9.0 / 0.06 * 0.01)
    assert found.explored_seconds == 0.02


@pytest.mark.parametrize(
    ("n_plain", "expects", "plain_seconds"), [(4, True, 0.01), (5, True, 0.03), (5, False, 0.03), (4, False, None)]
)
def test_many_plain_rounds_tell_what_plain_decoding_takes(
    n_plain: int, *, expects: bool, plain_seconds: float | None
) -> None:
    plain = [line(i, 0, 0, 0.03, PLAIN if expects else None) for i in range(1, 1 + n_plain)]
    found = totals(trace(*plain))
    assert found.plain_seconds == (None if plain_seconds is None else pytest.approx(plain_seconds))
    assert found.n_plain_rounds == (n_plain if plain_seconds == 0.03 else 0)


def test_each_round_has_a_line() -> None:
    plain, spoken = "1 tokens in {} ms, no draft", "expected 3.50 tokens in 20.0 ms with suffix 3"
    assert list(round_lines(RUN)) == [
        f"    0  at 10: {plain.format('9000.0')}, the prompt's end included",
        f"    1  at 11: {spoken}; came 3 tokens in 30.0 ms, 2 of 3 by suffix, restored a checkpoint",
        f"    2  at 12: expected 1.00 tokens in 10.0 ms with plain; came {plain.format('10.0')}",
        f"    3  at 13: {spoken} (a try); came 4 tokens in 20.0 ms, 3 of 3 by suffix",
        f"    4  at 14: expected 1.00 tokens in 10.0 ms with plain; came {plain.format('20.0')}",
    ]


def test_the_sum_is_said() -> None:
    assert summary_lines(totals(RUN)) == [
        "9 tokens in 4 rounds after the first, 0.080 s, 112.5 tokens/s",
        "drafts in 2 rounds, 5 of 6 tokens accepted (83%)",
        "expected 9.0 tokens in 0.060 s, 1.50 times plain decoding",
        "about 1.12 times plain decoding (10.0 ms a token, expected)",
        (
            "1 of the rounds tried something, such as another length; "
            "that may lose 1% of the time, and of the first 30 rounds in advance"
        ),
    ]


def test_one_slow_plain_round_is_no_slow_run() -> None:
    """It is in both: in what the rounds took, and in what plain decoding takes."""
    found = totals(trace(*(line(i, 0, 0, 0.5 if i == 3 else 0.01) for i in range(1, 9))))
    assert found.speedup == pytest.approx(1.0)


def test_a_trace_without_expectations_says_what_came() -> None:
    found = totals(trace(line(1, 3, 2, 0.02), *(line(i, 0, 0, 0.01) for i in range(2, 7))))
    assert found.speedup == pytest.approx(8 / 0.07 * 0.01)
    assert found.predicted_speedup is None
    said = " ".join(summary_lines(found))
    assert "expected" not in said
    assert "tried" not in said


def test_plain_decoding_that_was_never_seen_takes_what_was_expected() -> None:
    always = totals(trace(line(1, 3, 2, 0.02, EXPECTED)))
    assert always.plain_seconds == 0.01
    nowhere = totals(trace(line(1, 3, 2, 0.02)))
    assert (nowhere.plain_seconds, nowhere.speedup) == (None, None)
    assert summary_lines(nowhere)[2:] == [
        "what plain decoding takes is not known: too few rounds were without a draft; pyspec bench tells"
    ]


def test_drafting_in_vain_is_no_plain_decoding() -> None:
    """A draft model that was asked and gave nothing took its time all the same."""
    asked = {"seconds": {"draft": 0.02, "verify": 0.01, "total": 0.03}}
    run = trace(line(1, 3, 3, 0.04), *(line(i, 0, 0, 0.0, **asked) for i in range(2, 8)))
    found = totals(run)
    assert totals(dataclasses.replace(run, run={"spec": {"types": ["none"]}})).plain_seconds == pytest.approx(0.03)
    assert found.plain_seconds == pytest.approx(0.01)
    assert found.speedup == pytest.approx(10 / (0.04 + 6 * 0.03) * 0.01)


NOTHING = line(1, 0, 0, 0.0, {**PLAIN, "plain_seconds": 0})


@pytest.mark.parametrize("run", [Trace({}, [], None), trace(), trace(NOTHING)])
def test_a_trace_with_nothing_in_it(run: Trace) -> None:
    found = totals(run)
    assert found.tokens_per_second == 0.0
    assert found.predicted_speedup is None
    assert "accepted (none)" in summary_lines(found)[1]
    assert len(list(round_lines(run))) == len(run.rounds)


def test_all_of_it_is_there_for_json() -> None:
    found = totals(RUN)
    said = found.to_dict()
    assert said["speedup"] == found.speedup
    assert said["predicted_speedup"] == found.predicted_speedup
    assert {said["rounds"], said["tokens"]} == {4, 9}
    assert set(said.values()) >= {each for each in dataclasses.astuple(found) if isinstance(each, float)} - {
        found.expected_plain_seconds
    }
