"""What must hold of every request, on each kind of fake memory; see ``engine/test_properties_on_memories`` for all ten.

Most of it is tested elsewhere too, on a kind that is drawn. Here each kind has its turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.llama.memory import RollbackKind
from pyspec.speculation import GenerationStats
from pyspec.speculation.coupled import CoupledRule
from pyspec.speculation.noise import uniform
from pyspec.speculation.rejection import RejectionRule
from tests.fake_sampling import FakeSampler
from tests.fakes import FakeRows, HashLogits
from tests.playing import MATCH, DrafterSpec, DraftModelSpec, Machine, RuleSpec, ScriptedSpec, Seat, Table
from tests.reference import Request, plain_decode
from tests.scripted import Move
from tests.speculation.test_rules import with_most_noise
from tests.strategies import chains, max_tokens, moves, prompts, request_groups, requests
from tests.workplace import generation, workplace

N_SEQ_MAX = 4
MACHINES = {
    "trim": Machine(n_seq_max=N_SEQ_MAX),
    "bounded": Machine(n_seq_max=N_SEQ_MAX, kind=RollbackKind.BOUNDED, n_snapshots=31),
    "too few snapshots": Machine(n_seq_max=N_SEQ_MAX, kind=RollbackKind.BOUNDED, n_snapshots=1),
    "whole": Machine(n_seq_max=N_SEQ_MAX, kind=RollbackKind.WHOLE),
}
COUPLED = RuleSpec(CoupledRule(), with_most_noise)

few = settings(max_examples=25, deadline=None)
each_kind = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def end(table: Table) -> None:
    table.begin()
    table.play()
    table.check_end()


# 1 and 2


@each_kind
@pytest.mark.parametrize("rule", [MATCH, COUPLED], ids=["match", "coupled"])
@few
@given(data=st.data())
def test_drafters_neighbours_and_slots_change_nothing(machine: Machine, rule: RuleSpec, data: st.DataObject) -> None:
    group = data.draw(request_groups())
    specs = data.draw(chains(group[0].n_vocab, group[0].n_ctx))
    together = Table(group, specs, machine=machine, rule=rule)
    end(together)
    for i, request in enumerate(group):
        alone = Table([request], (), machine=machine, seq_ids=[N_SEQ_MAX - 1 - i], rule=rule)
        end(alone)
        ours, theirs = alone.seats[0], together.seats[i]
        assert ours.emitted == theirs.emitted
        assert ours.sampler.seen == theirs.sampler.seen
        assert theirs.sampler.n_calls == theirs.n_emitted


# 3, 5 and 9


@each_kind
@few
@given(request=requests(), data=st.data())
def test_a_request_may_be_left_after_any_round(machine: Machine, request: Request, data: st.DataObject) -> None:
    specs = data.draw(chains(request.n_vocab, request.n_ctx))
    following = replace(
        request, prompt=data.draw(prompts(request.n_vocab, request.n_ctx)), max_tokens=data.draw(max_tokens())
    )
    table = Table([request], specs, machine=machine)
    place = workplace(table)
    with generation(place, request) as first:
        for _, _chunk in zip(range(data.draw(st.integers(0, 8))), first, strict=False):
            pass
    said = [*request.prompt, *first.result.tokens]
    held = table.target.memory.tokens(0)
    assert held == tuple(said[: len(held)])
    assert len(held) < len(said)
    assert tuple(first.result.tokens) == table.seats[0].plain.tokens[: len(first.result.tokens)]

    plain = plain_decode(following)
    table.futures.update(dict.fromkeys(range(machine.n_seq_max), plain.history))  # in whichever slot
    second = generation(place, following)
    chunks = list(second)
    assert (tuple(second.result.tokens), str(second.result.finish)) == (plain.tokens, plain.finish)
    assert second.result.text == plain.text == "".join(chunk.text for chunk in chunks)


# 4


@each_kind
def test_every_random_number_is_used_for_one_decision(machine: Machine) -> None:
    used: Counter[tuple[int, int]] = Counter()

    def numbers(seed: int, position: int, stream: int) -> float:
        used[position, stream] += 1
        return uniform(seed, position, stream)

    request = Request(HashLogits(3, 8), 8, (1, 2), max_tokens=50, seed=5)
    rule = RuleSpec(RejectionRule(numbers), lambda _request, tokens: tokens[-1], free=True)
    drafter = DraftModelSpec(HashLogits(3, 8, order=1), n_max=4, sampling="probabilistic")
    table = Table([request], [drafter], machine=machine, rule=rule)
    table.begin()
    while table.seats[0].n_emitted < request.max_tokens:
        table.round(table.seats)
    ways = {outcome.rollback for outcome in table.seats[0].outcomes}
    assert ("replay" in ways) == (machine.kind is RollbackKind.WHOLE or machine.n_snapshots == 1)
    assert set(used.values()) == {1}


# 6 and 7


class Looking(FakeSampler):
    """A sampler that keeps what it decided from: the row, and the tokens that bear on it."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.seed, penalty=request.penalty, banned=request.banned)
        self.looked: list[tuple[bytes, tuple[int, ...]]] = []

    def sample(self, rows: FakeRows, i: int) -> int:
        self.looked.append((rows.logits(i).tobytes(), tuple(self.seen)))
        return super().sample(rows, i)


