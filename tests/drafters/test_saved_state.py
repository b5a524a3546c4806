"""A drafter whose state was saved and loaded drafts on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec.drafters import Chain, Resources, create
from pyspec.drafters.saved import pack, unpack
from pyspec.errors import StateError
from pyspec.llama.batch import Batch
from pyspec.speculation import Ending, MatchRule, Outcome, RoundBatch, Sequence, run_round
from pyspec.speculation.verify import catch_up
from tests.helpers import PROMPT

OpenZoo = Callable[[str], pyspec.Model]
PAIRS = [
    ("draft-simple", "target-llama", "draft-llama"),
    ("draft-simple", "target-llama", "draft-mamba"),
    ("draft-eagle3", "target-llama", "draft-eagle3"),
    ("draft-mtp", "target-mtp", None),
    ("draft-mtp", "target-mtp-chain", None),
    ("draft-dflash", "target-llama", "draft-dflash"),
    ("draft-dflash", "target-llama", "draft-dflash2"),
    ("draft-dspark", "target-llama", "draft-dspark"),
    ("ngram-map-k", "target-llama", None),
]


def make_chain(name: str, context: pyspec.Context, draft: pyspec.Model | None) -> Chain:
    assert context.memory.rollback is not pyspec.RollbackKind.NONE
    resources = Resources(context.model, context, draft, n_sequences=context.n_seq_max)
    options: dict[str, Any] = {} if draft is None and name != "draft-mtp" else {"n_threads": 1}
    return Chain([create(name, resources=resources, **options)])


def play(chain: Chain, context: pyspec.Context, sequence: Sequence, n_rounds: int) -> list[Outcome]:
    rule, batch = MatchRule(), RoundBatch([sequence])
    return [run_round(batch, chain, context, rule)[0] for _ in range(n_rounds)]


def seen(outcomes: list[Outcome]) -> list[Any]:
    return [(outcome.position, outcome.proposal.draft.tokens, outcome.emitted) for outcome in outcomes]


@pytest.mark.parametrize(("name", "target", "draft"), PAIRS)
def test_drafting_goes_on_after_a_load(open_zoo: OpenZoo, name: str, target: str, draft: str | None) -> None:
    """Saved in one chain, loaded into another one on the same target: its drafts are those of the first."""
    draft_model = open_zoo(draft) if draft else None
    config = pyspec.ContextConfig(n_ctx=512, n_ubatch=16, n_batch=64, n_seq_max=2, n_rs_seq=3, n_threads=1)
    with pyspec.Context(open_zoo(target), config) as context:
        chain = make_chain(name, context, draft_model)
        ending = Ending(max_tokens=10**6)
        sequence = Sequence(1, list(PROMPT[:-1]), PROMPT[-1], pyspec.GreedySampler(), ending)
        chain.begin(1, sequence.history)
        sequence.lag = sequence.n_committed
        catch_up(context, Batch(), sequence, chain)
        play(chain, context, sequence, 5)
        states, history, pending = chain.save_state(1), list(sequence.history), sequence.pending
        saved = pyspec.State.save(context, 1) if sequence.lag == 0 else None
        expected = play(chain, context, sequence, 8)
        chain.close()
        if saved is None:
            return
        context.memory.clear()  # the kind of its memory is known, so it need not be probed again
        other = make_chain(name, context, draft_model)
        saved.restore(context, 1)
        again = Sequence(1, history, pending, pyspec.GreedySampler(), Ending(max_tokens=10**6))
        other.load_state(1, history, states)
        assert seen(play(other, context, again, 8)) == seen(expected)
        assert name == "ngram-map-k" or any(outcome.n_accepted for outcome in expected)
        other.close()


def test_a_damaged_state_is_an_error(open_zoo: OpenZoo) -> None:
    config = pyspec.ContextConfig(n_ctx=128, n_threads=1)
    with pyspec.Context(open_zoo("target-llama"), config) as context:
        chain = make_chain("draft-eagle3", context, open_zoo("draft-eagle3"))
        sequence = Sequence(0, list(PROMPT[:-1]), PROMPT[-1], pyspec.GreedySampler(), Ending(max_tokens=99))
        chain.begin(0, sequence.history)
        sequence.lag = sequence.n_committed
        catch_up(context, Batch(), sequence, chain)
        play(chain, context, sequence, 2)
        state = chain.save_state(0)["draft-eagle3"]
        middle = len(state) // 2
        flipped = bytes([state[middle] ^ 255])
        for damaged in (b"", b"nonsense", state[:middle], state[:middle] + flipped + state[middle + 1 :]):
            with pytest.raises(StateError):
                chain.load_state(0, sequence.history, {"draft-eagle3": damaged})
        with pytest.raises(StateError, match="lacks rows"):
            chain.load_state(0, sequence.history, {"draft-eagle3": pack(first=0)})
        chain.close()


def test_packed_parts_come_back() -> None:
    parts = unpack(pack(rows=np.eye(3), name=np.array("x")), "rows")
    np.testing.assert_array_equal(parts["rows"], np.eye(3))
    assert str(parts["name"]) == "x"
