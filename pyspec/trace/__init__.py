"""Traces, what every round did, one JSON object a line; and the comparison of two runs."""

from __future__ import annotations

from pyspec.trace.compare import TIE_EPSILON, Comparison, Verdict, compare
from pyspec.trace.reader import Trace, read_trace, read_traces
from pyspec.trace.writer import TraceWriter

__all__ = [
    "TIE_EPSILON",
    "Comparison",
    "Trace",
    "TraceWriter",
    "Verdict",
    "compare",
    "read_trace",
    "read_traces",
]
