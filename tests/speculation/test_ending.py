from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspec.speculation import Ending, Finish
from tests.strategies import PIECES, STOPS


def ending(*, max_tokens: int = 10, stops: tuple[bytes, ...] = (), eog: frozenset[int] = frozenset()) -> Ending:
    return Ending(eog=eog, max_tokens=max_tokens, stops=stops, piece=lambda token: bytes([token]))


def push_text(into: Ending, text: bytes) -> Finish | None:
    finish = None
    for token in text:
        finish = into.push(token)
    return finish


def test_counts_to_the_last_token() -> None:
    counted = ending(max_tokens=2)
    assert counted.push(65) is None
    assert counted.remaining == 1
    assert counted.push(66) is Finish.LENGTH
    assert (counted.remaining, counted.n_tokens, bytes(counted.text)) == (0, 2, b"AB")


def test_an_end_token_has_no_text_and_wins_over_the_length() -> None:
    counted = ending(max_tokens=1, eog=frozenset({65}))
    assert counted.push(65) is Finish.EOG
    assert (counted.n_tokens, bytes(counted.text)) == (1, b"")


def test_without_a_piece_function_tokens_have_no_text() -> None:
    silent = Ending(max_tokens=2)
    assert silent.push(5) is None
    assert bytes(silent.text) == b""


def test_the_text_is_cut_before_the_first_stop_string() -> None:
    stopping = ending(stops=(b"CD", b"BCD"))
    assert push_text(stopping, b"ABCD") is Finish.STOP
    assert stopping.cut == 1
    assert stopping.settled(Finish.STOP) == 1


def test_a_stop_string_that_has_begun_is_held_back() -> None:
    stopping = ending(stops=(b"ABC", b"BD"))
    push_text(stopping, b"xAB")
    assert stopping.settled(None) == 1  # "AB" may become "ABC"
    assert stopping.settled(Finish.LENGTH) == 3
    assert push_text(stopping, b"D") is Finish.STOP
    assert stopping.cut == 2


def test_rewinding_forgets_tokens_text_and_cut() -> None:
    stopping = ending(stops=(b"BC",))
    push_text(stopping, b"ABC")
    stopping.rewind(2)
    assert (stopping.n_tokens, bytes(stopping.text), stopping.cut) == (2, b"AB", None)
    stopping.rewind(5)
    assert stopping.n_tokens == 2
    assert push_text(stopping, b"C") is Finish.STOP


@given(st.lists(st.sampled_from(PIECES), max_size=20), st.lists(st.sampled_from(STOPS), max_size=3), st.integers(0, 20))
def test_settled_text_is_never_taken_back(pieces: list[bytes], stops: list[bytes], n_kept: int) -> None:
    table = dict(enumerate(pieces))
    checked = Ending(max_tokens=100, stops=stops, piece=lambda token: table[token])
    released = b""
    for token in table:
        finish = checked.push(token)
        settled = bytes(checked.text[: checked.settled(finish)])
        assert settled.startswith(released)
        released = settled
        whole = b"".join(pieces[: token + 1])
        found = [whole.index(stop) for stop in stops if stop in whole]
        assert (finish is Finish.STOP) == bool(found)
        if found:
            assert released == whole[: min(found)]
            break
    checked.rewind(n_kept)
    assert bytes(checked.text) == b"".join(pieces[: checked.n_tokens])
