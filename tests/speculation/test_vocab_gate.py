"""Every verdict has its reason."""

from __future__ import annotations

import enum

import pytest

from pyspec.speculation.vocab_gate import FIRST_CHECKED_TOKEN, MAX_SIZE_DIFFERENCE, vocab_difference
from tests.scripted import FakeVocab


class Kind(enum.Enum):
    BPE = 1
    SPM = 2


TARGET = FakeVocab(1000, Kind.BPE, bos=1, eos=2)


@pytest.mark.parametrize(
    "draft",
    [
        FakeVocab(1000, Kind.BPE, bos=1, eos=2),
        FakeVocab(1000 + MAX_SIZE_DIFFERENCE, Kind.BPE, bos=1, eos=2),
        FakeVocab(1000 - MAX_SIZE_DIFFERENCE, Kind.BPE, bos=1, eos=2),
        FakeVocab(1000, Kind.BPE, bos=7, eos=8),  # neither is added, so neither matters
        FakeVocab(1000, Kind.BPE, bos=1, eos=2, other={FIRST_CHECKED_TOKEN - 1: b"<special>"}),
        FakeVocab(1004, Kind.BPE, bos=1, eos=2, other={1001: b"<pad>"}),
    ],
)
def test_vocabularies_that_fit(draft: FakeVocab) -> None:
    assert vocab_difference(TARGET, draft) is None
    assert vocab_difference(draft, TARGET) is None


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (FakeVocab(1000, Kind.SPM, bos=1, eos=2), "types differ: BPE and SPM"),
        (FakeVocab(1000, Kind.BPE, add_bos=True, bos=1, eos=2), "with BOS in one of them only: target False"),
        (FakeVocab(1000, Kind.BPE, add_eos=True, bos=1, eos=2), "with EOS in one of them only: target False"),
        (FakeVocab(1001 + MAX_SIZE_DIFFERENCE, Kind.BPE), "the target has 1000 tokens and the draft model 1129"),
        (FakeVocab(999 - MAX_SIZE_DIFFERENCE, Kind.BPE), "1000 tokens and the draft model 871"),
        (FakeVocab(1000, Kind.BPE, other={FIRST_CHECKED_TOKEN: b"x"}), "token 5 is b'5' in the target and b'x'"),
        (FakeVocab(1000, Kind.BPE, other={999: b"x"}), "token 999 is b'999' in the target and b'x'"),
    ],
)
def test_vocabularies_that_do_not_fit(draft: FakeVocab, reason: str) -> None:
    assert reason in str(vocab_difference(TARGET, draft))


@pytest.mark.parametrize("what", ["bos", "eos"])
def test_a_token_that_is_added_must_be_the_same(what: str) -> None:
    target = FakeVocab(100, "BPE", add_bos=True, add_eos=True, bos=1, eos=2)
    draft = FakeVocab(100, "BPE", add_bos=True, add_eos=True, bos=1, eos=2)
    assert vocab_difference(target, draft) is None
    setattr(draft, what, 9)
    assert f"{what.upper()} is token {getattr(target, what)} in the target and token 9" in str(
        vocab_difference(target, draft)
    )


def test_tiny_vocabularies_have_no_text_to_compare() -> None:
    assert vocab_difference(FakeVocab(4), FakeVocab(4, other={3: b"x"})) is None
    assert vocab_difference(FakeVocab(5), FakeVocab(5, other={4: b"x"})) is None
