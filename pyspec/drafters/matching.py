"""How long the match is that a lookup continues, and how sure that makes it."""

from __future__ import annotations

from pyspec.speculation.draft import TokenView

LONGEST = 32  # longer matches are all the same


def match_length(tokens: TokenView, pending: int, end: int) -> int:
    """Return how many tokens before ``end`` are the same as the newest ones, the pending token included.

    Args:
        tokens: The history.
        pending: The token after it.
        end: Where what is proposed begins in the history.

    Example:
        >>> match_length([7, 1, 2, 3, 9, 1, 2], 3, 4)
        3
    """
    if end < 1 or tokens[end - 1] != pending:
        return 0
    length, newest = 1, len(tokens)
    most = min(end, LONGEST)
    while length < most and tokens[end - 1 - length] == tokens[newest - length]:
        length += 1
    return length


def signals_of(length: int, n_tokens: int) -> tuple[float, ...]:
    """Return the signal of each token of a draft that continues a match: those before it belong to what matches.

    Example:
        >>> signals_of(3, 2)
        (3.0, 4.0)
    """
    return tuple(float(n) for n in range(length, length + n_tokens))