def looking(request: Request, specs: Any, machine: Machine) -> tuple[Looking, list[float]]:
    """Play a request; return its sampler and the log-probabilities of its tokens."""
    table = Table([request], specs, machine=machine)
    seat = table.seats[0]
    seat.sampler = seat.sequence.sampler = sampler = Looking(request)
    seat.sequence.wants_logprobs = True
    end(table)
    return sampler, [value for outcome in seat.outcomes for value in outcome.logprobs]


@each_kind
@few
@given(request=requests(), data=st.data())
def test_each_token_is_decided_from_the_row_and_tokens_of_plain_decoding(
    machine: Machine, request: Request, data: st.DataObject
) -> None:
    penalised = replace(request, penalty=0.7)
    script = ScriptedSpec(tuple(data.draw(st.lists(moves(request.n_vocab), min_size=1, max_size=4))))
    plain, of_plain = looking(penalised, (), machine)
    other, of_other = looking(penalised, [script], machine)
    assert other.looked == plain.looked
    assert of_other == of_plain
    assert len(of_plain) == len(plain.looked)
    for (row, seen), token, value in zip(plain.looked, plain.seen[len(request.prompt) :], of_plain, strict=True):
        logits = np.frombuffer(row, np.float32).astype(np.float64)
        assert seen[: len(request.prompt)] == request.prompt
        assert value == pytest.approx(logits[token] - np.logaddexp.reduce(logits))


# 8


def counted(seat: Seat) -> tuple[Any, ...]:
    """Return the counters of a request that must not depend on its memory."""
    stats = GenerationStats()
    for outcome in seat.outcomes:
        stats.count(outcome)
    n_replays = sum(outcome.rollback == "replay" for outcome in seat.outcomes)
    n_checkpoints = sum(outcome.n_checkpoint_bytes > 0 for outcome in seat.outcomes)
    assert (stats.n_replays, stats.n_checkpoints) == (n_replays, n_checkpoints)
    assert stats.n_emitted == seat.n_emitted == stats.n_accepted + stats.n_rounds
    assert stats.n_accepted <= stats.n_drafted
    return stats.n_rounds, stats.n_drafted, stats.n_accepted, stats.lengths


@each_kind
@few
@given(request=requests(), data=st.data())
def test_counters_are_those_of_a_memory_that_drops_anything(
    machine: Machine, request: Request, data: st.DataObject
) -> None:
    """A replay is counted once, as what it was: drafts that are decoded again do not count twice."""
    script = ScriptedSpec(tuple(data.draw(st.lists(moves(request.n_vocab), min_size=1, max_size=4))))
    tables = [
        Table([request], [script], machine=replace(each, n_batch=512, n_ubatch=512, n_outputs_max=512))
        for each in (machine, MACHINES["trim"])  # so large that tokens to decode again take no room from drafts
    ]
    for table in tables:
        end(table)
    ours, theirs = tables
    assert counted(ours.seats[0]) == counted(theirs.seats[0])
    for name, stats in ours.chain.stats.items():
        expected = theirs.chain.stats[name]
        assert (stats.n_drafts, stats.n_drafted, stats.n_accepted) == (
            expected.n_drafts,
            expected.n_drafted,
            expected.n_accepted,
        )
        assert (stats.drafted_at, stats.accepted_at) == (expected.drafted_at, expected.accepted_at)


# 10


@each_kind
@few
@given(request=requests(), data=st.data())
def test_limits_cut_the_draft_before_it_is_decoded(machine: Machine, request: Request, data: st.DataObject) -> None:
    n_batch = data.draw(st.integers(1, 24))
    limited = replace(
        machine,
        n_batch=n_batch,
        n_ubatch=data.draw(st.integers(1, n_batch)),
        n_outputs_max=data.draw(st.integers(1, 24)),
    )
    specs: list[DrafterSpec] = [ScriptedSpec((Move(40, (0, 0, 0)), Move(0, (0,) * 40)))]
    table = Table([request], specs, machine=limited)  # the fake target refuses what is over a limit
    end(table)
    for decoded in table.target.decodes:
        assert len(decoded.tokens) <= limited.n_batch
        assert decoded.n_outputs <= limited.n_outputs_max
        assert max(decoded.positions) < request.n_ctx
    for outcome in table.seats[0].outcomes:
        n_emitted = outcome.position + 1 - len(request.prompt)
        assert n_emitted + len(outcome.proposal.draft.tokens) < request.max_tokens
