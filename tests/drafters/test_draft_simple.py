"""draft-simple over a fake draft model: its options, and what goes beyond drafting token by token."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from pyspec.drafters import Resources
from pyspec.drafters.draft_simple import DraftSimple
from pyspec.drafters.model_drafter import draft_context_config
from pyspec.errors import ConfigError, UnsupportedError, VocabMismatchError
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch
from tests.drafters.test_token_by_token import LOGITS, greedy, request
from tests.fakes import FakeTarget, HashLogits, Logits, Row, cycle_logits
from tests.scripted import FakeVocab, fake_model, make_draft_simple


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
