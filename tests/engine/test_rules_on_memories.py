"""Every rule on every kind of real memory, with drafts of which half is wrong: the output is that of plain decoding.

Twice over: the rows that decided are those of the same widths without speculation, bit for bit, and deciding each of
them alone gives the same tokens; and the tokens are those of plain decoding, one by one, but for explained ties. Only
where drawn drafts have a say, under the rule "rejection", it is decided again with the same drafts, by hand.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import Batch, Finish, Result, SamplingConfig, Speculation
from pyspec.speculation import Draft, Sequence
from pyspec.speculation.noise import Stream, uniform
from pyspec.speculation.rules import make_rule
from tests.engine.test_engine_native import same_or_tied
from tests.pairs import LONG, OpenZoo, check_statistics
from tests.pulled import PulledEngine
from tests.real_memories import MEMORIES, NEVER_SAID, Asked, Decoded, RealMemory, Recorder, at_context
from tests.scripted import Move, Scripted

PlainRun = Callable[[str, str], Result]
Choose = Callable[[Sequence, pyspec.Rows, int, Draft], int]
"""Returns what row i becomes, given the draft, and lets the sequence's sampler take it in."""

N_TOKENS = 200
SEEDED = SamplingConfig(temperature=2.0, top_k=0, top_p=1.0, seed=17)
CASES = {
    "match": ("match", SamplingConfig()),
    "match with a seed": ("match", SEEDED),
    "rejection": ("rejection", SEEDED),
    "coupled": ("coupled", SEEDED),
}


def asked(kind: str, case: str, n_tokens: int = N_TOKENS) -> Asked:
    return Asked(tuple((LONG * 10)[: MEMORIES[kind].n_prompt]), n_tokens, *CASES[case])


@pytest.fixture(scope="module")
def plain_run(open_zoo: OpenZoo) -> PlainRun:
    """Decode plainly, each kind of memory and each case once."""

    @functools.cache
    def run(kind: str, case: str) -> Result:
        with MEMORIES[kind].engine(open_zoo) as engine:
            plain = asked(kind, case).generate(engine)
        assert (plain.stats.n_checkpoints, plain.stats.n_replays) == (0, 0)
        return plain

    return run


def half_wrong(future: list[int]) -> Scripted:
    """Return a drafter each of whose drafts goes wrong somewhere."""
    chance = random.Random(4)  # noqa: S311 - no secret
    moves = [Move(chance.randrange(4), (NEVER_SAID,) * chance.randint(1, 3)) for _ in range(53)]
    return Scripted("half-wrong", {0: future}, moves)


# The same again without speculation


class Again:
    """Decodes what a generation emitted once more, in the recorded widths and with other rejected tokens.

    Args:
        context: A fresh one, of the same kind.
        asked: The request.
        tokens: What the generation gave.
    """

    def __init__(self, context: pyspec.Context, asked: Asked, tokens: SequenceOf[int]) -> None:
        self._context, self._sequence = context, asked.sequence(context)
        self._history = [*asked.prompt, *tokens]
        self._n_prompt = len(asked.prompt)

    def decide(self, recorder: Recorder, choose: Choose) -> list[int]:
        """Return what is decided; every row that decided must be the recorded one, bit for bit.

        Args:
            recorder: Who followed the generation.
            choose: Decides.
        """
        memory, checkpoint, sequence = self._context.memory, None, self._sequence
        decodes = iter(recorder.decodes)
        for outcome in recorder.outcomes:
            decoded = next(decodes)
            while not len(decoded.rows):  # the prompt, or many tokens that were decided since a checkpoint
                self._decode(decoded, decoded.n_entries)
                decoded = next(decodes)
            if outcome.n_checkpoint_bytes:
                checkpoint = memory.checkpoint(0)
            length = outcome.position + 1 + outcome.n_accepted
            rows = self._decode(decoded, length - decoded.first)
            for i in range(outcome.n_accepted + 1):
                np.testing.assert_array_equal(rows.logits(i), decoded.rows[i])
                sequence.commit((choose(sequence, rows, i, outcome.proposal.draft),))
            if outcome.rollback == "replay":
                memory.restore(0, checkpoint)  # type: ignore[arg-type]
            elif outcome.rollback != "none":
                memory.trim(0, length)
        assert next(decodes, None) is None
        return [*sequence.history, sequence.pending][self._n_prompt :]

    def _decode(self, decoded: Decoded, n_true: int) -> pyspec.Rows:
        """Decode so many tokens of the history, and others up to the recorded width."""
        tokens = self._history[decoded.first :][:n_true] + [NEVER_SAID + 1] * (decoded.n_entries - n_true)
        n_silent, batch = decoded.n_entries - len(decoded.rows), Batch()
        for i, token in enumerate(tokens):
            batch.add(token, decoded.first + i, 0, output=i >= n_silent)
        return self._context.decode(batch)


def alone(rule: str) -> Choose:
    """Return what lets a rule decide about each row alone, as without speculation."""
    made = make_rule(rule)
    return lambda sequence, rows, i, _draft: made.accept(Draft(), rows[i : i + 1], sequence).emitted[0]


