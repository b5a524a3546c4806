from __future__ import annotations

import dataclasses

import pytest

from pyspec.bench import Bench, Figures, Plan, Workload, figures_of, parse_setting, spread_of
from pyspec.bench.figures import expected_ratio
from tests.bench.fake_lab import N_PROMPT, PROMPT_SECONDS, FakeLab, Script

SUFFIX = parse_setting("suffix")


def figures(script: Script, *, n_pairs: int = 1, n_slots: int = 1) -> Figures:
    lab = FakeLab({"suffix": script})
    plan = Plan(n_tokens=9, n_pairs=n_pairs, n_slots=n_slots)
    return figures_of(Bench(lab, [Workload("one", ("a",))], plan).run([SUFFIX])[0])


def test_a_spread() -> None:
    spread = spread_of([4.0, None, 1.0, 2.0, 3.0, 5.0])
    assert spread is not None
    assert (spread.median, spread.low, spread.high, spread.n) == (3.0, 2.0, 4.0, 5)
    assert spread_of([None]) is None


def test_drafts_are_counted_by_length_and_position() -> None:
    found = figures(Script(answer=lambda _prompt: list(range(9)), n_drafted=4, n_accepted=2))
    assert (found.n_rounds, found.n_tokens) == (3, 9)  # 3 tokens a round
    assert (found.acceptance, found.acceptance_length) == (0.5, 3.0)
    assert found.lengths == {4: 3}
    assert found.positions == [(3, 3), (3, 3), (3, 0), (3, 0)]


def test_plain_decoding_has_no_drafts() -> None:
    found = figures(Script(answer=lambda _prompt: list(range(9))))
    assert (found.acceptance, found.acceptance_length, found.lengths) == (None, 1.0, {0: 9})


def test_python_is_all_that_no_stage_has() -> None:
    shares = figures(Script()).shares
    assert (shares["draft"], shares["verify"], shares["python"]) == pytest.approx((0.25, 0.5, 0.25))
    together = figures(Script(), n_slots=2).shares  # of the rounds' own time, nine tenths of which are the stages'
    assert together["python"] == pytest.approx(1 - 0.75 / 0.9)


def test_latency() -> None:
    latency = figures(Script()).latency
    assert (latency.first_token, latency.p50, latency.p95) == (PROMPT_SECONDS, 1.0, 1.0)
    assert N_PROMPT > 0


def test_the_expected_ratio_is_tokens_by_cost() -> None:
    found = figures(Script(answer=lambda _prompt: list(range(9)), n_drafted=2, n_accepted=2))
    # rounds of 3 rows cost 1.5 decodes; verifying is half of the time, for plain decoding, too
    assert expected_ratio(found, [1.0, 1.25, 1.5]) == pytest.approx(2.0)
    slower = dataclasses.replace(found, shares={"verify": 0.25})
    assert expected_ratio(slower, [1.0, 1.25, 1.5]) == pytest.approx(1.0)
    assert expected_ratio(found, [1.0, 1.25]) == pytest.approx(2.0)  # 3 rows lie on the line of the first two
    assert expected_ratio(found, []) is None
    assert expected_ratio(figures(Script(), n_pairs=0), [1.0, 1.5]) is None
