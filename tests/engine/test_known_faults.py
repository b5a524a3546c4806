"""Faults that were found by running llama.cpp's own speculative decoding, and that must not be ours.

Each has a test that fails when what prevents it is taken out; those in other files are named.

== ================================================= ==============================================================
 1 several sequences on a memory with snapshots:     test_sequences_on_snapshots_are_what_each_is_alone;
   one's rollback reads another's state              test_pairs (half wrong, three sequences)
 2 candidates that the device selects get mixed up   drafters/test_assembly (several sequences select on the CPU)
 3 rejection after a restored checkpoint draws the   test_rejection_with_replays_has_the_targets_distribution;
   same numbers again                                speculation: test_rules, test_exactness, test_properties
 4 a draft model that only clears, under a target    test_a_draft_model_that_only_clears_under_a_target_that_trims;
   that trims                                        test_pairs, drafters/test_in_step, drafters/test_draft_simple
 5 drafted ids beyond the target's vocabulary        test_padding_of_a_draft_vocabulary_is_not_drafted,
                                                     test_an_id_beyond_the_vocabulary_is_the_drafters_fault
 6 draft length 0, small physical batches, targets   test_a_draft_length_of_zero_is_refused,
   without layer inputs                              test_small_physical_batches, test_blocks_of_many_sequences;
                                                     test_hard_cases, llama/test_limits, drafters/test_assembly
 7 verified tokens are thrown away at the end of     test_nothing_is_thrown_away_at_the_end_of_the_context;
   the context                                       test_engine_native, speculation/test_round
 8 rejection accepts what stands behind an end       test_nothing_behind_an_end_token_is_accepted_or_counted;
   token                                             speculation: test_rules, test_exactness, test_round
 9 rows that are carried over a round are not put    test_drafts_after_a_replay_are_those_after_a_trim;
   back with a checkpoint                            drafters/test_in_step
10 more tokens than asked for; more to undo than     test_more_must_be_undone_than_there_are_snapshots;
   there are snapshots                               test_engine_native (max_tokens), test_pairs (too few snapshots)
11 replays are counted as acceptance, also to the    test_replays_are_not_counted_twice;
   drafters                                          speculation/test_properties
== ================================================= ==============================================================
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import Finish, Result, SamplingConfig, Speculation
from pyspec.drafters import Chain, Resources, create, names
from pyspec.drafters.registry import option_names
from pyspec.errors import ConfigError, DrafterError
from tests.engine.test_acceptance_on_models import rows_of, softmax
from tests.engine.test_engine_native import same_or_tied
from tests.pairs import LONG, WITH_SNAPSHOTS, Drafts, ModelTable, OpenZoo, Pair, check_statistics, sizes
from tests.pulled import PulledEngine
from tests.real_memories import (
    MEMORIES,
    NEVER_SAID,
    Asked,
    RealMemory,
    RealTable,
    Recorder,
    at_context,
    played,
    scripted,
)
from tests.scripted import Move, Scripted
from tests.zoo import llama

N_TOKENS = 60
DRAWN = SamplingConfig(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
ASKED = Asked(tuple(LONG), N_TOKENS)


@pytest.fixture
def plain(open_zoo: OpenZoo) -> Callable[..., Result]:
    """Decode plainly."""

    def run(memory: RealMemory, asked: Asked = ASKED, **settings: Any) -> Result:
        with memory.engine(open_zoo, **settings) as engine:
            return asked.generate(engine)

    return run


def speculated(
    open_zoo: OpenZoo, memory: RealMemory, pair: Pair, asked: Asked = ASKED, observer: Any = None, **options: Any
) -> Result:
    """Generate with a pair's drafter on a kind of memory."""
    options = {"n_threads": 1, **options}
    speculation = pair.speculation(open_zoo, n_snapshots=0, **options)
    with PulledEngine(open_zoo(pair.target), speculation=speculation, context=memory.sizes()) as engine:
        return asked.generate(engine, observer)


# 1


