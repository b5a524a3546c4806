"""What a drafter does against its contract is its fault, and says so: also what nobody would think of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pyspec.drafters import Chain, Draft, DraftRequest, ModelFreeDrafter
from pyspec.errors import ConfigError, DrafterError
from pyspec.speculation.draft import EvaluatedBatch, Needs, Proposal

REQUEST = DraftRequest(0, [5, 6], 7, 2, 3)


class Speechless(Exception):  # noqa: N818 - its name is what is told
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        msg = "no text"
        raise RuntimeError(msg)

    __repr__ = __str__


class Raises(ModelFreeDrafter):
    """Raises in one of its methods; proposes a token."""

    name, n_max, needs = "raises", 4, Needs.PROMPT

    def __init__(self, call: str, error: BaseException) -> None:
        self._call, self._error = call, error

    def _pass(self, call: str) -> None:
        if call == self._call:
            raise self._error

    def begin(self, seq_id: int, tokens: Sequence[int]) -> None:  # noqa: ARG002 - the interface
        self._pass("begin")

    def observe(self, batch: EvaluatedBatch) -> None:  # noqa: ARG002 - the interface
        self._pass("observe")

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._pass("draft")
        return [Draft((1,))] * len(requests)

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:  # noqa: ARG002 - the interface
        self._pass("accept")

    def discard(self, seq_id: int) -> None:  # noqa: ARG002 - the interface
        self._pass("discard")

    def save_state(self, seq_id: int) -> bytes | None:  # noqa: ARG002 - the interface
        self._pass("save_state")
        return None

    def load_state(self, seq_id: int, state: bytes) -> None:  # noqa: ARG002 - the interface
        self._pass("load_state")

    def close(self) -> None:
        self._pass("close")


CALLS: dict[str, Callable[[Chain], object]] = {
    "begin": lambda chain: chain.begin(0, [5]),
    "observe": lambda chain: chain.observe(EvaluatedBatch([5], [0], [(0,)])),
    "draft": lambda chain: chain.propose([REQUEST]),
    "accept": lambda chain: chain.accept(0, Proposal(Draft((1,)), "raises"), 1),
    "discard": lambda chain: chain.discard(0),
    "save_state": lambda chain: chain.save_state(0),
    "load_state": lambda chain: chain.load_state(0, [5], {"raises": b"1"}),
    "close": lambda chain: chain.close(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [ValueError("why"), Speechless(), MemoryError(), StopIteration(), GeneratorExit()])
def test_whatever_a_method_raises_names_drafter_and_method(error: BaseException, call: str) -> None:
    with pytest.raises(DrafterError) as caught:
        CALLS[call](Chain([Raises(call, error)]))
    assert str(caught.value).startswith(f"The drafter raises failed in {call}(): {type(error).__name__}")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [ConfigError("ours"), KeyboardInterrupt()])
def test_what_is_not_the_drafters_fault_passes(error: BaseException, call: str) -> None:
    with pytest.raises(type(error)) as caught:
        CALLS[call](Chain([Raises(call, error)]))
    assert caught.value is error


class Lazy:
    """Computes what it holds when it is read, and fails."""

    def __init__(self, error: BaseException, n_items: int = 3) -> None:
        self._error, self._n_items = error, n_items

    def __len__(self) -> int:
        return self._n_items

    def __iter__(self) -> Any:
        raise self._error

    def __getitem__(self, i: int) -> Any:
        raise self._error


class LazyList(Lazy, Sequence[Any]):  # type: ignore[misc]
    """The same, as a sequence."""


class LazyNumber:
    """An integer that fails when it is asked for."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __index__(self) -> int:
        raise self._error


class LazyDraft:
    """A draft that fails when one of its parts is read."""

    tokens, probs, signals = (1, 2), None, None

    def __init__(self, part: str, error: BaseException) -> None:
        self._part, self._error = part, error

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "_part"):
            raise object.__getattribute__(self, "_error")
        return object.__getattribute__(self, name)


class TurnedDraft(Draft):
    """A draft of ours that somebody made another one of."""

    @property
    def tokens(self) -> Any:
        msg = "turned"
        raise KeyError(msg)


ANSWERS: dict[str, Callable[[BaseException], Any]] = {
    "answers": lambda error: LazyList(error, 1),
    "tokens": lambda error: [Draft(Lazy(error))],  # type: ignore[arg-type]
    "a token": lambda error: [Draft((1, LazyNumber(error)))],  # type: ignore[arg-type]
    "probs": lambda error: [Draft((1, 2), LazyList(error))],
    "signals": lambda error: [Draft((1, 2), signals=LazyList(error))],
    **{
        f"{part} of a draft": lambda error, part=part: [LazyDraft(part, error)]  # type: ignore[misc]
        for part in ("tokens", "probs", "signals")
    },
}


