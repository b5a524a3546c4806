"""Runs recorded from llama.cpp's own implementation: the same plain tokens, and at each position the same draft.

A draft depends on the position and the tokens before it, not on how the rounds were cut. So the recorded rounds are
played again one by one, with their drafts and what was accepted of them; and whole runs of ours, whose rounds are cut
differently (we draft in the first round already), are compared where both drafted at the same position.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec.drafters import Chain, Resources, create
from pyspec.engine.prompt import prefill
from pyspec.speculation import DraftRequest, Ending, MatchRule, Outcome, RoundBatch, Sequence, run_round

FOLDER = Path(__file__).parents[1] / "data/golden/model"
FILES = sorted(path.stem for path in FOLDER.glob("*.json"))
SPECULATIVE = [name for name in FILES if name.startswith(("llama+", "swa+", "mtp-chain+"))]
OPTIONS = {
    "draft-simple": {"draft_n_max": "n_max", "draft_n_min": "n_min", "draft_p_min": "p_min"},
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
        self.draft_model = self.case["draft_model"].removesuffix(".gguf")

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
        resources = Resources(context.model, context, open_zoo(golden.draft_model), n_sequences=len(golden.prompts))
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


@pytest.mark.parametrize("name", SPECULATIVE)
def test_the_recorded_rounds_have_the_recorded_drafts(
    name: str, open_zoo: Callable[[str], pyspec.Model], make_chain: Callable[[Golden, pyspec.Context], Chain]
) -> None:
    golden = Golden(name)
    with pyspec.Context(open_zoo(golden.target), golden.config) as context:
        chain = make_chain(golden, context)
        texts = [prompt + emitted for prompt, emitted in zip(golden.prompts, golden.tokens, strict=True)]
        for seq_id, prompt in enumerate(golden.prompts):
            chain.begin(seq_id, prompt[:-1])
        for played in golden.rounds:
            seq_id, position = played["seq"], played["pos"]
            n_emitted = position + 1 - len(golden.prompts[seq_id])
            budget = golden.n_predict - n_emitted - 1
            if n_emitted == 0 or budget < 1:
                continue
            tokens = texts[seq_id][:position]
            (proposal,) = chain.propose([DraftRequest(seq_id, tokens, played["pending"], position, budget)])
            assert (proposal.drafter, list(proposal.draft.tokens)) == (played["drafter"], played["draft"]), position
            if proposal.draft.tokens:
                chain.accept(seq_id, proposal, played["accepted"])


def play(golden: Golden, context: pyspec.Context, chain: Chain) -> tuple[list[list[int]], list[Outcome]]:
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
        prefill(context, sequence.history, sequence.seq_id)
        chain.begin(sequence.seq_id, sequence.history)
    emitted: list[list[int]] = [[] for _ in sequences]
    played: list[Outcome] = []
    running = list(sequences)
    while running:
        outcomes = run_round(RoundBatch(running), chain, context, MatchRule())
        for outcome in outcomes:
            emitted[outcome.seq_id] += outcome.emitted
        played += outcomes
        running = [sequence for sequence, outcome in zip(running, outcomes, strict=True) if outcome.finish is None]
    for sequence in sequences:
        assert context.memory.length(sequence.seq_id) == sequence.n_committed
    return emitted, played


@pytest.mark.parametrize("name", SPECULATIVE)
def test_whole_runs_agree(
    name: str, open_zoo: Callable[[str], pyspec.Model], make_chain: Callable[[Golden, pyspec.Context], Chain]
) -> None:
    golden = Golden(name)
    with pyspec.Context(open_zoo(golden.target), golden.config) as context:
        emitted, played = play(golden, context, make_chain(golden, context))
    assert emitted == golden.tokens == golden.plain_tokens
    expected = golden.expected_drafts()
    compared = 0
    for outcome in played:
        key = (outcome.seq_id, outcome.position)
        n_left = golden.n_predict - (outcome.position + 1 - len(golden.prompts[outcome.seq_id]))
        if key in expected and n_left > 1:
            assert (outcome.proposal.drafter, list(outcome.proposal.draft.tokens)) == expected[key], key
            compared += 1
    assert compared >= 3, "hardly any position in common"
