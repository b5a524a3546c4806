"""draft-simple over a fake draft model."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.drafters import Resources
from pyspec.drafters.choosing import Chooser
from pyspec.drafters.draft_simple import DraftSimple, TokenByToken
from pyspec.drafters.model_drafter import draft_context_config
from pyspec.errors import ConfigError, UnsupportedError, VocabMismatchError
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch
from tests.fakes import FakeTarget, HashLogits, Logits, Row, cycle_logits
from tests.playing import DraftModelSpec, Table
from tests.reference import Request
from tests.scripted import FakeVocab, fake_model, make_draft_simple

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


# Options


def drafter(logits: Logits = LOGITS, *, n_vocab: int = 8, **options: Any) -> tuple[DraftSimple, FakeTarget]:
    return make_draft_simple(FakeTarget(LOGITS, 8), logits, n_vocab=n_vocab, **options)


def test_the_budget_and_n_max_are_kept() -> None:
    short, _context = drafter(n_max=3)
    assert len(short.draft([request([1], 2)])[0].tokens) == 3
    assert len(short.draft([request([1], 2, budget=2)])[0].tokens) == 2


def sure_until(n_sure: int) -> Logits:
    """Certain of token 1 for ``n_sure`` positions, then undecided."""

    def row(tokens: tuple[int, ...]) -> Row:
        logits = np.zeros(8, np.float32)
        logits[1] = 20.0 if len(tokens) <= n_sure else 0.1
        return logits

    return row


@pytest.mark.parametrize(("p_min", "n_drafted"), [(0.0, 6), (0.1, 6), (0.5, 3), (1.0, 0)])
def test_drafting_stops_below_p_min(p_min: float, n_drafted: int) -> None:
    careful, _context = drafter(sure_until(4), n_max=6, p_min=p_min)
    assert len(careful.draft([request([1], 1)])[0].tokens) == n_drafted


def test_a_share_is_that_among_the_ten_best() -> None:
    flat: Logits = cycle_logits([0], 64)

    def row(tokens: tuple[int, ...]) -> Row:
        return 0 * flat(tokens)

    for p_min, expected in ((0.099, 2), (0.101, 0)):  # a tenth each
        careful, _context = make_draft_simple(FakeTarget(row, 64), row, n_max=2, p_min=p_min)
        assert len(careful.draft([request([1], 1)])[0].tokens) == expected


@pytest.mark.parametrize(("n_min", "n_drafted"), [(0, 3), (3, 3), (4, 0)])
def test_a_draft_shorter_than_n_min_is_dropped(n_min: int, n_drafted: int) -> None:
    picky, context = drafter(sure_until(4), n_max=6, n_min=n_min, p_min=0.5)
    picky.begin(0, [1])
    assert len(picky.draft([request([1], 1)])[0].tokens) == n_drafted
    assert context.memory.length(0) == (5 if n_drafted else 2), "only the pending token's row is kept"
    n_before = picky.n_model_tokens
    picky.draft([request([1, 1], 2, budget=1)])
    assert picky.n_model_tokens == n_before + 1


def test_padding_of_the_draft_vocabulary_is_never_drafted() -> None:
    padded: Logits = cycle_logits([1, 2, 9], 12)
    padding, _context = make_draft_simple(FakeTarget(LOGITS, 8), padded, n_vocab=12, n_max=6)
    assert padding.draft([request([], 3)])[0].tokens == (2,)
    padding.begin(0, [3])
    assert padding.draft([request([3], 3)])[0].tokens == ()
    padding.begin(0, [3, 3])
    assert padding.draft([request([3, 3], 3)])[0].tokens == (1, 2)


def test_a_token_that_only_the_target_has_can_be_read() -> None:
    small, context = make_draft_simple(FakeTarget(HashLogits(1, 16), 16), HashLogits(1, 12), n_vocab=12, n_max=2)
    small.begin(0, [1, 15, 2])
    assert context.memory.tokens(0) == ()
    assert len(small.draft([request([1, 15, 2], 13)])[0].tokens) == 2
    assert context.memory.tokens(0)[:4] == (1, 0, 2, 0)


def test_another_drafters_draft_leaves_only_the_pending_token() -> None:
    asked, context = drafter(n_max=4)
    asked.begin(0, [1, 2])
    asked.draft([request([1, 2], 3)])
    asked.accept(0, 2, own=False)
    assert context.memory.tokens(0) == (1, 2, 3)


def test_every_option_changes_a_field() -> None:
    default, _context = drafter()
    assert (default.n_max, default.n_min, default.p_min) == (3, 0, 0.0)
    changed, context = drafter(n_max=5, n_min=2, p_min=0.25, n_ctx=17, sampling="greedy")
    assert (changed.n_max, changed.n_min, changed.p_min, context.n_ctx_seq) == (5, 2, 0.25, 17)


@pytest.mark.parametrize(
    "options",
    [
        {"n_max": 0},
        {"n_min": 4},
        {"n_min": -1},
        {"p_min": 1.5},
        {"p_min": float("nan")},
        {"n_ctx": -1},
        {"sampling": "random"},
        {"type_k": "q9"},
        {"n_threads": -1},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        drafter(**options)


def test_it_needs_nothing_and_may_be_closed_twice() -> None:
    quiet, context = drafter()
    quiet.observe(EvaluatedBatch([1], [0], [(0,)]))
    assert quiet.memory is context.memory
    quiet.close()
    quiet.close()
    assert context.closed


def test_a_draft_model_without_memory_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"draft.gguf has no memory"):
        drafter(kind=RollbackKind.NONE)


@pytest.mark.parametrize("n_accepted", [0, 1, 2, 3])
def test_a_draft_model_that_cannot_drop_positions_returns_to_a_checkpoint(n_accepted: int) -> None:
    asked, context = drafter(n_max=3, kind=RollbackKind.WHOLE)
    said = [1, 2, 3]
    asked.begin(0, said[:-1])
    for _round in range(4):
        (draft,) = asked.draft([request(said[:-1], said[-1])])
        assert list(draft.tokens) == greedy(LOGITS, said, 3)
        said += [*draft.tokens[:n_accepted], 7]
        asked.accept(0, n_accepted, own=True)
        held = context.memory.tokens(0)
        assert held == tuple(said[: len(held)])
    assert context.memory.n_checkpoints == 4


def test_drawn_tokens_come_with_the_distribution_they_were_drawn_from() -> None:
    def asked(seed: int, temperature: float = 1.5) -> Draft:
        drawing, _context = drafter(n_max=6, sampling="probabilistic")
        drawing.begin(0, [1, 2])
        (draft,) = drawing.draft([DraftRequest(0, [1, 2], 3, 2, 99, temperature, seed)])
        return draft

    assert asked(5).tokens == asked(5).tokens
    assert len({tuple(asked(seed).tokens) for seed in range(20)}) > 5
    assert asked(5, temperature=0.0) == Draft(tuple(greedy(LOGITS, [1, 2, 3], 6)))
    draft = asked(5)
    assert draft.probs is not None
    for i, (token, candidates) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        row = LOGITS((1, 2, 3, *draft.tokens[:i])).astype(float) / 1.5
        shares = np.exp(row) / np.exp(row).sum()
        assert token in candidates.tokens
        np.testing.assert_allclose(candidates.probs, shares[candidates.tokens], rtol=1e-6)


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    target = cast("Any", FakeTarget(LOGITS, 8))
    resources = Resources(
        fake_model("target.gguf", FakeVocab(8)),
        target,
        fake_model("other.gguf", FakeVocab(8, other={6: b"x"})),
        n_sequences=1,
    )
    with pytest.raises(VocabMismatchError, match=r"other.gguf cannot draft for target.gguf: token 6 is b'6'"):
        DraftSimple(resources=resources)


@pytest.mark.parametrize(
    ("n_ctx_train", "n_ctx_seq", "n_sequences", "n_ctx", "n_batch"),
    [
        (2048, 1024, 1, 1024, 512),
        (2048, 1024, 4, 4096, 512),  # what one sequence may hold, times the sequences
        (512, 1024, 1, 512, 512),  # never more than it was trained for
        (512, 1024, 4, 2048, 512),
        (0, 1024, 2, 2048, 512),  # unknown
        (131072, 131072, 1, 131072, 512),  # batches of its own, not the target's
        (2048, 16, 200, 3200, 512),
    ],
)
def test_the_size_of_a_draft_context(
    n_ctx_train: int, n_ctx_seq: int, n_sequences: int, n_ctx: int, n_batch: int
) -> None:
    model = fake_model("draft.gguf", FakeVocab(8), n_ctx_train=n_ctx_train)
    config = draft_context_config(model, n_ctx_seq=n_ctx_seq, n_sequences=n_sequences)
    assert (config.n_ctx, config.n_batch, config.n_ubatch) == (n_ctx, n_batch, n_batch)
    assert (config.n_seq_max, config.n_outputs_max) == (n_sequences, n_sequences)


def test_threads_and_types_reach_the_draft_context() -> None:
    model = fake_model("draft.gguf", FakeVocab(8), n_ctx_train=64)
    config = draft_context_config(model, n_ctx_seq=32, n_sequences=1, n_threads=3, types=("q8_0", "q4_0"))
    assert (config.n_threads, config.type_k, config.type_v) == (3, "q8_0", "q4_0")
