"""Runs recorded from llama.cpp's own implementation: the same plain tokens, and at each position the same draft.

A draft depends on the position and the tokens before it, not on how the rounds were cut. So once we draft only where
the recorded run did, which must give each of its drafts; and once as we like (in the first round already, and without
a pass of its own after a restored checkpoint), which must give its tokens.

All recorded runs are played where ``PYSPEC_GOLDEN`` names their folder; the tests have a selection.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec.drafters import Chain, Resources, create
from pyspec.llama.batch import Batch
from pyspec.speculation import (
    NO_DRAFT,
    DraftRequest,
    Ending,
    MatchRule,
    Outcome,
    Proposal,
    Proposer,
    RoundBatch,
    Sequence,
    run_round,
)
from pyspec.speculation.verify import catch_up

FOLDER = Path(os.environ.get("PYSPEC_GOLDEN") or Path(__file__).parents[1] / "data/golden/model")
FILES = sorted(path.stem for path in FOLDER.glob("*.json"))
DRAFT = {"draft_n_max": "n_max", "draft_n_min": "n_min", "draft_p_min": "p_min"}
OPTIONS = {
    **dict.fromkeys(("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"), DRAFT),
    "ngram-simple": {"size_n": "size_n", "size_m": "size_m"},
}


class Golden:
    """One recorded run."""

    def __init__(self, name: str) -> None:
        content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        self.case = content["case"]
        self.rounds = content["rounds"]
        self.prompts = self.case.get("prompts") or [self.case["prompt_tokens"]]
        self.tokens = [end["tokens"] for end in content["end"]]
        self.plain_tokens = [end["plain_tokens"] for end in content["end"]]
        self.n_predict = self.case["n_predict"]
        self.target = self.case["model"].removesuffix(".gguf")
        draft_model = self.case.get("draft_model")
        self.draft_model = draft_model and draft_model.removesuffix(".gguf")
        self.n_snapshots = content["run"]["n_rs_seq"]

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """Options per drafter of the run."""
        params = self.case["params"]
        return {
            drafter: {ours: params[theirs] for theirs, ours in OPTIONS[drafter].items() if theirs in params}
            for drafter in self.case["types"]
        }

    @property
    def config(self) -> pyspec.ContextConfig:
        return pyspec.ContextConfig(
            n_ctx=self.case["n_ctx"],
            n_batch=512,
            n_ubatch=self.case["n_ubatch"],
            n_seq_max=len(self.prompts),
            n_rs_seq=self.n_snapshots,
            n_threads=1,
        )

    def expected_drafts(self) -> dict[tuple[int, int], tuple[str | None, list[int]]]:
        """Drafter and draft by (sequence, position), leaving out the first rounds, which never draft there."""
        first = {seq_id: len(prompt) - 1 for seq_id, prompt in enumerate(self.prompts)}
        return {
            (played["seq"], played["pos"]): (played["drafter"], played["draft"])
            for played in self.rounds
            if played["pos"] != first[played["seq"]]
        }


@pytest.fixture
def make_chain(open_zoo: Callable[[str], pyspec.Model]) -> Iterator[Callable[[Golden, pyspec.Context], Chain]]:
    made: list[Chain] = []

    def make(golden: Golden, context: pyspec.Context) -> Chain:
        assert context.memory.rollback is not pyspec.RollbackKind.NONE
        draft_model = open_zoo(golden.draft_model) if golden.draft_model else None
        resources = Resources(context.model, context, draft_model, n_sequences=len(golden.prompts))
        made.append(Chain([create(name, resources=resources, **options) for name, options in golden.options.items()]))
        return made[-1]

    yield make
    for chain in made:
        chain.close()


@pytest.mark.parametrize("name", FILES)
def test_plain_tokens_are_the_recorded_ones(name: str, open_zoo: Callable[[str], pyspec.Model]) -> None:
    golden = Golden(name)
    with pyspec.Engine(
        open_zoo(golden.target), context=pyspec.ContextConfig(n_ctx=512, n_ubatch=16, n_threads=1)
    ) as engine:
        for prompt, expected in zip(golden.prompts, golden.plain_tokens, strict=True):
            assert engine.generate(prompt, max_tokens=golden.n_predict).tokens == expected


class Replayed:
    """Asks a chain at the positions at which the recorded run drafted, and compares; elsewhere there is no draft."""

    def __init__(self, chain: Chain, golden: Golden) -> None:
        self.n_max = chain.n_max
        self.needs = chain.needs
        self.observe, self.accept, self.discard = chain.observe, chain.accept, chain.discard
        self.played = chain.played
        self.missing = golden.expected_drafts()
        self._chain = chain

    def rest(self, _seq_ids: SequenceOf[int], _n_entries: int) -> None:
        """Never."""

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        due = [request for request in requests if (request.seq_id, request.position) in self.missing]
        proposals = dict.fromkeys((request.seq_id for request in requests), NO_DRAFT)
        for request, proposal in zip(due, self._chain.propose(due), strict=True):
            expected = self.missing.pop((request.seq_id, request.position))
            assert (proposal.drafter, list(proposal.draft.tokens)) == expected, (request.seq_id, request.position)
            proposals[request.seq_id] = proposal
        return [proposals[request.seq_id] for request in requests]


@pytest.mark.parametrize("name", FILES)
def test_every_recorded_draft_is_ours(
    name: str, open_zoo: Callable[[str], pyspec.Model], make_chain: Callable[[Golden, pyspec.Context], Chain]
) -> None:
    golden = Golden(name)
    with pyspec.Context(open_zoo(golden.target), golden.config) as context:
        chain = make_chain(golden, context)
        replayed = Replayed(chain, golden)
        emitted, played = play(golden, context, replayed, chain)
    assert emitted == golden.tokens == golden.plain_tokens
    assert {draft for _, draft in replayed.missing.values() if draft} == set()
    recorded = sum(bool(draft) for _, draft in golden.expected_drafts().values())
    assert sum(bool(outcome.proposal.draft.tokens) for outcome in played) == recorded > 0


def play(
    golden: Golden, context: pyspec.Context, proposer: Proposer, chain: Chain
) -> tuple[list[list[int]], list[Outcome]]:
    """Play whole runs of all sequences together; return their tokens and every outcome."""
    eog = context.model.vocab.eog
    sequences = [
        Sequence(
            seq_id=seq_id,
            history=prompt[:-1],
            pending=prompt[-1],
            sampler=pyspec.GreedySampler(),
            ending=Ending(eog=eog, max_tokens=golden.n_predict),
        )
        for seq_id, prompt in enumerate(golden.prompts)
    ]
    for sequence in sequences:
        chain.begin(sequence.seq_id, sequence.history)
        sequence.lag = sequence.n_committed
        catch_up(context, Batch(), sequence, proposer)
    emitted: list[list[int]] = [[] for _ in sequences]
    played: list[Outcome] = []
    running = list(sequences)
    while running:
        outcomes = run_round(RoundBatch(running), proposer, context, MatchRule())
        for outcome in outcomes:
            emitted[outcome.seq_id] += outcome.emitted
        played += outcomes
        running = [sequence for sequence, outcome in zip(running, outcomes, strict=True) if outcome.finish is None]
    for sequence in sequences:
        assert context.memory.length(sequence.seq_id) == sequence.n_committed - sequence.lag
    return emitted, played


@pytest.mark.parametrize("name", FILES)
def test_whole_runs_of_ours_give_the_recorded_tokens(
    name: str, open_zoo: Callable[[str], pyspec.Model], make_chain: Callable[[Golden, pyspec.Context], Chain]
) -> None:
    golden = Golden(name)
    with pyspec.Context(open_zoo(golden.target), golden.config) as context:
        chain = make_chain(golden, context)
        emitted, played = play(golden, context, chain, chain)
    assert emitted == golden.tokens
    expected = golden.expected_drafts()
    for outcome in played:
        key = (outcome.seq_id, outcome.position)
        n_left = golden.n_predict - (outcome.position + 1 - len(golden.prompts[outcome.seq_id]))
        if key in expected and n_left > 1:
            assert (outcome.proposal.drafter, list(outcome.proposal.draft.tokens)) == expected[key], key