def by_hand(sequence: Sequence, rows: pyspec.Rows, i: int, draft: Draft) -> int:
    """Decide about a drawn draft token as the rule "rejection" says, from the target's and draft's distributions."""
    sampler: Any = sequence.sampler
    target = shares(*sampler.distribution(rows, i))
    draw = functools.partial(uniform, sequence.seed or 0, sequence.n_committed + 1)
    if i < len(draft.tokens):
        assert draft.probs is not None
        token, drawn_from = draft.tokens[i], shares(draft.probs[i].tokens, draft.probs[i].probs)
        if draw(Stream.ACCEPT) >= min(1.0, target.get(token, 0.0) / drawn_from[token]):
            token = fallen_on(draw(Stream.RESIDUAL), {x: p - drawn_from.get(x, 0.0) for x, p in target.items()})
    else:
        token = fallen_on(draw(Stream.CHOICE), target)
    sampler.accept(token)
    return token


def shares(tokens: Any, probs: Any) -> dict[int, float]:
    return dict(zip(tokens.tolist(), probs.tolist(), strict=True))


def fallen_on(number: float, weights: dict[int, float]) -> int:
    """Return the token that a number in [0, 1) falls on; negative weights count as none."""
    left = number * sum(weight for weight in weights.values() if weight > 0.0)
    token = -1
    for token, weight in weights.items():  # noqa: B007 - rounding may leave the last one
        left -= max(0.0, weight)
        if left < 0.0:
            break
    return token


# What must hold


def check_run(memory: RealMemory, engine: PulledEngine, recorder: Recorder, result: Result) -> None:
    """It is whole, its counters add up, and memory ends at the committed length."""
    assert (len(result.tokens), result.finish) == (N_TOKENS, Finish.LENGTH)
    check_statistics([result.stats], result.drafters)
    n_committed = len(result.prompt_tokens) + N_TOKENS - 1
    n_held = at_context(engine, lambda context: context.memory.length(0))
    last = recorder.outcomes[-1]
    assert n_held < n_committed if last.rollback == "replay" else n_held == n_committed
    ways = [outcome.rollback for outcome in recorder.outcomes]
    assert {*ways} - {"none"} == memory.ways
    assert result.stats.n_replays == ways.count("replay")
    restores = "replay" in memory.ways
    assert (result.stats.n_checkpoints > 0, result.stats.n_checkpoint_bytes > 0) == (restores, restores)
    assert result.stats.n_checkpoints <= result.stats.n_rounds


def check_as_plain(plain: Result, other: Result, near: float) -> None:
    """Require equal tokens up to a tie, and rows and log-probabilities that are the same but for rounding."""
    same_or_tied(plain, other)
    for ours, theirs in zip(plain.top, other.top, strict=True):
        found = dict(theirs)
        assert all(abs(logit - found[token]) < near for token, logit in ours if token in found)
    assert np.abs(np.subtract(plain.logprobs, other.logprobs)).max() < near


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", MEMORIES)
def test_half_wrong_drafts_change_nothing(kind: str, case: str, open_zoo: OpenZoo, plain_run: PlainRun) -> None:
    memory, request, plain, recorder = MEMORIES[kind], asked(kind, case), plain_run(kind, case), Recorder()
    with memory.engine(open_zoo, half_wrong([*request.prompt, *plain.tokens])) as engine:
        with recorder.watching(engine.context):
            result = request.generate(engine, recorder)
        check_run(memory, engine, recorder, result)
    check_as_plain(plain, result, memory.near)
    with memory.open(open_zoo) as context:
        assert Again(context, request, result.tokens).decide(recorder, alone(request.rule)) == result.tokens
    assert 0.3 < result.stats.acceptance < 0.6
    assert all(len(outcome.proposal.draft.tokens) > outcome.n_accepted for outcome in recorder.outcomes[:-1])


@pytest.mark.parametrize(("case", "drawing"), [("rejection", "probabilistic"), ("coupled", "coupled")])
@pytest.mark.parametrize("kind", MEMORIES)
def test_drafts_that_are_drawn(kind: str, case: str, drawing: str, open_zoo: OpenZoo, plain_run: PlainRun) -> None:
    memory, request, plain, recorder = MEMORIES[kind], asked(kind, case), plain_run(kind, case), Recorder()
    options = {"draft-simple": {"sampling": drawing, "n_max": 5, "n_threads": 1}}
    speculation = Speculation("draft-simple", open_zoo("draft-llama"), options, n_snapshots=0)
    with PulledEngine(open_zoo(memory.target), speculation=speculation, context=memory.sizes()) as engine:
        with recorder.watching(engine.context):
            result = request.generate(engine, recorder)
        check_run(memory, engine, recorder, result)
        engine.place.scheduler.slots[0].forget()  # what is kept of a window lies elsewhere, and rounds otherwise
        again = request.generate(engine)
        assert (again.tokens, again.top) == (result.tokens, result.top), "something was left behind"
    if case == "coupled":
        check_as_plain(plain, result, memory.near)
    choose = by_hand if case == "rejection" else alone(request.rule)
    with memory.open(open_zoo) as context:
        assert Again(context, request, result.tokens).decide(recorder, choose) == result.tokens
    assert 0.2 < result.stats.acceptance < 0.9
