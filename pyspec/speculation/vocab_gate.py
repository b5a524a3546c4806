"""Whether a draft model speaks the target's vocabulary.

The rule is llama.cpp's (``common_speculative_are_compatible``): the same type, the same BOS and EOS where they
are added, sizes that differ by at most 128, and equal text for every id from 5 to the smaller size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MAX_SIZE_DIFFERENCE = 128
FIRST_CHECKED_TOKEN = 5


class GatedVocab(Protocol):
    """What the gate reads of a vocabulary."""

    @property
    def type(self) -> object:
        """Tokenizer family."""
        ...

    @property
    def n_tokens(self) -> int:
        """Number of ids."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether text normally starts with ``bos``."""
        ...

    @property
    def add_eos(self) -> bool:
        """Whether text normally ends with ``eos``."""
        ...

    @property
    def bos(self) -> int | None:
        """First token of a text."""
        ...

    @property
    def eos(self) -> int | None:
        """Last token of a text."""
        ...

    def texts(self, first: int, end: int) -> Sequence[bytes]:
        """Return the raw entries of ids first to end - 1."""
        ...


def vocab_difference(target: GatedVocab, draft: GatedVocab) -> str | None:
    """Return the first difference that forbids drafting, or None when the vocabularies fit.

    Example:
        >>> vocab_difference(vocab, vocab) is None  # doctest: +SKIP
        True
    """
    if target.type != draft.type:
        return f"the vocabulary types differ: {_name(target.type)} and {_name(draft.type)}"
    for what, adds, ids in (
        ("BOS", (target.add_bos, draft.add_bos), (target.bos, draft.bos)),
        ("EOS", (target.add_eos, draft.add_eos), (target.eos, draft.eos)),
    ):
        if adds[0] != adds[1]:
            return f"text starts or ends with {what} in one of them only: target {adds[0]}, draft model {adds[1]}"
        if adds[0] and ids[0] != ids[1]:
            return f"{what} is token {ids[0]} in the target and token {ids[1]} in the draft model"
    return _size_difference(target, draft) or _text_difference(target, draft)


def _name(kind: object) -> str:
    return str(getattr(kind, "name", kind))


def _size_difference(target: GatedVocab, draft: GatedVocab) -> str | None:
    if abs(target.n_tokens - draft.n_tokens) <= MAX_SIZE_DIFFERENCE:
        return None
    return (
        f"the target has {target.n_tokens} tokens and the draft model {draft.n_tokens}; "
        f"they may differ by at most {MAX_SIZE_DIFFERENCE}"
    )


def _text_difference(target: GatedVocab, draft: GatedVocab) -> str | None:
    end = min(target.n_tokens, draft.n_tokens)
    if end <= FIRST_CHECKED_TOKEN:
        return None
    ours, theirs = target.texts(FIRST_CHECKED_TOKEN, end), draft.texts(FIRST_CHECKED_TOKEN, end)
    for offset, (our_text, their_text) in enumerate(zip(ours, theirs, strict=True)):
        if our_text != their_text:
            token = FIRST_CHECKED_TOKEN + offset
            return f"token {token} is {our_text!r} in the target and {their_text!r} in the draft model"
    return None