@pytest.mark.parametrize("target", WITH_SNAPSHOTS)
@pytest.mark.parametrize("n_sequences", [3, 5])
@pytest.mark.parametrize("unified", [False, True])
def test_sequences_on_snapshots_are_what_each_is_alone(
    target: str, n_sequences: int, *, unified: bool, open_zoo: OpenZoo
) -> None:
    """With drafts of unequal lengths, so that physical batches could tear their shares apart."""
    memory = MEMORIES["bounded"]._replace(target=target, settings={"n_rs_seq": 2, "n_ubatch": 8, "kv_unified": unified})
    sampling = replace(DRAWN, seed=11)  # the whole distributions tell more than the most likely tokens
    prompts = [(1, *(60 + 7 * i + j for j in range(5 + 4 * i))) for i in range(n_sequences)]
    asked = [Asked(prompt, 40 - i, "match", sampling) for i, prompt in enumerate(prompts)]
    with memory.open(open_zoo, n_sequences, n_ctx=128 * n_sequences) as context:
        plains = [played(context, one) for one in asked]
        for seed in range(3):
            chance = random.Random(seed)  # noqa: S311 - no secret
            moves = [Move(chance.randrange(4), (NEVER_SAID,) * chance.randrange(3)) for _ in range(53)]
            table = RealTable(context, asked, Chain([scripted(plains, moves)]))
            table.begin()
            table.play()
            for plain, seat in zip(plains, table.seats, strict=True):
                expected = plain.sequence.sampler.chosen_from
                np.testing.assert_allclose(seat.sequence.sampler.chosen_from, expected, atol=1e-5)
                assert seat.emitted == plain.emitted
            assert {outcome.rollback for seat in table.seats for outcome in seat.outcomes} == {"none", "bounded"}


# 3


def test_rejection_with_replays_has_the_targets_distribution(open_zoo: OpenZoo) -> None:
    """Of the tokens that were decided first behind a restored checkpoint, the right share is above the draft.

    That are those to which the target gives more than the draft does; whoever rejects too often emits too many.
    """
    memory, pair, above, chances = MEMORIES["whole"], Pair("target-mamba", "draft-simple", "draft-llama"), [], []
    for seed in range(4):
        seen, asked = Recorder(), Asked(tuple(LONG), 400, "rejection", replace(DRAWN, seed=seed))
        result = speculated(open_zoo, memory, pair, asked, seen, sampling="probabilistic", n_max=2)
        target = softmax(rows_of(open_zoo(pair.target), [*LONG, *result.tokens]))
        for before, outcome in zip(seen.outcomes, seen.outcomes[1:], strict=False):
            probs = outcome.proposal.draft.probs
            if before.rollback == "replay" and probs:
                surplus = target[outcome.position].copy()
                surplus[probs[0].tokens] -= probs[0].probs
                above.append(bool(surplus[outcome.emitted[0]] > 0.0))
                chances.append(target[outcome.position][surplus > 0.0].sum())
    assert len(above) > 250
    error = np.sqrt(sum(chance * (1.0 - chance) for chance in chances))
    assert abs(sum(above) - sum(chances)) < 3.0 * error


# 4


def test_a_draft_model_that_only_clears_under_a_target_that_trims(open_zoo: OpenZoo, plain: Any) -> None:
    pair = Pair("target-llama", "draft-simple", "draft-mamba")
    result = speculated(open_zoo, MEMORIES["trim"], pair)
    same_or_tied(plain(MEMORIES["trim"]), result)
    assert 0 < result.stats.n_accepted < result.stats.n_drafted
    assert (result.stats.n_checkpoints, result.stats.n_replays) == (0, 0), "the draft model's are its own"


# 5


@pytest.fixture
def padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pyspec.Model]:
    """A draft model that often likes its padding best."""
    monkeypatch.setattr(llama, "FORBID", -5.8)
    llama.draft_padded_vocab(tmp_path / "padded.gguf")
    with pyspec.Model(tmp_path / "padded.gguf") as model:
        yield model


@pytest.mark.parametrize("drawing", ["greedy", "probabilistic", "coupled"])
def test_padding_of_a_draft_vocabulary_is_not_drafted(drawing: str, padded: Any, open_zoo: OpenZoo, plain: Any) -> None:
    memory, target, seen = MEMORIES["trim"], open_zoo("target-llama"), Recorder()
    likes_padding = sum(row.argmax() >= target.vocab.n_tokens for row in rows_of(padded, LONG))
    assert 0 < likes_padding < len(LONG)
    asked = replace(ASKED, sampling=DRAWN)
    speculation = Speculation("draft-simple", padded, {"draft-simple": {"sampling": drawing, "n_threads": 1}})
    with PulledEngine(target, speculation=speculation, context=memory.sizes()) as engine:
        result = asked.generate(engine, seen)
    assert result.tokens == plain(memory, asked).tokens
    assert result.stats.n_drafted > 0
    assert all(token < target.vocab.n_tokens for o in seen.outcomes for token in o.proposal.draft.tokens)