class Says(ModelFreeDrafter):
    """Answers with this."""

    name, n_max = "says", 4

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def draft(self, requests: Sequence[DraftRequest]) -> Any:  # noqa: ARG002 - whatever is asked
        return self._answer


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("error", [RuntimeError("late"), KeyError("x"), Speechless(), GeneratorExit(), MemoryError()])
def test_what_an_answer_raises_when_it_is_read_is_the_drafters_fault(
    error: BaseException, answer: Callable[[BaseException], Any]
) -> None:
    with pytest.raises(DrafterError, match=f"The drafter says proposed what is not a draft.*{type(error).__name__}"):
        Chain([Says(answer(error))]).propose([REQUEST])


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_interrupt_passes_while_an_answer_is_read(answer: Callable[[BaseException], Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        Chain([Says(answer(KeyboardInterrupt()))]).propose([REQUEST])


def test_a_subclass_of_draft_is_read_like_any_other_answer() -> None:
    with pytest.raises(DrafterError, match="The drafter says proposed what is not a draft"):
        Chain([Says([TurnedDraft.__new__(TurnedDraft)])]).propose([REQUEST])


WRONG: dict[str, list[Any]] = {
    "name": [None, "", 5, b"says"],
    "n_max": [None, "8", 8.0, float("nan"), True],
    "needs": [None, 0, "PROMPT", Needs],
    **{method: [None, 3] for method in ("begin", "observe", "draft", "accept", "close")},
}


@pytest.mark.parametrize(("attribute", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_an_attribute_that_is_wrong_is_refused_by_name(attribute: str, value: Any) -> None:
    drafter = Says([])
    setattr(drafter, attribute, value)
    who = "Says" if attribute == "name" else "says"
    with pytest.raises(DrafterError, match=f"The drafter {who} has .* as '{attribute}', which must be "):
        Chain([drafter])


@pytest.mark.parametrize("attribute", WRONG)
def test_an_attribute_that_is_missing_is_named(attribute: str) -> None:
    there = {name: getattr(Says([]), name) for name in WRONG if name != attribute}
    who = "Some" if attribute == "name" else "says"
    with pytest.raises(DrafterError, match=f"The drafter {who} has no '{attribute}': "):
        Chain([type("Some", (), there)()])


@pytest.mark.parametrize("attribute", [*WRONG, "discard", "rewind", "save_state", "n_model_tokens"])
def test_an_attribute_that_raises_is_the_drafters_fault(attribute: str) -> None:
    def fail(_drafter: object) -> None:
        msg = "not now"
        raise KeyError(msg)

    kind = type("Fails", (Says,), {"name": "fails", attribute: property(fail)})

    def use() -> None:
        chain = Chain([kind([Draft()])])
        chain.rewind(0, [5], 1, 1)
        chain.discard(0)
        chain.save_state(0)

    with pytest.raises(DrafterError, match=r"The drafter (Fails|fails) failed .*KeyError: 'not now'"):
        use()


@pytest.mark.parametrize("n_tokens", ["x", None, float("nan"), float("inf"), [1]])
def test_model_tokens_are_counted_or_the_drafters_fault(n_tokens: Any) -> None:
    drafter: Any = Says([Draft()])
    drafter.n_model_tokens = n_tokens
    with pytest.raises(DrafterError, match=r"The drafter says failed when its 'n_model_tokens' were counted"):
        Chain([drafter]).propose([REQUEST])


@pytest.mark.parametrize("state", ["text", 5, [1], {}, object()])
def test_a_state_is_bytes_or_the_drafters_fault(state: Any) -> None:
    drafter: Any = Says([Draft()])
    drafter.save_state = lambda _seq_id: state
    with pytest.raises(DrafterError, match=r"The drafter says returned .* from save_state\(\); it must be bytes"):
        Chain([drafter]).save_state(0)


@pytest.mark.parametrize("state", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_a_state_is_saved_as_bytes(state: Any) -> None:
    drafter: Any = Says([Draft()])
    drafter.save_state = lambda _seq_id: state
    saved = Chain([drafter]).save_state(0)
    assert saved == {"says": b"abc"}
    assert type(saved["says"]) is bytes


@pytest.mark.parametrize(
    "signals",
    [
        np.array([0.5, 3.0]),
        np.array([0.5, 3.0], np.float32),
        [np.float32(0.5), np.int64(3)],
        (Fraction(1, 2), 3),
        [0.5, np.float16(3)],
    ],
    ids=str,
)
def test_signals_are_real_numbers_of_any_kind(signals: Any) -> None:
    (proposal,) = Chain([Says([Draft((1, 2), signals=signals)])]).propose([REQUEST])
    assert list(proposal.draft.signals or ()) == [0.5, 3.0]


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        (5.0, "gave float for 2 tokens"),
        ({0.5, 0.6}, "gave set for 2 tokens"),
        (np.array(0.5), "gave float for 2 tokens"),
        ((1.0,), "gave 1 signals for 2 tokens"),
        ((1.0, -0.5), "gave token 1 of its draft the signal -0.5"),
        ((float("nan"), 1.0), "gave token 0 of its draft the signal nan"),
        ((1.0, "a"), "gave token 1 of its draft the signal 'a'"),
        ((np.float32(1.0), None), "gave token 1 of its draft the signal None"),
        (np.array([1.0, -2.0]), "gave token 1 of its draft the signal -2.0"),
        (np.ones((2, 2)), "gave token 0 of its draft the signal [1.0, 1.0]"),
        ((1.0, 1j), "gave token 1 of its draft the signal 1j"),
    ],
    ids=str,
)
def test_other_signals_are_named_with_their_place(signals: Any, words: str) -> None:
    with pytest.raises(DrafterError) as caught:
        Chain([Says([Draft((1, 2), signals=signals)])]).propose([REQUEST])
    assert words in str(caught.value)
