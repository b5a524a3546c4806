"""copy-edit: a drafter for answers that repeat the prompt with small changes, such as corrected text or edited code.

A finger rests on the place in the prompt that the answer has reached, and what follows there is proposed. Where the
answer departs from the prompt, nothing is proposed until its last ``size_n`` tokens stand in the prompt again; then
the finger moves on to the next such place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from pyspec.drafters import Draft, DraftRequest, ModelFreeDrafter
from pyspec.errors import ConfigError


@dataclass(slots=True)
class _Copy:
    """The prompt of one sequence.

    Attributes:
        prompt: Its tokens.
        places: Every run of ``size_n`` tokens in it, to the places that follow such a run, in their order.
        length: Longest draft for now.
        finger: The place that the answer has reached.
    """

    prompt: tuple[int, ...]
    places: dict[tuple[int, ...], list[int]]
    length: int = 1
    finger: int = 0


class CopyEdit(ModelFreeDrafter):
    """Copies the prompt from where the answer has reached.

    Args:
        size_n: How many tokens of the answer must stand in the prompt before more are proposed.
        n_max: Longest draft.

    Raises:
        ConfigError: An option is not an integer of at least 1.
    """

    name = "copy-edit"

    def __init__(self, *, size_n: int = 3, n_max: int = 16) -> None:
        for option, value in {"size_n": size_n, "n_max": n_max}.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{option} must be an integer of at least 1, not {value!r}.")
        self.size_n = size_n
        self.n_max = n_max
        self._copies: dict[int, _Copy] = {}

    def begin(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Forget the former request and index the new prompt."""
        places: dict[tuple[int, ...], list[int]] = {}
        for place in range(self.size_n, len(tokens)):
            places.setdefault(tuple(tokens[place - self.size_n : place]), []).append(place)
        self._copies[seq_id] = _Copy(tuple(tokens), places)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Propose what follows in each prompt."""
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        copy = self._copies[request.seq_id]
        before = request.tokens[len(request.tokens) + 1 - self.size_n :]
        places = copy.places.get((*before, request.pending))
        if places is None:
            return Draft()
        copy.finger = places[bisect_left(places, copy.finger) % len(places)]  # behind the last one: the first
        return Draft(copy.prompt[copy.finger : copy.finger + min(copy.length, request.budget)])

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """Move the finger on; after a draft that stood dare a longer one, after a wrong one a single token."""
        if own:
            copy = self._copies[seq_id]
            copy.finger += n_accepted
            copy.length = min(2 * n_accepted + 1, self.n_max)
