"""Random targets, requests and drafters."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from pyspec.llama.memory import RollbackKind
from tests.fakes import Fuse, HashLogits
from tests.playing import DrafterSpec, DraftModelSpec, Machine, NgramSpec, ScriptedSpec, SuffixSpec, Table
from tests.reference import Request
from tests.scripted import Move

PIECES = (b"a", b"b", b"ab", b"\xc3", b"\xa9", b"", b"\xf0\x9f", b"\x98\x80", b"ba", b"\xff", b"c")
STOPS = (b"ab", b"ba", b"aba", "é".encode(), b"c", "😀".encode(), b"aab", b"bc")

seeds = st.integers(0, 2**16)


@st.composite
def moves(draw: st.DrawFn, n_vocab: int) -> Move:
    """Right, wrong, empty, too long, half right; the tail may hold tokens that end a generation."""
    n_right = draw(st.sampled_from((0, 0, 1, 2, 3, 5, 40)))
    tail = draw(st.lists(st.integers(0, n_vocab - 1), max_size=3))
    return Move(n_right, tuple(tail))


def drafter_specs(n_vocab: int, n_ctx: int) -> st.SearchStrategy[DrafterSpec]:
    """A drafter of any sort."""
    draft_models = st.builds(
        HashLogits, seeds, st.just(n_vocab), st.sampled_from((1, 2, None)), st.sampled_from((2, 64))
    )
    return st.one_of(
        st.builds(ScriptedSpec, st.lists(moves(n_vocab), min_size=1, max_size=4).map(tuple)),
        st.builds(NgramSpec, st.integers(1, 3), st.integers(1, 6)),
        st.builds(SuffixSpec, st.integers(1, 3), st.integers(1, 6), st.booleans()),
        st.builds(
            DraftModelSpec,
            st.one_of(st.none(), draft_models),
            n_max=st.integers(1, 6),
            n_min=st.integers(0, 2),
            p_min=st.sampled_from((0.0, 0.0, 0.3)),
            n_ctx=st.one_of(st.just(0), st.integers(1, n_ctx + 2)),
            n_batch=st.sampled_from((None, 4, 5)),
            kind=st.sampled_from((RollbackKind.TRIM, RollbackKind.TRIM, RollbackKind.WHOLE)),
        ),
    )


@st.composite
def chains(draw: st.DrawFn, n_vocab: int, n_ctx: int) -> tuple[DrafterSpec, ...]:
    """Up to three drafters, of the real ones at most one each."""
    found: list[DrafterSpec] = []
    for spec in draw(st.lists(drafter_specs(n_vocab, n_ctx), max_size=3)):
        taken = {type(each) for each in found} - {ScriptedSpec}
        if type(spec) not in taken:
            found.append(spec)
    return tuple(found)


@st.composite
def requests(draw: st.DrawFn, *, seeded: bool | None = None) -> Request:
    """A request to a random target; with ``seeded`` None it may or may not draw."""
    n_vocab = draw(st.integers(2, len(PIECES)))
    n_ctx = draw(st.integers(4, 48))
    logits = HashLogits(
        draw(seeds), n_vocab, order=draw(st.sampled_from((1, 2, 3, None))), levels=draw(st.sampled_from((2, 5, 64)))
    )
    has_seed = seeded if seeded is not None else draw(st.booleans())
    shuffled = draw(st.permutations(PIECES))
    return Request(
        logits,
        n_vocab,
        draw(prompts(n_vocab, n_ctx)),
        max_tokens=draw(max_tokens()),
        n_ctx=n_ctx,
        eog=draw(st.sampled_from((frozenset(), frozenset({0}), frozenset({n_vocab - 1})))),
        stops=tuple(draw(st.lists(st.sampled_from(STOPS), max_size=2, unique=True))),
        pieces=dict(enumerate(shuffled[:n_vocab])),
        seed=draw(seeds) if has_seed else None,
        penalty=draw(st.sampled_from((0.0, 0.7))),
        banned=draw(st.sampled_from((frozenset(), frozenset(), frozenset({1})))),
    )


def prompts(n_vocab: int, n_ctx: int) -> st.SearchStrategy[tuple[int, ...]]:
    """One token to a full context."""
    tokens = st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=n_ctx)
    return st.one_of(tokens, st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=3)).map(tuple)


def max_tokens() -> st.SearchStrategy[int]:
    """Few tokens, or more than the context holds."""
    return st.one_of(st.integers(0, 3), st.integers(4, 30), st.just(2**31 - 1))


@st.composite
def request_groups(draw: st.DrawFn) -> list[Request]:
    """One to three requests to the same target, each with its own prompt, end and seed."""
    first = draw(requests())
    others = st.builds(
        functools.partial(replace, first),
        prompt=prompts(first.n_vocab, first.n_ctx),
        max_tokens=max_tokens(),
        seed=st.one_of(st.none(), seeds),
        penalty=st.sampled_from((0.0, 0.7)),
    )
    return [first, *draw(st.lists(others, max_size=2))]


@st.composite
def machines(draw: st.DrawFn, n_sequences: int, n_seq_max: int) -> Machine:
    """Batches that hold at least the pending tokens."""
    n_batch = draw(st.integers(n_sequences, 24))
    return Machine(
        n_batch=n_batch,
        n_ubatch=draw(st.integers(1, n_batch)),
        n_outputs_max=draw(st.integers(n_sequences, 24)),
        n_seq_max=n_seq_max,
        kind=draw(st.sampled_from((RollbackKind.TRIM, RollbackKind.BOUNDED, RollbackKind.WHOLE))),
        n_snapshots=draw(st.integers(0, 6)),
        consecutive=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Setting:
    """Everything a table is set with."""

    requests: list[Request]
    drafters: tuple[DrafterSpec, ...]
    machine: Machine
    seq_ids: tuple[int, ...]

    def table(
        self, fuse: Fuse | None = None, draft_fuse: Fuse | None = None, costs: Mapping[int, float] | None = None
    ) -> Table:
        return Table(
            self.requests,
            self.drafters,
            machine=self.machine,
            seq_ids=self.seq_ids,
            fuse=fuse,
            draft_fuse=draft_fuse,
            costs=costs,
        )


@st.composite
def table_settings(draw: st.DrawFn, n_seq_max: int = 4) -> Setting:
    """One to three requests in any slots, any drafters, any limits."""
    group = draw(request_groups())
    seq_ids = tuple(draw(st.permutations(range(n_seq_max)))[: len(group)])
    drafters = draw(chains(group[0].n_vocab, group[0].n_ctx))
    return Setting(group, drafters, draw(machines(len(group), n_seq_max)), seq_ids)