@pytest.mark.parametrize("token", [384, 399, 2**31 - 1, -1])
def test_an_id_beyond_the_vocabulary_is_the_drafters_fault(token: int, open_zoo: OpenZoo, plain: Any) -> None:
    memory = MEMORIES["trim"]
    expected = plain(memory).tokens
    script = [Move(2), Move(1, (token,))]
    with memory.engine(open_zoo, Scripted("scripted", {0: [*LONG, *expected]}, script)) as engine:
        with pytest.raises(DrafterError, match=rf"scripted proposed {token}; the target has the tokens 0 to 383"):
            ASKED.generate(engine)
        script[:] = [Move(2)]
        assert ASKED.generate(engine).tokens == expected


# 6


@pytest.mark.parametrize("name", [name for name in names() if name != "none"])
def test_a_draft_length_of_zero_is_refused(name: str, open_zoo: OpenZoo) -> None:
    option = "n_max" if "n_max" in option_names(name) else "size_m"
    with pyspec.Context(open_zoo("target-llama"), sizes()) as context:
        resources = Resources(context.model, context, open_zoo("draft-llama"), n_sequences=1)
        with pytest.raises(ConfigError, match=f"{option} must be between 1 and"):
            create(name, resources=resources, **{option: 0})


@pytest.mark.parametrize("target", WITH_SNAPSHOTS)
@pytest.mark.parametrize("n_ubatch", [1, 2, 4, 7])
def test_small_physical_batches(target: str, n_ubatch: int, open_zoo: OpenZoo, plain: Any) -> None:
    """Drafts and snapshots that are asked for do not fit; both are cut, unless the snapshots are a demand."""
    memory = MEMORIES["hybrid"]._replace(target=target, settings={"n_ubatch": n_ubatch})
    speculation = Speculation("draft-simple", open_zoo("draft-llama"), {"draft-simple": {"n_max": 9, "n_threads": 1}})
    with PulledEngine(open_zoo(target), speculation=speculation, context=memory.sizes()) as engine:
        result = ASKED.generate(engine)
        n_snapshots = at_context(engine, lambda context: context.n_rs_seq)
    expected = plain(memory)
    same_or_tied(expected, result)
    assert n_snapshots == max(0, n_ubatch - 2)
    assert result.stats.n_drafted > 0
    script = [Move(n_right, (NEVER_SAID,) * n_wrong) for n_right in range(4) for n_wrong in (1, 4, 9)]
    few = memory._replace(settings={**memory.settings, "n_rs_seq": n_snapshots})
    seen = Recorder()
    with few.engine(open_zoo, Scripted("half-wrong", {0: [*LONG, *expected.tokens]}, script)) as engine:
        same_or_tied(expected, ASKED.generate(engine, seen))
    longest = max(len(outcome.proposal.draft.tokens) for outcome in seen.outcomes)
    assert longest == (n_ubatch - 1 if n_snapshots else 12), "snapshots are kept of what is computed at once"
    with pytest.raises(ConfigError, match="need a physical batch of at least 11 tokens"):
        memory.open(open_zoo, n_rs_seq=9)


@pytest.mark.parametrize("types", ["draft-dflash", "draft-dspark"])
def test_blocks_of_many_sequences(types: str, open_zoo: OpenZoo) -> None:
    """More entries than a physical batch has of its own accord: 72 blocks of 8, computed at once."""
    n_sequences, pair = 72, Pair("target-llama", types, types)
    with contextlib.ExitStack() as stack:
        config = sizes(n_sequences, n_batch=640, kv_unified=True)
        context = stack.enter_context(pyspec.Context(open_zoo(pair.target), config))
        chain = stack.enter_context(contextlib.closing(pair.chain(open_zoo, context, n_max=8)))
        table = ModelTable(context, chain)
        table.begin([[1, 60 + i] for i in range(n_sequences)], [8] * n_sequences)
        table.play()
        assert chain.stats[types].n_accepted > n_sequences


# 7 and 8


