"""What ``/metrics`` tells: the engine's counters, and how long clients wait.

Names behind the prefix are vLLM's, as far as it has them; llama.cpp's names for speculation are the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspec.engine import EngineStatus, Result
from pyspec.speculation import DrafterStats, Finish

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "pyspec:"
_REASONS = {
    Finish.EOG: "stop",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.CONTEXT: "length",
    Finish.ERROR: "error",
}
_ABORTED = "abort"
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)

_TOTALS = {  # name: field of EngineStatus, help
    "prompt_tokens": ("n_prompt_tokens", "Tokens of prompts, those found in memory included."),
    "prompt_tokens_reused": ("n_reused_tokens", "Tokens of prompts that were found in memory."),
    "generation_tokens": ("n_emitted_tokens", "Tokens generated."),
    "grammar_tokens": ("n_forced_tokens", "Those of them that a grammar left no choice about, and so proposed itself."),
    "engine_requests": ("n_requests", "Requests that the engine has taken in."),
    "rounds": ("n_rounds", "Rounds, each counted once per sequence."),
}
_GAUGES = {
    "num_requests_running": ("n_running", "Requests in a slot."),
    "num_requests_waiting": ("n_waiting", "Requests in the queue."),
    "num_slots": ("n_slots", "Slots."),
}
_DRAFTING = {  # name: field of DrafterStats, help
    "num_drafts": ("n_drafts", "Drafts that were verified."),
    "num_draft_tokens": ("n_drafted", "Tokens in these drafts."),
    "num_accepted_tokens": ("n_accepted", "Tokens of drafts that stand."),
}


class StatusSource(Protocol):
    """What metrics ask of an engine."""

    def status(self) -> EngineStatus:
        """Return what is going on."""
        ...


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
        engine: Whose counters are read whenever somebody asks.
    """

    def __init__(self, engine: StatusSource) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine))
        self._requests = Counter(
            f"{PREFIX}http_requests", "Requests answered.", ("endpoint", "status"), registry=self._registry
        )
        self._finished = Counter(
            f"{PREFIX}request_success", "Generations ended.", ("finished_reason",), registry=self._registry
        )
        self.queued = self._histogram("request_queue_time", "From the submission to a slot.", _LONG)
        self.first_token = self._histogram("time_to_first_token", "From the submission to the first token.", _LONG)
        self.between_tokens = self._histogram("inter_token_latency", "From a token to the next.", _SHORT)
        self.whole = self._histogram("e2e_request_latency", "From the submission to the end.", _LONG)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}{name}_seconds", text, buckets=buckets, registry=self._registry)

    def count_request(self, endpoint: str, status: int) -> None:
        """Count an answer."""
        self._requests.labels(endpoint, str(status)).inc()

    def count_end(self, reason: str) -> None:
        """Count the end of a generation."""
        self._finished.labels(reason).inc()

    def meter(self) -> Meter:
        """Return a stop-watch for a generation that begins now."""
        return Meter(self)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class Meter:
    """Times one generation."""

    __slots__ = ("_began", "_ended", "_last", "_metrics")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = time.perf_counter()
        self._last: float | None = None
        self._ended = False

    def count(self, n_tokens: int) -> None:
        """Take in the tokens of a round."""
        if not n_tokens:
            return
        now = time.perf_counter()
        if self._last is None:
            self._metrics.first_token.observe(now - self._began)
            n_tokens -= 1  # the others of the first round came with it
        gap = (now - (self._last or now)) / max(n_tokens, 1)
        for _ in range(n_tokens):
            self._metrics.between_tokens.observe(gap)
        self._last = now

    def end(self, result: Result) -> None:
        """Take in the end; the first one counts."""
        if self._ended:
            return
        self._ended = True
        finish = result.finish
        if result.tokens or result.stats.queue_seconds > 0.0:  # else it never had a slot
            self._metrics.queued.observe(result.stats.queue_seconds)
        self._metrics.whole.observe(time.perf_counter() - self._began)
        self._metrics.count_end(_ABORTED if finish is None else _REASONS.get(finish, _ABORTED))


class _EngineCollector(Collector):
    """Reads the engine's counters when they are asked for, so that they are counted once."""

    def __init__(self, engine: StatusSource) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Return the engine's metrics."""
        status = self._engine.status()
        for name, (field, text) in _TOTALS.items():
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value=getattr(status, field))
        for name, (field, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}{name}", text, value=getattr(status, field))
        for name, (field, text) in _DRAFTING.items():
            family = CounterMetricFamily(f"{PREFIX}spec_decode_{name}", text, labels=("drafter",))
            for drafter, stats in status.drafters.items():
                family.add_metric((drafter,), getattr(stats, field))
            yield family
        yield _per_position("num_draft_tokens", "Drafts at least so long.", status.drafters, "drafted_at")
        yield _per_position("num_accepted_tokens", "Accepted tokens.", status.drafters, "accepted_at")


def _per_position(name: str, text: str, drafters: Mapping[str, DrafterStats], field: str) -> CounterMetricFamily:
    labels = ("drafter", "position")
    family = CounterMetricFamily(f"{PREFIX}spec_decode_{name}_per_pos", f"{text[:-1]}, per position.", labels=labels)
    for drafter, stats in drafters.items():
        for position, count in enumerate(getattr(stats, field)):
            family.add_metric((drafter, str(position)), count)
    return family
