"""Whatever happens in a round, everything ends at the committed length and can go on from there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.errors import DrafterError, RollbackError, SpeculationError, StalledError
from pyspec.llama.batch import Batch
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import Draft, MatchRule, RoundBatch, Sequence, Verdict, run_round
from pyspec.speculation.rollback import RollbackPoint
from tests.fakes import Fuse, HashLogits, InjectedError
from tests.playing import DrafterSpec, DraftModelSpec, Machine, NgramSpec, ScriptedSpec, Table
from tests.reference import Request
from tests.scripted import Move
from tests.strategies import Setting, table_settings

ERRORS = (InjectedError, KeyboardInterrupt)


def small_table(fuse: Fuse | None = None, draft_fuse: Fuse | None = None, machine: Machine | None = None) -> Table:
    """Two sequences, three drafters that are all used, partial and full acceptance."""
    logits = HashLogits(3, 8, order=2)
    pieces = {token: b"%d" % token for token in range(8)}
    group = [
        Request(logits, 8, (1, 2, 3), max_tokens=14, pieces=pieces),
        Request(logits, 8, (5,), max_tokens=11, pieces=pieces, seed=4, penalty=0.5),
    ]
    specs: list[DrafterSpec] = [
        ScriptedSpec((Move(), Move(2, (0,)), Move(3), Move())),
        NgramSpec(1, 3),
        DraftModelSpec(HashLogits(4, 8, order=2), n_max=3),
    ]
    return Table(group, specs, machine=machine or Machine(n_seq_max=2), fuse=fuse, draft_fuse=draft_fuse)


def passes(counts: dict[str, int]) -> list[tuple[str, int]]:
    return [(point, at) for point, count in sorted(counts.items()) for at in range(count)]


def all_passes() -> list[tuple[bool, str, int]]:
    """Every step of the small table at which something may raise, on the target's and on the draft model's side."""
    table = small_table()
    table.begin()
    table.play()
    table.check_end()
    own = [(False, point, at) for point, at in passes(table.fuse.counts)]
    return own + [(True, point, at) for point, at in passes(table.draft_fuse.counts)]


def fail_once_and_go_on(table: Table, error: type[BaseException], *, draft_trim_fails: bool) -> None:
    """Play until the fuse blows; everything must be settled; then play on to the end of plain decoding."""
    table.begin()
    with contextlib.suppress(error):
        table.play()
    table.check(draft_memory=not draft_trim_fails)  # which is trimmed when the draft model is asked or told again
    table.play(lambda: table.check(draft_memory=not draft_trim_fails))
    for seat in table.seats:
        assert seat.emitted == seat.plain.tokens


@pytest.mark.parametrize("error", ERRORS)
def test_a_round_that_raises_leaves_the_committed_length(error: type[BaseException]) -> None:
    steps = all_passes()
    points = {point for _, point, _ in steps}
    expected = {"decode", "half-decoded", "decoded", "trim", "trimmed", "save", "sample", "sampled"}
    assert expected | {"scripted-0.draft", "scripted-0.accept"} <= points
    for on_draft_side, point, at in steps:
        fuse = Fuse(point, at, error)
        table = small_table(None, fuse) if on_draft_side else small_table(fuse)
        fail_once_and_go_on(table, error, draft_trim_fails=on_draft_side and point in ("trim", "restore"))


@settings(max_examples=150)
@given(setting=table_settings(), on_draft_side=st.booleans(), error=st.sampled_from(ERRORS), data=st.data())
def test_any_round_that_raises_leaves_the_committed_length(
    setting: Setting, *, on_draft_side: bool, error: type[BaseException], data: st.DataObject
) -> None:
    rehearsal = setting.table()
    rehearsal.begin()
    rehearsal.play()
    steps = passes(rehearsal.draft_fuse.counts if on_draft_side else rehearsal.fuse.counts)
    point, at = data.draw(st.sampled_from(steps or [("nothing", 0)]))
    fuse = Fuse(point, at, error)
    table = setting.table(None, fuse) if on_draft_side else setting.table(fuse)
    fail_once_and_go_on(table, error, draft_trim_fails=on_draft_side and point in ("trim", "restore"))


@pytest.mark.parametrize("tail", [(8,), (-1,), ("x",), (1.5,), (None,)])
def test_a_token_that_does_not_exist_is_the_drafters_fault(tail: tuple[object, ...]) -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=20)
    table = Table([request], [ScriptedSpec((Move(1), Move(1, tail)))])
    table.begin()
    with pytest.raises(DrafterError, match=r"scripted-0 proposed .*(0 to 7|token ids)"):
        table.play()
    table.check()


@pytest.mark.parametrize("n_extra", [-1, 1])
def test_a_wrong_number_of_answers_is_the_drafters_fault(n_extra: int) -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=20)
    table = Table([request, request], [ScriptedSpec((Move(1, n_extra_answers=n_extra),))])
    table.begin()
    with pytest.raises(DrafterError, match="scripted-0 answered"):
        table.play()


def test_a_sequence_that_was_kept_stays_kept_when_the_next_one_fails() -> None:
    group = [Request(HashLogits(3, 8), 8, (1, 2), max_tokens=20), Request(HashLogits(3, 8), 8, (4,), max_tokens=20)]
    fuse = Fuse("trim", 1)
    table = Table(group, [ScriptedSpec((Move(1, (0, 0)),))], fuse=fuse)
    table.begin()
    first, second = table.seats
    before = (0, 0)
    while fuse.counts["trim"] == 0:  # a round in which the draft was right by chance trims nothing
        before = first.n_emitted, second.n_emitted
        with contextlib.suppress(InjectedError):
            table.round(table.seats)
    assert first.n_emitted > before[0]
    assert second.n_emitted == before[1]
    table.check()


def test_one_sequence_that_cannot_be_undone_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    group = [Request(HashLogits(3, 8), 8, (token,), max_tokens=20) for token in (1, 2, 3)]
    table = Table(group, [ScriptedSpec((Move(2),))], fuse=Fuse("decoded"))
    table.begin()
    trim = table.target.memory.trim

    def refuse_the_first(seq_id: int, length: int) -> None:
        if seq_id == 0:
            msg = "refused"
            raise RollbackError(msg)
        trim(seq_id, length)

    with monkeypatch.context() as patch:
        patch.setattr(table.target.memory, "trim", refuse_the_first)
        with pytest.raises(InjectedError):
            table.round(table.seats)
    for seat in table.seats:
        assert table.target.memory.length(seat.seq_id) == 0
        assert seat.n_emitted == seat.sampler.n_draws == 0


def test_a_drafter_that_fails_to_discard_does_not_keep_the_target_from_it() -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2), max_tokens=20)
    table = Table([request], [ScriptedSpec((Move(2),))], fuse=Fuse("scripted-0.discard"))
    table.begin()
    table.seats[0].sampler._fuse = Fuse("sample", 0, KeyboardInterrupt)
    with pytest.raises(InjectedError) as caught:
        table.round(table.seats)
    assert isinstance(caught.value.__context__, KeyboardInterrupt)
    table.check()


@pytest.mark.parametrize("n_done", [1, 2, 3])
def test_an_interrupt_while_a_sequence_is_committed_is_undone(monkeypatch: pytest.MonkeyPatch, n_done: int) -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2), max_tokens=20)
    table = Table([request], [ScriptedSpec((Move(2),))])
    table.begin()

    def interrupted(sequence: Sequence, emitted: tuple[int, ...]) -> None:
        steps: list[Callable[[], None]] = [
            lambda: sequence.history.append(sequence.pending),
            lambda: sequence.history.extend(emitted[:-1]),
            lambda: setattr(sequence, "pending", emitted[-1]),
        ]
        for step in steps[:n_done]:
            step()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Sequence, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.round(table.seats)
    assert table.seats[0].n_emitted == 0
    table.check()
    table.play()
    table.check_end()


def test_a_refused_trim_is_never_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=20)
    wrong = next(token for token in range(8) if token != Table([request]).seats[0].plain.tokens[0])
    table = Table([request], [ScriptedSpec((Move(0, (wrong, wrong)),))])
    table.begin()

    def refuse(_seq_id: int, _length: int) -> None:
        msg = "refused"
        raise RollbackError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(table.target.memory, "trim", refuse)
        with pytest.raises(RollbackError):
            table.play()
    assert table.seats[0].n_emitted == 0
    assert table.target.memory.length(0) == 0, "what cannot be trimmed is dropped whole"
    assert table.seats[0].sequence.lag == 2
    table.play()  # it is read again
    table.check_end()


KINDS = [(RollbackKind.TRIM, 0), (RollbackKind.BOUNDED, 2), (RollbackKind.BOUNDED, 9), (RollbackKind.WHOLE, 0)]


@pytest.mark.parametrize(("kind", "n_snapshots"), KINDS)
def test_every_kind_of_memory_gives_plain_output(kind: RollbackKind, n_snapshots: int) -> None:
    table = small_table(machine=Machine(n_seq_max=2, kind=kind, n_snapshots=n_snapshots))
    table.begin()
    table.play()
    table.check_end()
    ways = {outcome.rollback for seat in table.seats for outcome in seat.outcomes}
    expected = {RollbackKind.TRIM: {"trim"}, RollbackKind.WHOLE: {"replay"}}
    assert ways - {"none"} == expected.get(kind, {"bounded", "replay"} if n_snapshots == 2 else {"bounded"})
    needs_checkpoints = kind is RollbackKind.WHOLE or n_snapshots == 2
    assert bool(table.target.memory.n_checkpoints) == needs_checkpoints


@pytest.mark.parametrize(("kind", "n_snapshots"), KINDS)
def test_no_checkpoint_is_taken_without_a_draft(kind: RollbackKind, n_snapshots: int) -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=20)
    table = Table([request], machine=Machine(kind=kind, n_snapshots=n_snapshots))
    table.begin()
    table.play()
    table.check_end()
    assert table.target.memory.n_checkpoints == 0


def test_a_checkpoint_is_restored_again_instead_of_taken_again() -> None:
    """Drafts that are always wrong: decided tokens pile up behind one checkpoint until they get a pass of their own."""
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=40, n_ctx=64)
    future = Table([request]).seats[0].plain.history
    table = Table(
        [request], [ScriptedSpec((Move(0, (8 - 1,)),))], machine=Machine(kind=RollbackKind.WHOLE, n_ubatch=32)
    )
    table.begin()
    table.play()
    table.check_end()
    assert (
        sum(outcome.n_checkpoint_bytes > 0 for outcome in table.seats[0].outcomes) == table.target.memory.n_checkpoints
    )
    n_wrong = sum(outcome.rollback == "replay" for outcome in table.seats[0].outcomes)
    assert n_wrong > 20 > 3 * table.target.memory.n_checkpoints
    for decoded in table.target.decodes:  # nothing is decided again: what is decoded was emitted or drafted
        first = decoded.positions[0]
        assert decoded.tokens[:-1] == future[first : first + len(decoded.tokens) - 1]


def test_only_what_was_decided_since_a_draft_stood_is_decoded_again() -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=40, n_ctx=64)
    moves = (Move(3), Move(0, (8 - 1,)), Move(1, (8 - 1,)))
    table = Table([request], [ScriptedSpec(moves)], machine=Machine(kind=RollbackKind.WHOLE))
    table.begin()
    seat, n_decided = table.seats[0], 0
    while not table.has_ended(seat):
        (outcome,) = table.round(table.seats)
        n_decided = n_decided + len(outcome.emitted) if outcome.rollback == "replay" else 0
        assert seat.sequence.lag == n_decided
    assert {outcome.rollback for outcome in seat.outcomes} == {"none", "replay"}
    table.check_end()


def test_leaving_without_keep_undoes_everything() -> None:
    request = Request(HashLogits(3, 8), 8, (1, 2, 3), max_tokens=20)
    table = Table([request], [ScriptedSpec((Move(2),))])
    table.begin()
    seat = table.seats[0]
    with RollbackPoint([seat.sequence], table.target, table.chain):
        rows = table.target.decode(_verify_batch(seat.sequence.pending, seat.sequence.n_committed))
        seat.sequence.ending.push(seat.sampler.sample(rows, 0))
    table.check()
    table.play()
    table.check_end()


def test_a_generator_that_is_closed_between_rounds_leaves_nothing_behind() -> None:
    table = small_table()
    table.begin()

    def rounds() -> Generator[None, None, None]:
        while True:
            table.round(table.seats)
            yield

    generator = rounds()
    next(generator)
    generator.close()
    table.check()
    table.play()
    table.check_end()


def _verify_batch(token: int, position: int) -> Batch:
    buffer = Batch()
    buffer.add(token, position, 0, output=True)
    return buffer


def test_a_rule_that_emits_nothing_is_stopped() -> None:
    class Mute(MatchRule):
        def accept(self, draft: Draft, rows: Any, sequence: Sequence) -> Verdict:  # noqa: ARG002
            return Verdict((), None)

    table = Table([Request(HashLogits(3, 8), 8, (1, 2), max_tokens=20)], [ScriptedSpec((Move(2),))])
    table.begin()
    with pytest.raises(StalledError, match="emitted no token"):
        run_round(RoundBatch([table.seats[0].sequence]), table.chain, table.target, Mute())
    table.check()


@pytest.mark.parametrize(
    "verdict",
    [
        None,
        ((5,), None),
        "accept all",
        Verdict(5, None),  # type: ignore[arg-type]
        Verdict([5], None),  # type: ignore[arg-type]
        Verdict((8,), None),
        Verdict((2**40,), None),
        Verdict((-1,), None),
        Verdict((1.0,), None),  # type: ignore[arg-type]
        Verdict((True,), None),
        Verdict((5,), "length"),  # type: ignore[arg-type]
        Verdict((99, 5), None),
        Verdict((1, 2, 3, 4, 5, 6, 7, 1, 2, 3), None),
    ],
)
def test_a_rule_that_decides_what_cannot_be_is_named(verdict: Any) -> None:
    class Wrong(MatchRule):
        name = "wrong"

        def accept(self, draft: Draft, rows: Any, sequence: Sequence) -> Verdict:
            super().accept(draft, rows, sequence)  # the sampler and the text move on
            return verdict  # type: ignore[no-any-return]

    table = Table([Request(HashLogits(3, 8), 8, (1, 2), max_tokens=20)], [ScriptedSpec((Move(2),))])
    table.begin()
    with pytest.raises(SpeculationError, match=r'The rule "wrong" decided .* It must return a Verdict'):
        run_round(RoundBatch([table.seats[0].sequence]), table.chain, table.target, Wrong())
    table.check()
    table.play()
    table.check_end()