@pytest.mark.parametrize("kind", MEMORIES)
def test_nothing_is_thrown_away_at_the_end_of_the_context(kind: str, open_zoo: OpenZoo, plain: Any) -> None:
    """A drafter that is always right: all it proposed stands, to the last position."""
    memory, n_ctx = MEMORIES[kind], len(LONG) + 25  # the last draft is cut
    asked = replace(ASKED, max_tokens=99)
    expected = plain(memory, asked, n_ctx=n_ctx)
    with memory.engine(open_zoo, Scripted("right", {0: [*LONG, *expected.tokens]}, [Move(5)]), n_ctx=n_ctx) as engine:
        result = asked.generate(engine)
        assert at_context(engine, lambda context: context.memory.length(0)) == n_ctx
    assert (result.tokens, result.finish) == (expected.tokens, Finish.CONTEXT)
    assert len(result.tokens) == n_ctx - len(LONG) + 1
    assert result.stats.n_accepted == result.stats.n_drafted == len(result.tokens) - result.stats.n_rounds


@pytest.mark.parametrize("drawing", ["greedy", "probabilistic"])
def test_nothing_behind_an_end_token_is_accepted_or_counted(drawing: str, open_zoo: OpenZoo) -> None:
    pair, eog = Pair("target-llama-eog", "draft-simple", "draft-llama-eog"), open_zoo("target-llama-eog").vocab.eog
    n_past = 0
    for seed in range(12):
        recorder, sampling = Recorder(), replace(DRAWN, seed=seed, temperature=0.5)
        asked = Asked((1, 60 + seed, 75), 300, "rejection", sampling)
        result = speculated(open_zoo, MEMORIES["trim"], pair, asked, recorder, sampling=drawing, n_max=8)
        assert result.finish is Finish.EOG
        assert [token for token in result.tokens if token in eog] == result.tokens[-1:]
        check_statistics([result.stats], result.drafters)
        last = recorder.outcomes[-1]
        n_past += last.proposal.draft.tokens[: len(last.emitted)] == last.emitted
    assert n_past > 2, "no draft went on behind the end token that it had right"


# 9, 10 and 11


@pytest.mark.parametrize("pair", [Pair("target-mtp", "draft-mtp"), Pair("target-mtp", "draft-eagle3", "draft-eagle3")])
def test_drafts_after_a_replay_are_those_after_a_trim(pair: Pair, open_zoo: OpenZoo) -> None:
    memory, found = MEMORIES["hybrid"], []
    for n_snapshots in (0, 8):
        drafts, settings = Drafts(), {"n_rs_seq": n_snapshots}
        result = speculated(open_zoo, memory._replace(settings=settings), pair, observer=drafts)
        assert (result.stats.n_replays > 3) == (n_snapshots == 0)
        found.append(drafts.tokens)
    assert found[0] == found[1]


@pytest.mark.parametrize("n_wrong", [2, 3, 6])
def test_more_must_be_undone_than_there_are_snapshots(n_wrong: int, open_zoo: OpenZoo, plain: Any) -> None:
    memory, seen = MEMORIES["too few snapshots"], Recorder()
    expected = plain(memory)
    script = [Move(2, (NEVER_SAID,) * n_wrong), Move(1), Move(0, (NEVER_SAID,))]
    with memory.engine(open_zoo, Scripted("wrong", {0: [*LONG, *expected.tokens]}, script)) as engine:
        result = ASKED.generate(engine, seen)
    same_or_tied(expected, result)
    replay = {"replay"} if n_wrong > memory.settings["n_rs_seq"] else set()
    assert {outcome.rollback for outcome in seen.outcomes} == {"none", "bounded"} | replay


class Hears(Scripted):
    """A scripted drafter that keeps what it is told of its drafts."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard: list[int] = []

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        super().accept(seq_id, n_accepted, own=own)
        self.heard.append(n_accepted)


def test_replays_are_not_counted_twice(open_zoo: OpenZoo, plain: Any) -> None:
    script = [Move(n_right, (NEVER_SAID,) * n_wrong) for n_right, n_wrong in ((2, 1), (0, 2), (3, 0), (1, 3), (0, 1))]
    counted = []
    for kind in ("whole", "trim"):
        memory = MEMORIES[kind]
        expected = plain(memory).tokens
        drafter = Hears("hears", {0: [*LONG, *expected]}, script)
        with memory.engine(open_zoo, drafter) as engine:
            result = ASKED.generate(engine)
        stats, of_drafter = result.stats, result.drafters["hears"]
        check_statistics([stats], result.drafters)
        assert (stats.n_replays > 5) == (kind == "whole")
        assert sum(drafter.heard) == of_drafter.n_accepted == stats.n_accepted == len(expected) - stats.n_rounds
        counted.append((drafter.heard, stats.n_drafted, of_drafter.drafted_at, of_drafter.accepted_at))
    assert counted[0] == counted[1]
