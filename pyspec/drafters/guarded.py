"""How a chain calls a drafter that has not promised to leave alone what it is shown.

The history that drafters read is the engine's own, and so are the entries of a batch: whoever changed them would change
what the target says next. So they are shown read-only. That takes a microsecond or two per call, which lookups that are
asked in every round would feel; a class that has ``reads_only = True`` in its own body gets the lists themselves. The
promise is not inherited, because a subclass that overrides a method was not meant by it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pyspec.drafters.contract import failed
from pyspec.errors import PyspecError
from pyspec.speculation.draft import Draft, Drafter, DraftRequest, EvaluatedBatch, TokenView
from pyspec.speculation.view import ReadOnly


def guarded(drafter: Drafter) -> Drafter:
    """Return a drafter as a chain may call it."""
    return drafter if vars(type(drafter)).get("reads_only") is True else cast("Drafter", _Guarded(drafter))


class _Guarded:
    """Shows a drafter what it may read, and knows it by what it said of itself at first.

    What a drafter has beyond this is found as it is, so that it has here what it has there.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.n_max, self.needs = drafter.name, drafter.n_max, drafter.needs

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        self._drafter.begin(seq_id, ReadOnly(tokens))

    def observe(self, batch: EvaluatedBatch) -> None:
        tokens, positions, seq_ids = map(ReadOnly[Any], (batch.tokens, batch.positions, batch.seq_ids))
        self._drafter.observe(EvaluatedBatch(tokens, positions, seq_ids, batch.hidden))

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return self._drafter.draft([request._replace(tokens=ReadOnly(request.tokens)) for request in requests])

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._drafter, name)
        except (AttributeError, PyspecError):
            raise
        except Exception as error:
            raise failed(self.name, f"when asked for {name!r}", error) from error
        return functools.partial(_SHOWN[name], found) if name in _SHOWN else found


def _embed(embed: Callable[..., None], seq_id: int, rows: Mapping[int, npt.NDArray[np.float32]]) -> None:
    shown = {position: row.view() for position, row in rows.items()}
    for row in shown.values():
        row.flags.writeable = False
    embed(seq_id, MappingProxyType(shown))


def _end(end: Callable[..., None], seq_id: int, tokens: TokenView) -> None:
    end(seq_id, ReadOnly(tokens))


def _rewind(rewind: Callable[..., None], seq_id: int, tokens: TokenView, length: int, n_same: int) -> None:
    rewind(seq_id, ReadOnly(tokens), length, n_same)


_SHOWN: Mapping[str, Callable[..., None]] = {"embed": _embed, "end": _end, "rewind": _rewind}
"""Methods that a drafter need not have, and how they are called."""
