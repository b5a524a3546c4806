"""What each round of a trace was expected to bring, and what it brought."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspec.trace.reader import Trace

_FEW = 5  # rounds whose average says little


@dataclass(frozen=True, slots=True)
class Totals:
    """A trace as a whole. The first round reads the prompt and does not count.

    Attributes:
        n_rounds: Rounds.
        n_drafted_rounds: Those with a draft.
        n_tokens: Tokens emitted.
        n_drafted: Tokens drafted.
        n_accepted: Those that stood.
        seconds: What the rounds took.
        plain_seconds: What one token takes without drafts: as the rounds without drafts show, less what drafters took
            that were asked in vain, on average because that is what all rounds are measured by; where they are few, as
            was expected. None when neither tells.
        n_plain_rounds: How many rounds without drafts tell it; 0 when they are too few.
        expected_tokens: What was expected, of the rounds that had expectations; likewise what follows.
        expected_seconds: See above.
        expected_plain_seconds: What these rounds would have taken without drafts, for a token of each sequence.
        n_expected_rounds: How many had expectations.
        explored_seconds: What the rounds took in which something was tried.
        n_tries: How many those were.
    """

    n_rounds: int
    n_drafted_rounds: int
    n_tokens: int
    n_drafted: int
    n_accepted: int
    seconds: float
    plain_seconds: float | None
    n_plain_rounds: int
    expected_tokens: float
    expected_seconds: float
    expected_plain_seconds: float
    n_expected_rounds: int
    explored_seconds: float
    n_tries: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second."""
        return self.n_tokens / self.seconds if self.seconds else 0.0

    @property
    def speedup(self) -> float | None:
        """How many times as fast as plain decoding it was, where that is known."""
        return None if self.plain_seconds is None else self.tokens_per_second * self.plain_seconds

    @property
    def predicted_speedup(self) -> float | None:
        """How many times as fast it was expected to be; None without expectations."""
        if not self.expected_seconds or not self.expected_plain_seconds:
            return None
        plain = self.n_expected_rounds / self.expected_plain_seconds
        return self.expected_tokens / self.expected_seconds / plain

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "rounds": self.n_rounds,
            "drafted_rounds": self.n_drafted_rounds,
            "tokens": self.n_tokens,
            "drafted": self.n_drafted,
            "accepted": self.n_accepted,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "plain_seconds": self.plain_seconds,
            "plain_rounds": self.n_plain_rounds,
            "speedup": self.speedup,
            "predicted_speedup": self.predicted_speedup,
            "expected_tokens": self.expected_tokens,
            "expected_seconds": self.expected_seconds,
            "explored_seconds": self.explored_seconds,
            "tries": self.n_tries,
        }


def totals(trace: Trace) -> Totals:
    """Add up the rounds of a trace."""
    rounds = trace.rounds[1:]
    drafted = [line for line in rounds if line["draft"]]
    asks = trace.run.get("spec", {}).get("types") not in ([], ["none"])
    plain = [_plain_seconds(line["seconds"], asks=asks) for line in rounds if not line["draft"]]
    expected = [line["expected"] for line in rounds if _expectation(line)]
    few = len(plain) < _FEW
    told = [each["plain_seconds"] for each in expected] if few else plain
    tried = [line for line in rounds if (each := _expectation(line)) and each.get("explores")]
    return Totals(
        n_rounds=len(rounds),
        n_drafted_rounds=len(drafted),
        n_tokens=sum(len(line["emitted"]) for line in rounds),
        n_drafted=sum(len(line["draft"]) for line in rounds),
        n_accepted=sum(line["accepted"] for line in rounds),
        seconds=sum(line["seconds"].get("total", 0.0) for line in rounds),
        plain_seconds=statistics.fmean(told) if told else None,
        n_plain_rounds=0 if few else len(plain),
        expected_tokens=sum(each["tokens"] for each in expected),
        expected_seconds=sum(each["seconds"] for each in expected),
        expected_plain_seconds=sum(each["plain_seconds"] for each in expected),
        n_expected_rounds=len(expected),
        explored_seconds=sum(line["seconds"].get("total", 0.0) for line in tried),
        n_tries=len(tried),
    )


def _plain_seconds(seconds: dict[str, float], *, asks: bool) -> float:
    """Return what a round without a draft would have taken if no drafter had been asked."""
    return seconds.get("total", 0.0) - (seconds.get("draft", 0.0) if asks else 0.0)


def round_lines(trace: Trace) -> Iterator[str]:
    """Yield a line for each round: what was expected, where something was, and what came."""
    for line in trace.rounds:
        came = f"{len(line['emitted'])} tokens in {_ms(line['seconds'].get('total', 0.0))}"
        if line["draft"]:
            came += f", {line['accepted']} of {len(line['draft'])} by {line['drafter']}"
        else:
            came += ", no draft"
        if line["rollback"] == "replay":
            came += ", restored a checkpoint"
        if line["i"] == 0:
            came += ", the prompt's end included"
        yield f"{line['i']:5d}  at {line['pos']}: {_said(line)}{came}"


def _said(line: dict[str, Any]) -> str:
    expected = _expectation(line)
    if not expected:
        return ""
    who = f"{expected['drafter']} {expected['length']}" if expected["drafter"] else "plain"
    tries = " (a try)" if expected.get("explores") else ""
    return f"expected {expected['tokens']:.2f} tokens in {_ms(expected['seconds'])} with {who}{tries}; came "


def _expectation(line: dict[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] | None = line.get("expected")
    return found


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def summary_lines(found: Totals) -> list[str]:
    """Return what the totals say."""
    share = f"{found.n_accepted / found.n_drafted:.0%}" if found.n_drafted else "none"
    rate = f"{found.seconds:.3f} s, {found.tokens_per_second:.1f} tokens/s"
    lines = [
        f"{found.n_tokens} tokens in {found.n_rounds} rounds after the first, {rate}",
        f"drafts in {found.n_drafted_rounds} rounds, {found.n_accepted} of {found.n_drafted} tokens accepted ({share})",
    ]
    if found.predicted_speedup is not None:
        lines.append(
            f"expected {found.expected_tokens:.1f} tokens in {found.expected_seconds:.3f} s, "
            f"{found.predicted_speedup:.2f} times plain decoding"
        )
    if found.speedup is not None:
        n_plain = found.n_plain_rounds
        source = f"in {n_plain} plain round{'s' * (n_plain > 1)}" if n_plain else "expected"
        took = f"{_ms(found.plain_seconds or 0.0)} a token, {source}"
        word = "measured" if n_plain else "about"
        lines.append(f"{word} {found.speedup:.2f} times plain decoding ({took})")
    elif found.n_drafted_rounds:
        lines.append("what plain decoding takes is not known: too few rounds were without a draft; pyspec bench tells")
    if found.n_tries:
        what = f"{found.n_tries} of the rounds tried something, such as another length"
        lines.append(f"{what}; that may lose 1% of the time, and of the first 30 rounds in advance")
    return lines
