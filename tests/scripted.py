"""Drafters that do what a script says, and the real ones over fakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from pyspec.config import ContextConfig
from pyspec.drafters import Resources, draft_simple
from pyspec.drafters.draft_simple import DraftSimple
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.draft import Draft, DraftRequest, EvaluatedBatch, Needs, TokenView
from tests.fakes import FakeTarget, Fuse, Logits


@dataclass(frozen=True)
class Move:
    """One answer of a scripted drafter.

    Attributes:
        n_right: How many tokens the target is going to say.
        tail: What follows them: wrong or illegal tokens.
        n_extra_answers: Answers too many, or too few when negative.
    """

    n_right: int = 0
    tail: tuple[Any, ...] = ()
    n_extra_answers: int = 0


class Scripted:
    """Knows the future and answers by a script; insists on the order of calls.

    Args:
        name: Its name.
        futures: Per sequence the tokens of plain decoding, the prompt included. Past their end it says 0.
        moves: Its answers, round and round.
        fuse: Fails at "<name>.begin", "<name>.draft", "<name>.accept", "<name>.discard".

    Attributes:
        committed: Per sequence the committed length as far as it heard of it.
        open: Per sequence the length of a draft that was neither decided nor discarded.
        calls: Names of the calls it got.
    """

    needs = Needs.NOTHING
    n_max = 64

    def __init__(
        self, name: str, futures: Mapping[int, Sequence[int]], moves: Sequence[Move], *, fuse: Fuse | None = None
    ) -> None:
        self.name = name
        self.committed: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.calls: list[str] = []
        self.closed = 0
        self._futures = futures
        self._moves = moves
        self._n_answers = 0
        self._fuse = fuse if fuse is not None else Fuse()

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        self._hear("begin")
        assert list(tokens) == list(self._futures[seq_id][: len(tokens)])
        self.committed[seq_id] = len(tokens)
        self.open.pop(seq_id, None)

    def observe(self, batch: EvaluatedBatch) -> None:
        msg = f"{self.name} needs nothing from the target, so not {batch} either."
        raise AssertionError(msg)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._hear("draft")
        assert len({request.seq_id for request in requests}) == len(requests)
        drafts = [self._answer(request) for request in requests]
        n_extra = self._moves[self._n_answers % len(self._moves)].n_extra_answers if self._moves else 0
        return (drafts + [Draft()] * n_extra)[: len(drafts) + n_extra]

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        n_open = self.open.pop(seq_id, 0)
        if own:
            assert 0 <= n_accepted <= n_open
            self.committed[seq_id] += 1 + n_accepted
        self._hear("accept own" if own else "accept", point="accept")

    def discard(self, seq_id: int) -> None:
        self.open.pop(seq_id, None)
        self._hear("discard")

    def save_state(self, seq_id: int) -> bytes | None:  # noqa: ARG002 - the interface
        return None

    def load_state(self, seq_id: int, state: bytes) -> None:
        pass

    def close(self) -> None:
        self.closed += 1

    def _hear(self, call: str, point: str = "") -> None:
        self.calls.append(call)
        self._fuse.burn(f"{self.name}.{point or call}")

    def _answer(self, request: DraftRequest) -> Draft:
        seq_id, future = request.seq_id, list(self._futures[request.seq_id])
        end = request.position + 1
        assert request.budget >= 1
        assert request.position == len(request.tokens)
        assert [*request.tokens, request.pending] == future[:end]
        assert self.open.get(seq_id, 0) == 0, "a draft was neither decided nor discarded"
        assert request.position >= self.committed[seq_id]
        self.committed[seq_id] = request.position
        move = self._moves[self._n_answers % len(self._moves)]
        self._n_answers += 1
        right = (future[end:] + [0] * move.n_right)[: move.n_right]
        tokens = (*right, *move.tail)
        self.open[seq_id] = min(len(tokens), request.budget)
        return Draft(tokens)


@dataclass
class FakeVocab:
    """A vocabulary for the gate."""

    n_tokens: int
    type: object = "BPE"
    add_bos: bool = False
    add_eos: bool = False
    bos: int | None = None
    eos: int | None = None
    other: Mapping[int, bytes] = field(default_factory=dict)

    def texts(self, first: int, end: int) -> list[bytes]:
        return [self.other.get(token, b"%d" % token) for token in range(first, end)]


def fake_model(name: str, vocab: FakeVocab, *, n_ctx_train: int = 0) -> Any:
    """Return what drafters read of a model."""
    return SimpleNamespace(
        path=Path(name),
        vocab=vocab,
        info=SimpleNamespace(n_ctx_train=n_ctx_train, architecture="llama"),
        is_head=False,
    )


def make_draft_simple(
    target: FakeTarget,
    logits: Logits,
    *,
    n_vocab: int | None = None,
    n_ctx_train: int = 0,
    n_batch: int | None = None,
    kind: RollbackKind = RollbackKind.TRIM,
    fuse: Fuse | None = None,
    **options: Any,
) -> tuple[DraftSimple, FakeTarget]:
    """Return the real draft-simple over a fake draft model, and that model's context."""
    made: list[FakeTarget] = []
    size = n_vocab if n_vocab is not None else target.n_vocab

    def context(_model: Any, config: ContextConfig, *, target: Any) -> FakeTarget:  # noqa: ARG001 - a context's
        made.append(
            FakeTarget(
                logits,
                size,
                n_ctx_seq=config.n_ctx // config.n_seq_max,
                n_batch=n_batch if n_batch is not None else config.n_batch,
                n_ubatch=config.n_ubatch,
                n_outputs_max=config.n_outputs_max,
                n_seq_max=config.n_seq_max,
                kind=kind,
                fuse=fuse if fuse is not None else Fuse(),
            )
        )
        return made[-1]

    resources = Resources(
        fake_model("target.gguf", FakeVocab(target.n_vocab)),
        cast("Any", target),
        fake_model("draft.gguf", FakeVocab(size), n_ctx_train=n_ctx_train),
        n_sequences=target.n_seq_max,
    )
    with mock.patch.object(draft_simple, "Context", context):
        try:
            drafter = DraftSimple(resources=resources, **options)
        except BaseException:
            assert all(each.closed for each in made)
            raise
    return drafter, made[0]
