"""How long the match is that a lookup continues."""

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
