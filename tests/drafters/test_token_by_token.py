"""Drafting token by token over a fake draft model: what is decoded, what is kept."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.drafters.choosing import Chooser
from pyspec.drafters.draft_simple import TokenByToken
from pyspec.speculation.draft import DraftRequest
from tests.fakes import FakeTarget, HashLogits, Logits, Row
from tests.playing import DraftModelSpec, Table
from tests.reference import Request

LOGITS = HashLogits(3, 8, order=2)


def core(*, n_sequences: int = 1, n_ctx_seq: int = 64, n_batch: int = 32) -> TokenByToken:
    return TokenByToken(FakeTarget(LOGITS, 8, n_seq_max=n_sequences, n_ctx_seq=n_ctx_seq, n_batch=n_batch), Chooser(8))


def drafted(drafting: TokenByToken, requests: list[DraftRequest], limits: list[int]) -> list[list[int]]:
    growing = drafting.draft(list(zip(requests, limits, strict=True)))
    return [[choice.token for choice in each.choices] for each in growing]


def request(history: list[int], pending: int, *, seq_id: int = 0, budget: int = 99) -> DraftRequest:
    return DraftRequest(seq_id, history, pending, len(history), budget)


def greedy(logits: Logits, tokens: list[int], n: int) -> list[int]:
    said = list(tokens)
    for _ in range(n):
        said.append(int(np.argmax(logits(tuple(said)))))
    return said[len(tokens) :]


def memory_of(drafting: TokenByToken, seq_id: int = 0) -> tuple[int, ...]:
    return cast("FakeTarget", drafting._context).memory.tokens(seq_id)


def test_it_drafts_what_the_draft_model_would_say() -> None:
    drafting = core()
    drafting.begin(0, [1, 2, 3])
    assert drafted(drafting, [request([1, 2, 3], 4)], [5]) == [greedy(LOGITS, [1, 2, 3, 4], 5)]


def test_only_what_is_missing_is_decoded() -> None:
    """Per round: the drafted tokens, and one more after a full acceptance. The prompt is read with the first draft."""
    drafting = core()
    history = [1, 2, 3]
    drafting.begin(0, history)
    assert drafting.n_model_tokens == 0
    pending, extra = 4, len(history)
    for n_accepted in (3, 1, 0, 2, 3, 3, 0, 1):
        before = drafting.n_model_tokens
        (draft,) = drafted(drafting, [request(history, pending)], [3])
        assert drafting.n_model_tokens - before == len(draft) + extra
        history = [*history, pending, *draft[:n_accepted]]
        pending = greedy(LOGITS, history, 1)[0] if n_accepted == 3 else (draft[n_accepted] + 1) % 8
        drafting.accept(0, n_accepted)
        assert memory_of(drafting) == tuple(history[: len(history) - (n_accepted == 3)])
        extra = int(n_accepted == 3)


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    """Acceptance must not decay while the memory of the draft model is trimmed round after round."""
    logits = HashLogits(7, 16)
    table = Table(
        [Request(logits, 16, (1, 2, 3), max_tokens=200, n_ctx=256)],
        [DraftModelSpec(None, n_max=4)],
    )
    table.begin()
    table.play()
    table.check_end()
    stats = table.chain.stats["draft-simple"]
    assert (stats.acceptance, table.seats[0].n_emitted) == (1.0, 200)
    assert len(table.seats[0].outcomes) == 40
    assert stats.n_model_tokens == 2 + stats.n_drafted + 39  # the prompt, the drafts, and one more a round


def test_acceptance_does_not_decay_when_some_drafts_are_wrong() -> None:
    """The draft model goes wrong at every 7th position only, so all other tokens stand, to the end."""
    right = HashLogits(7, 16)

    def sometimes_wrong(tokens: tuple[int, ...]) -> Row:
        row = right(tokens)
        return -row if len(tokens) % 7 == 0 else row

    table = Table([Request(right, 16, (1,), max_tokens=200, n_ctx=256)], [DraftModelSpec(sometimes_wrong, n_max=4)])
    table.begin()
    table.play()
    table.check_end()
    for outcome in table.seats[0].outcomes:
        draft = outcome.proposal.draft.tokens
        first_wrong = next((i for i in range(len(draft)) if (outcome.position + 1 + i) % 7 == 0), len(draft))
        assert outcome.n_accepted == first_wrong


def test_sequences_share_each_decode() -> None:
    drafting = core(n_sequences=3)
    histories = {0: [1, 2], 1: [], 2: [5, 6, 7]}
    for seq_id, history in histories.items():
        drafting.begin(seq_id, history)
    target = cast("FakeTarget", drafting._context)
    n_before = len(target.decodes)
    requests = [request(history, 4, seq_id=seq_id) for seq_id, history in histories.items()]
    drafts = drafted(drafting, requests, [3, 1, 2])
    assert drafts == [
        greedy(LOGITS, [1, 2, 4], 3),
        greedy(LOGITS, [4], 1),
        greedy(LOGITS, [5, 6, 7, 4], 2),
    ]
    first, *others = target.decodes[n_before:]
    assert first.seq_ids == ((0,),) * 3 + ((1,),) + ((2,),) * 4  # the prompts in front
    assert first.n_outputs == 3
    assert [decoded.seq_ids for decoded in others] == [((0,), (2,)), ((0,),)]
    assert all(decoded.n_outputs == len(decoded.tokens) for decoded in others)


def test_a_length_of_zero_decodes_nothing() -> None:
    drafting = core()
    assert drafted(drafting, [request([], 4)], [0]) == [[]]
    assert drafting.n_model_tokens == 0


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("aaudxb"), st.integers(0, 5), st.integers(1, 4)), max_size=12))
def test_accept_undo_and_forgetting_in_any_order(steps: list[tuple[str, int, int]]) -> None:
    """Whatever the rounds did, the draft is what the draft model says after the history."""
    drafting = core(n_ctx_seq=128, n_batch=3)
    said = [1, 2, 3]
    drafting.begin(0, said[:-1])
    for what, n_accepted, length in steps:
        (draft,) = drafted(drafting, [request(said[:-1], said[-1])], [length])
        assert draft == greedy(LOGITS, said, length)
        said_after = [*said, *draft[:n_accepted], 5]
        if what == "a":  # its own draft was verified
            drafting.accept(0, min(n_accepted, length))
            said = said_after
        elif what == "u":  # the round was undone
            drafting.discard(0)
        elif what == "d":  # the draft was dropped for being too short, and the round was plain
            drafting.drop(0)
            said = [*said, 5]
        elif what == "x":  # another drafter's draft stood, and nobody told
            said = said_after
        else:
            drafting.begin(0, said[:-1])
        held = memory_of(drafting)
        assert what == "x" or held == tuple(said[: len(held)])


def test_an_interrupted_trim_is_made_good() -> None:
    drafting = core()
    memory = cast("FakeTarget", drafting._context).memory
    drafting.begin(0, [1, 2])
    (draft,) = drafted(drafting, [request([1, 2], 3)], [4])
    trim = memory.trim

    def interrupted(_seq_id: int, _length: int) -> None:
        raise KeyboardInterrupt

    cast("Any", memory).trim = interrupted
    with pytest.raises(KeyboardInterrupt):
        drafting.accept(0, 1)
    cast("Any", memory).trim = trim
    history = [1, 2, 3, draft[0]]
    assert drafted(drafting, [request(history, 6)], [2]) == [greedy(LOGITS, [*history, 6], 2)]


def test_a_history_that_became_shorter() -> None:
    drafting = core()
    drafting.begin(0, [1, 2, 3, 4, 5])
    assert drafted(drafting, [request([1, 2], 7)], [2]) == [greedy(LOGITS, [1, 2, 7], 2)]


def test_news_of_unknown_sequences_are_ignored() -> None:
    drafting = core(n_sequences=2)
    drafting.accept(1, 3)
    drafting.discard(1)
    assert memory_of(drafting, 1) == ()


# The end of the draft context


def test_a_draft_context_that_is_too_small_degrades_once_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="pyspec.drafters.draft_simple")
    requests = [Request(LOGITS, 8, (token,), max_tokens=40) for token in (1, 2)]
    table = Table(requests, [DraftModelSpec(None, n_max=4, n_ctx=20)])
    table.begin()
    table.play()
    table.check_end()
    (record,) = caplog.records
    assert "The draft context holds 20 tokens per sequence" in record.message
    for seat in table.seats:
        lengths = [(outcome.position, len(outcome.proposal.draft.tokens)) for outcome in seat.outcomes]
        assert all(length > 0 for position, length in lengths if position < 20)
        assert all(position + length <= 20 for position, length in lengths if length)
        assert all(length == 0 for position, length in lengths if position >= 20)


def test_a_prompt_that_does_not_fit_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    drafting = core(n_ctx_seq=4)
    drafting.begin(0, [1, 2, 3, 4])
    assert drafting.n_model_tokens == 0
    assert drafted(drafting, [request([1, 2, 3, 4], 5)], [3]) == [[]]
    assert len(caplog.records) == 1
    drafting.begin(0, [1, 2, 3])  # the next request may fit again
    assert drafted(drafting, [request([1, 2, 3], 4)], [3]) == [greedy(LOGITS, [1, 2, 3, 4], 1)]
