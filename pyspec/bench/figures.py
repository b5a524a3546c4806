"""Numbers from runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyspec.bench.comparing import Comparison, Pair
from pyspec.bench.running import Run
from pyspec.engine import Result
from pyspec.trace import Verdict

_STAGES = ("draft", "verify", "accept", "rollback")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of some numbers."""

    median: float
    low: float
    high: float
    n: int


def spread_of(numbers: Iterable[float | None]) -> Spread | None:
    """Return the spread of the numbers there are; None without any."""
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    low, median, high = (float(value) for value in np.percentile(known, (25, 50, 75)))
    return Spread(median, low, high, len(known))


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds that a user waits.

    Attributes:
        first_token: Median from a slot to the first token, of prompts that were read anew; None when none was.
        p50: Per token after the first round: half of them took at most this; a round's time is shared by its tokens.
        p95: The same for 95 of 100.
    """

    first_token: float | None
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a comparison comes to.

    Attributes:
        workload: Its name.
        setting: Label of the setting.
        ratio: Of the speeds, over the pairs.
        plain_speed: Tokens per second of plain decoding, median of the pairs.
        speed: The same of the setting.
        n_tokens: Tokens that the setting emitted in all pairs.
        n_rounds: Rounds of each answer, added up; with several slots they share their decodes.
        acceptance: Accepted share of the drafted tokens; None without drafts.
        acceptance_length: Tokens per round.
        shares: Part of the time in "draft", "verify", "accept", "rollback", and "python", which is all the rest.
        plain_shares: The same of plain decoding.
        lengths: Draft length to number of rounds, 0 for rounds without a draft.
        positions: Per draft position the drafts that were at least that long, and those accepted to there.
        latency: Of the setting.
        plain_latency: Of plain decoding.
        equal: Pairs with the same output, of all.
        verdicts: Of the outputs that were compared by logits: how many are the same, ties, different.
    """

    workload: str
    setting: str
    ratio: Spread | None
    plain_speed: float | None
    speed: float | None
    n_tokens: int
    n_rounds: int
    acceptance: float | None
    acceptance_length: float | None
    shares: dict[str, float]
    plain_shares: dict[str, float]
    lengths: dict[int, int]
    positions: list[tuple[int, int]]
    latency: Latency
    plain_latency: Latency
    equal: tuple[int, int]
    verdicts: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return dataclasses.asdict(self)


def figures_of(comparison: Comparison) -> Figures:
    """Return the figures of what was measured so far."""
    pairs = comparison.pairs
    runs = [run for pair in pairs for run in pair.other]
    results = [result for run in runs for result in run.results]
    n_rounds = sum(result.stats.n_rounds for result in results)
    n_drafted = sum(result.stats.n_drafted for result in results)
    n_emitted = sum(result.stats.n_emitted for result in results)
    positions = _positions(results)
    return Figures(
        workload=comparison.workload,
        setting=comparison.setting.label,
        ratio=spread_of(pair.ratio for pair in pairs),
        plain_speed=_median(pair.speeds[0] for pair in pairs),
        speed=_median(pair.speeds[1] for pair in pairs),
        n_tokens=n_emitted,
        n_rounds=n_rounds,
        acceptance=sum(result.stats.n_accepted for result in results) / n_drafted if n_drafted else None,
        acceptance_length=n_emitted / n_rounds if n_rounds else None,
        shares=_shares(runs),
        plain_shares=_shares([run for pair in pairs for run in pair.plain]),
        lengths=_lengths(positions, n_rounds),
        positions=positions,
        latency=_latency(pairs, comparison.inspected, plain=False),
        plain_latency=_latency(pairs, comparison.plain_inspected, plain=True),
        equal=(sum(pair.equal for pair in pairs), len(pairs)),
        verdicts={kind.value: sum(each.verdict is kind for each in comparison.verdicts) for kind in Verdict}
        if comparison.verdicts
        else {},
    )


def expected_ratio(figures: Figures, curve: Sequence[float]) -> float | None:
    """Return the speed-up that draft lengths, acceptance and costs come to.

    It is E / (mean of t(1 + length) + o), by the same of plain decoding, 1 / (1 + o): tokens per round by what a round
    costs, in decodes of one token. ``o`` is the time beside verifying, from the shares of the time.

    Args:
        figures: Of one slot.
        curve: t(1), t(2), ... relative to t(1); longer decodes are taken to grow on as the last ones do.

    Returns:
        None when there were no rounds.
    """
    if not figures.n_rounds or len(curve) < 2 or figures.acceptance_length is None:  # noqa: PLR2004 - two make a slope
        return None
    verify = sum(count * _cost(1 + length, curve) for length, count in figures.lengths.items()) / figures.n_rounds
    share, plain_share = figures.shares.get("verify", 0.0), figures.plain_shares.get("verify", 0.0)
    return figures.acceptance_length * share / verify / plain_share if share and plain_share else None


def _cost(n_rows: int, curve: Sequence[float]) -> float:
    slope = (curve[-1] - curve[0]) / (len(curve) - 1)
    return curve[n_rows - 1] if n_rows <= len(curve) else curve[-1] + (n_rows - len(curve)) * slope


def _median(numbers: Iterable[float]) -> float | None:
    spread = spread_of(numbers)
    return None if spread is None else spread.median


def _positions(results: Sequence[Result]) -> list[tuple[int, int]]:
    """Add up per draft position (drafted, accepted), over all drafters."""
    sums: list[list[int]] = []
    for stats in (stats for result in results for stats in result.drafters.values()):
        for i, (drafted, accepted) in enumerate(zip(stats.drafted_at, stats.accepted_at, strict=True)):
            if i == len(sums):
                sums.append([0, 0])
            sums[i][0] += drafted
            sums[i][1] += accepted
    return [(drafted, accepted) for drafted, accepted in sums]


def _lengths(positions: Sequence[tuple[int, int]], n_rounds: int) -> dict[int, int]:
    at_least = [n_rounds, *(drafted for drafted, _accepted in positions), 0]
    exactly = {length: at_least[length] - at_least[length + 1] for length in range(len(at_least) - 1)}
    return {length: count for length, count in exactly.items() if count}


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    """Return parts of the time; rounds that several requests share have the rounds' own time as the whole."""
    stages = dict.fromkeys(_STAGES, 0.0)
    whole = 0.0
    for run in runs:
        for result in run.results:
            for stage in _STAGES:
                stages[stage] += result.stats.seconds.get(stage, 0.0)
        alone = len(run.results) == 1
        rounds = sum(result.stats.seconds.get("total", 0.0) for result in run.results)
        whole += run.counted_seconds if alone else rounds
    if whole <= 0:
        return {}
    shares = {stage: seconds / whole for stage, seconds in stages.items()}
    return {**shares, "python": max(0.0, 1.0 - sum(shares.values()))}


def _latency(pairs: Sequence[Pair], inspected: Sequence[Run], *, plain: bool) -> Latency:
    runs = [*inspected, *(run for pair in pairs for run in (pair.plain if plain else pair.other))]
    first = [
        result.stats.prompt_seconds
        for run in runs
        for result in run.results
        if 2 * result.stats.n_reused < result.stats.n_prompt
    ]
    tokens = [seconds / n for run in inspected for n, seconds in run.rounds for _ in range(n)]
    p50, p95 = (float(value) for value in np.percentile(tokens, (50, 95))) if tokens else (None, None)
    return Latency(_median(first), p50, p95)
