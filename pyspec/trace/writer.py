"""Writing traces. The format is described in docs/reference/trace.md."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from pyspec.engine.result import Result, RunInfo
from pyspec.errors import TraceError
from pyspec.files import refuse_model, require_path
from pyspec.llama.devices import library_info
from pyspec.speculation.draft import Candidates
from pyspec.speculation.round import Outcome

VERSION = 1


class TraceWriter:
    """An ``Observer`` that writes each round as it happens, so that a trace survives a crash.

    It may follow several runs, one after the other, as ``generate_many`` shows them.

    Args:
        path: The file; it is replaced.

    Raises:
        ConfigError: ``path`` is no path.
        TraceError: The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = require_path("path", path)
        try:
            refuse_model(file)
            self._file = file.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            msg = f"The trace {file} cannot be written: {error.strerror}."
            raise TraceError(msg) from None
        self._n_rounds = 0
        self._follows = False  # a run that has not ended

    def begin(self, info: RunInfo) -> None:
        """Write the run line.

        Raises:
            TraceError: The run before has not ended, or the line cannot be written.
        """
        if self._follows:
            msg = f"The trace {self._file.name} is of a run that has not ended; use a writer for each of them."
            raise TraceError(msg)
        self._n_rounds, self._follows = 0, True
        self._write(
            {
                "type": "run",
                "version": VERSION,
                "model": info.model,
                "draft_model": info.draft_model,
                "spec": info.speculation,
                "sampling": {**info.sampling, "logit_bias": _named_infinities(info.sampling.get("logit_bias", {}))},
                "prompt_tokens": info.prompt_tokens,
                "library": library_info(),
            }
        )

    def round(self, outcome: Outcome) -> None:
        """Write a round line."""
        self._write(round_line(self._n_rounds, outcome))
        self._n_rounds += 1

    def end(self, result: Result) -> None:
        """Write the end line."""
        self._follows = False
        stats = {**result.stats.to_dict(), "drafters": {name: s.to_dict() for name, s in result.drafters.items()}}
        finish = result.finish.value if result.finish else "error"
        self._write({"type": "end", "seq": 0, "finish": finish, "stats": stats})

    def close(self) -> None:
        """Close the file. May be called again.

        Raises:
            TraceError: The rest could not be written.
        """
        try:
            self._file.close()
        except OSError as error:
            msg = f"The trace {self._file.name} cannot be written: {error.strerror}."
            raise TraceError(msg) from None

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            msg = f"The trace {self._file.name} cannot be written: {error.strerror}."
            raise TraceError(msg) from None
        except ValueError:  # what Python's files raise
            msg = f"The trace {self._file.name} is closed."
            raise TraceError(msg) from None

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _named_infinities(biases: dict[int, float]) -> dict[int, float | str]:
    """JSON has no infinities; a banned token has the bias "-inf"."""
    return {token: bias if math.isfinite(bias) else str(bias) for token, bias in biases.items()}


def _candidates(probs: Sequence[Candidates] | None) -> list[list[list[float]]] | None:
    """Return per draft token the pairs of token and probability that it was drawn from."""
    if probs is None:
        return None
    return [[list(pair) for pair in zip(each.tokens.tolist(), each.probs.tolist(), strict=True)] for each in probs]


def round_line(i: int, outcome: Outcome) -> dict[str, Any]:
    """Return the trace line of a round."""
    proposal = outcome.proposal
    line = {
        "type": "round",
        "i": i,
        "seq": outcome.seq_id,
        "pos": outcome.position,
        "pending": outcome.pending,
        "drafter": proposal.drafter,
        "draft": list(proposal.draft.tokens),
        "draft_probs": _candidates(proposal.draft.probs),
        "accepted": outcome.n_accepted,
        "emitted": list(outcome.emitted),
        "rule": outcome.rule,
        "rollback": outcome.rollback,
        "checkpoint_bytes": outcome.n_checkpoint_bytes,
        "seconds": {stage: round(seconds, 9) for stage, seconds in outcome.seconds.items()},
    }
    if outcome.expected is not None:
        expected = outcome.expected._asdict()
        line["expected"] = {
            key: round(value, 9) if isinstance(value, float) else value for key, value in expected.items()
        }
    return line
