from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine.text import TextStream
from pyspec.speculation import Ending, Finish
from tests.strategies import PIECES, STOPS


@given(
    st.lists(st.sampled_from(PIECES), max_size=16),
    st.lists(st.sampled_from(STOPS), max_size=2),
    st.lists(st.integers(1, 5), min_size=16, max_size=16),
)
def test_grouping_does_not_change_the_text(pieces: list[bytes], stops: list[bytes], sizes: list[int]) -> None:
    table = dict(enumerate(pieces))

    def text(group_sizes: list[int]) -> str:
        ending = Ending(max_tokens=len(pieces), stops=stops, piece=lambda token: table[token])
        stream, parts, left, finish = TextStream(), [], list(table), None
        for size in group_sizes:
            for token in left[:size]:
                finish = ending.push(token)
                if finish is not None:
                    break
            del left[:size]
            parts.append(stream.take(ending.release(finish), finish))
            if finish is not None or not left:
                break
        parts.append(stream.take(ending.release(finish or Finish.CONTEXT), finish or Finish.CONTEXT))
        return "".join(parts)

    whole = b"".join(pieces)
    cuts = [whole.index(stop) for stop in stops if stop in whole]
    one_by_one = text([1] * 16)
    assert one_by_one == text(sizes) == text([16])
    if not cuts:
        assert one_by_one == whole.decode("utf-8", errors="replace")
    else:
        assert whole.decode("utf-8", errors="replace").startswith(one_by_one.rstrip("\ufffd"))


def test_an_unfinished_character_at_the_end_is_replaced() -> None:
    ending = Ending(max_tokens=9, piece=lambda _token: b"\xf0\x9f")
    stream = TextStream()
    ending.push(1)
    assert stream.take(ending.release(None), None) == ""
    assert stream.take(ending.release(Finish.CANCELLED), Finish.CANCELLED) == "\ufffd"
