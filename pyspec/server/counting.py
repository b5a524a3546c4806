"""Usage, speculation and timings of generations that have ended."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from pyspec.engine import Result
from pyspec.server.answers import DrafterCounts, SpeculationCounts, Usage
from pyspec.server.llama_answers import Timings
from pyspec.speculation import DrafterStats


def usage(results: Sequence[Result], n: int = 1) -> Usage:
    """Return what was read and generated; each prompt has ``n`` results and counts once."""
    n_prompt = sum(len(result.prompt_tokens) for result in results[::n])
    n_emitted = sum(len(result.tokens) for result in results)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_emitted,
        "total_tokens": n_prompt + n_emitted,
        "prompt_tokens_details": {"cached_tokens": sum(result.stats.n_reused for result in results[::n])},
    }


def speculation(results: Sequence[Result]) -> SpeculationCounts:
    """Return how well drafts did in all of the results together."""
    lengths: Counter[int] = Counter()
    drafters: dict[str, list[DrafterStats]] = {}
    for result in results:
        lengths.update(result.stats.lengths)
        for name, stats in result.drafters.items():
            drafters.setdefault(name, []).append(stats)
    n_rounds = sum(result.stats.n_rounds for result in results)
    n_drafted = sum(result.stats.n_drafted for result in results)
    n_accepted = sum(result.stats.n_accepted for result in results)
    return {
        "valid": all(result.valid for result in results),
        "n_rounds": n_rounds,
        "n_drafted": n_drafted,
        "n_accepted": n_accepted,
        "n_forced": sum(result.stats.n_forced for result in results),
        "acceptance": _ratio(n_accepted, n_drafted),
        "acceptance_length": _ratio(sum(result.stats.n_emitted for result in results), n_rounds),
        "lengths": {str(length): count for length, count in sorted(lengths.items())},
        "drafters": {name: _drafter(stats) for name, stats in drafters.items()},
    }


def _drafter(parts: Sequence[DrafterStats]) -> DrafterCounts:
    n_drafts = sum(stats.n_drafts for stats in parts)
    n_drafted = sum(stats.n_drafted for stats in parts)
    n_accepted = sum(stats.n_accepted for stats in parts)
    accepted_at = [sum(at) for at in itertools.zip_longest(*(stats.accepted_at for stats in parts), fillvalue=0)]
    return {
        "n_drafts": n_drafts,
        "n_drafted": n_drafted,
        "n_accepted": n_accepted,
        "acceptance": _ratio(n_accepted, n_drafted),
        "acceptance_length": 1.0 + _ratio(n_accepted, n_drafts),
        "histogram": histogram(n_drafts, accepted_at),
    }


def histogram(n_drafts: int, accepted_at: Sequence[int]) -> list[int]:
    """Return how many drafts had exactly i accepted tokens, from 0 to the longest draft.

    Example:
        Of five drafts three had a first token that stands, and one of these a second one:

        >>> histogram(5, [3, 1])
        [2, 2, 1]
    """
    at_least = [n_drafts, *accepted_at, 0]
    return [more - fewer for more, fewer in itertools.pairwise(at_least)]


def timings(result: Result) -> Timings:
    """Return llama.cpp's account of a generation."""
    stats = result.stats
    n_read = max(len(result.prompt_tokens) - stats.n_reused, 0)
    n_emitted = len(result.tokens)
    n_timed = n_emitted - stats.n_first  # the first round's time is the prompt's
    prompt_ms, emitted_ms = 1000.0 * stats.prompt_seconds, 1000.0 * stats.seconds.get("total", 0.0)
    if n_emitted and not n_timed:  # there was no other round, so that the two share its time
        n_timed, emitted_ms = n_emitted, prompt_ms
    return {
        "cache_n": stats.n_reused,
        "prompt_n": n_read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, n_read),
        "prompt_per_second": _ratio(1000.0 * n_read, prompt_ms),
        "predicted_n": n_emitted,
        "predicted_ms": emitted_ms,
        "predicted_per_token_ms": _ratio(emitted_ms, n_timed),
        "predicted_per_second": _ratio(1000.0 * n_timed, emitted_ms),
        "draft_n": stats.n_drafted,
        "draft_n_accepted": stats.n_accepted,
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
