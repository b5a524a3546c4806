from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st

from pyspec.cli.streaming import TextPrinter
from pyspec.engine import Chunk
from pyspec.engine.text import TextStream
from pyspec.speculation import Ending, Finish

CYAN, RESET = "\x1b[36m", "\x1b[0m"


def chunk(text: str, *tokens: tuple[str, bytes]) -> Chunk:
    sources, pieces = zip(*tokens, strict=True) if tokens else ((), ())
    return Chunk(text, tuple(range(len(tokens))), sources, pieces, None)


def printed(*chunks: Chunk, color: bool = True) -> str:
    out = io.StringIO()
    printer = TextPrinter(out, color=color)
    for each in chunks:
        printer.show(each)
    return out.getvalue()


def test_accepted_drafts_are_shown_in_another_colour() -> None:
    one = chunk("ab c", ("draft:x", b"a"), ("draft:x", b"b"), ("bonus", b" c"))
    assert printed(one) == f"{CYAN}ab{RESET} c"
    assert printed(one, color=False) == "ab c"


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    euro = "€".encode()
    first, second = chunk("", ("plain", euro[:2])), chunk("€!", ("draft:x", euro[2:]), ("bonus", b"!"))
    assert printed(first, second) == f"{CYAN}€{RESET}!"


def test_text_that_was_held_back_keeps_its_colour() -> None:
    held = chunk("a", ("draft:x", b"aEN"), ("recovered", b"D"))
    assert printed(held, chunk("END.", ("plain", b"."))) == f"{CYAN}a{RESET}{CYAN}EN{RESET}D."


def test_a_last_chunk_without_tokens_brings_what_was_held_back() -> None:
    assert printed(chunk("a", ("draft:x", b"aE")), chunk("E")) == f"{CYAN}a{RESET}{CYAN}E{RESET}"
    assert printed(chunk("a", ("plain", b"a")), chunk("\N{REPLACEMENT CHARACTER}")) == "a\N{REPLACEMENT CHARACTER}"


def test_line_ends_are_known() -> None:
    printer = TextPrinter(io.StringIO(), color=False)
    assert printer.ends_line
    printer.show(chunk("a", ("plain", b"a")))
    assert not printer.ends_line
    printer.show(chunk("\n", ("plain", b"\n")))
    assert printer.ends_line


PIECES = st.lists(st.tuples(st.sampled_from(["plain", "draft:x", "bonus"]), st.binary(max_size=4)), max_size=6)


@given(rounds=st.lists(PIECES, max_size=6), stops=st.lists(st.binary(min_size=1, max_size=2), max_size=1))
def test_colours_never_change_the_text(rounds: list[list[tuple[str, bytes]]], stops: list[bytes]) -> None:
    pieces = [piece for tokens in rounds for _, piece in tokens]
    ending = Ending(max_tokens=len(pieces) + 1, stops=stops, piece=pieces.__getitem__)
    stream, chunks, n = TextStream(), [], 0
    finish: Finish | None = None
    for tokens in rounds:
        taken = []
        for token in tokens:
            taken.append(token)
            finish = ending.push(n)
            n += 1
            if finish is not None:
                break
        chunks.append(chunk(stream.take(ending.release(finish), finish), *taken))
        if finish is not None:
            break
    if finish is None:
        chunks.append(
            chunk(stream.take(ending.release(Finish.CONTEXT), Finish.CONTEXT))
        )  # as the engine does when the context is full
    text = "".join(each.text for each in chunks)
    colored = printed(*chunks)
    if "\x1b" not in text:
        assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == text
    assert printed(*chunks, color=False) == text
