"""With rule match, speculation changes nothing: over random targets, requests, drafters, slots and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.speculation import GenerationStats
from tests.fakes import HashLogits
from tests.playing import DrafterSpec, DraftModelSpec, Machine, NgramSpec, ScriptedSpec, Table
from tests.reference import Request
from tests.scripted import Move
from tests.strategies import Setting, chains, machines, request_groups, requests, table_settings

N_SEQ_MAX = 4


@settings(max_examples=200)
@given(table_settings())
def test_output_is_that_of_plain_decoding(setting: Setting) -> None:
    table = setting.table()
    table.begin()
    table.play()
    table.check_end()
    for seat in table.seats:
        assert seat.sampler.n_calls == seat.n_emitted  # one draw per emitted token, none is wasted


@settings(max_examples=60)
@given(table_settings())
def test_counters_add_up(setting: Setting) -> None:
    table = setting.table()
    table.begin()
    table.play()
    check_counters(table)


def check_counters(table: Table) -> None:
    n_drafts = 0
    for seat in table.seats:
        stats = GenerationStats()
        for outcome in seat.outcomes:
            stats.count(outcome)
            assert outcome.n_accepted <= len(outcome.proposal.draft.tokens)
            assert outcome.emitted[: outcome.n_accepted] == outcome.proposal.draft.tokens[: outcome.n_accepted]
            assert (outcome.proposal.drafter is None) == (not outcome.proposal.draft.tokens)
            n_drafts += bool(outcome.proposal.draft.tokens)
        assert stats.n_emitted == seat.n_emitted == stats.n_accepted + stats.n_rounds
        assert sum(stats.lengths.values()) == stats.n_rounds == len(seat.outcomes)
        assert sum(length * count for length, count in stats.lengths.items()) == stats.n_emitted
    assert n_drafts == sum(stats.n_drafts for stats in table.chain.stats.values())
    for counters in table.chain.stats.values():
        assert counters.n_accepted <= counters.n_drafted
        assert counters.n_drafts_accepted <= counters.n_drafts <= counters.n_asked
        assert counters.drafted_at == sorted(counters.drafted_at, reverse=True)
        assert counters.accepted_at == sorted(counters.accepted_at, reverse=True)
        assert all(a <= d for a, d in zip(counters.accepted_at, counters.drafted_at, strict=True))
        assert (sum(counters.drafted_at), sum(counters.accepted_at)) == (counters.n_drafted, counters.n_accepted)
        assert counters.drafted_at[:1] == ([counters.n_drafts] if counters.n_drafts else [])


@settings(max_examples=60)
@given(st.data())
def test_neighbours_and_slots_change_nothing(data: st.DataObject) -> None:
    group = data.draw(request_groups())
    specs = data.draw(chains(group[0].n_vocab, group[0].n_ctx))
    together = Table(group, specs, machine=Machine(n_seq_max=N_SEQ_MAX))
    together.begin()
    together.play()
    for i, request in enumerate(group):
        alone = Table([request], specs, machine=Machine(n_seq_max=N_SEQ_MAX), seq_ids=[N_SEQ_MAX - 1 - i])
        alone.begin()
        alone.play()
        assert alone.seats[0].emitted == together.seats[i].emitted
        assert alone.seats[0].sampler.seen == together.seats[i].sampler.seen


@settings(max_examples=60)
@given(request=requests(), data=st.data())
def test_every_limit_clamps_the_draft(request: Request, data: st.DataObject) -> None:
    machine = data.draw(machines(1, 1))
    greedy_drafter = ScriptedSpec((Move(40, (0, 0, 0)),))
    table = Table([request], [greedy_drafter], machine=machine)  # the fake target refuses what is over a limit
    table.begin()
    table.play()
    table.check_end()
    for decoded in table.target.decodes:
        assert len(decoded.tokens) <= machine.n_batch
        assert decoded.n_outputs <= machine.n_outputs_max
        assert max(decoded.positions) < request.n_ctx
    for outcome in table.seats[0].outcomes[:-1]:
        assert len(outcome.emitted) <= min(machine.n_batch, machine.n_outputs_max)


def test_same_prompt_in_all_slots_gives_the_same_counters() -> None:
    logits = HashLogits(3, 8, order=2)
    request = Request(logits, 8, (1, 2, 3), max_tokens=30)
    specs: list[DrafterSpec] = [NgramSpec(2, 4), DraftModelSpec(HashLogits(4, 8, order=2), n_max=3)]

    def drafts(table: Table) -> list[list[object]]:
        table.begin()
        table.play()
        return [[(o.position, o.proposal, o.n_accepted, o.emitted) for o in seat.outcomes] for seat in table.seats]

    together = drafts(Table([request] * 3, specs))
    for seq_id in range(3):
        alone = drafts(Table([request], specs, machine=Machine(n_seq_max=3), seq_ids=[seq_id]))
        assert alone[0] == together[seq_id]


@pytest.mark.parametrize("seed", [None, 11])
def test_ties_go_to_the_lowest_token_on_every_path(seed: int | None) -> None:
    logits = HashLogits(5, 8, levels=2)
    request = Request(logits, 8, (1,), max_tokens=40, seed=seed)
    table = Table([request], [DraftModelSpec(None, n_max=5), ScriptedSpec((Move(2, (7,)),))])
    table.begin()
    table.play()
    table.check_end()
    if seed is None:
        stats = table.chain.stats["draft-simple"]
        assert stats.acceptance == 1.0, "a draft model that is the target breaks ties as the target does"


def test_a_banned_token_is_never_emitted_though_it_is_drafted() -> None:
    banned = 3
    request = Request(HashLogits(6, 6), 6, (1,), max_tokens=40, banned=frozenset({banned}))
    table = Table([request], [ScriptedSpec((Move(2, (banned, banned)),))])
    table.begin()
    table.play()
    table.check_end()
    assert banned not in table.seats[0].emitted
    assert table.chain.stats["scripted-0"].n_accepted > 0


def test_penalties_see_exactly_the_tokens_before_each_position() -> None:
    """A penalty so strong that any token seen twice, or not at all, changes the choice."""
    request = Request(HashLogits(7, 10), 10, (1, 2), max_tokens=50, n_ctx=64, penalty=3.0)
    table = Table([request], [ScriptedSpec((Move(3, (0,)), Move(0), Move(5)))])
    table.begin()
    table.play()
    table.check_end()
    assert table.seats[0].plain.tokens != Table([replace(request, penalty=0.0)]).seats[0].plain.tokens
