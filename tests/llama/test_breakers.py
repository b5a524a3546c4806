"""DRY with the model's vocabulary: no repetition is seen across a sequence breaker."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspec
from pyspec import SamplerChain, SamplingConfig
from pyspec.llama.breakers import breakers
from tests import sampling
from tests.llama.conftest import Place
from tests.sampling import N, fill

TEXTS = ("\n", ":", "he", "hel", "the", "é", "日本", "abc", "e\n")


def ways(vocab: pyspec.Vocab, texts: tuple[str, ...]) -> sampling.Ways:
    return [(breaker.heads.tolist(), breaker.tail) for breaker in breakers(vocab, texts)]


def change(place: Place, vocab: pyspec.Vocab, history: list[int], **options: Any) -> sampling.Probs:
    """Return by how much each logit changes, [N]; the row is even."""
    rows, row = place
    row[:] = 0
    chain = SamplerChain(SamplingConfig(temperature=1, top_k=0, top_p=1, min_p=0, **options), N, vocab)
    for token in history:
        chain.accept(token)
    tokens, probs = chain.distribution(rows, 0)
    found: sampling.Probs = np.zeros(N)
    found[tokens] = np.log(probs) - np.log(probs.max())
    return found


def test_a_token_that_would_repeat_loses_by_the_length_of_the_repetition(place: Place, target: pyspec.Model) -> None:
    options = {"dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": 2, "dry_sequence_breakers": ()}
    a, b, c, d = 60, 61, 62, 63
    lost = change(place, target.vocab, [a, b, c, d, a, b, c], **options)
    np.testing.assert_allclose(lost[[a, b, c, d]], [0, 0, 0, -0.5 * 2.0**1], atol=1e-9)
    lost = change(place, target.vocab, [b, c, a, a, b, c, d, a, b, c], **options)
    assert lost[d] == pytest.approx(-0.5 * 2.0**1), "the longest repetition counts"
    assert lost[a] == pytest.approx(-0.5), "and each token by its own"
    assert change(place, target.vocab, [c, d, a, c], **options)[d] == 0, "shorter than allowed"


def test_a_breaker_ends_what_repeats(place: Place, target: pyspec.Model) -> None:
    vocab = target.vocab
    colon, newline = vocab.tokenize(":")[0], vocab.tokenize("\n")[0]
    a, b, c = 60, 61, 62
    options = {"dry_multiplier": 1.0, "dry_base": 1.75, "dry_allowed_length": 1}
    history = [a, colon, b, c, a, colon, b]
    assert change(place, vocab, history, **options)[c] == pytest.approx(-1.0), "only what is behind the colon"
    unbroken = change(place, vocab, history, **options, dry_sequence_breakers=["#"])
    assert unbroken[c] == pytest.approx(-(1.75**2)), "with other breakers all three"
    again = change(place, vocab, [a, b, newline, a, b], **options)
    assert again[newline] == 0, "a breaker itself may be repeated"


def test_a_text_of_several_tokens_breaks_too(place: Place, target: pyspec.Model) -> None:
    vocab = target.vocab
    a, b, c = 60, 61, 62
    for text in ("hello", "日本", "xx hel"):
        written = vocab.tokenize(text)
        assert len(written) > 1
        history = [a, *written, b, c, a, *written, b]
        options = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_allowed_length": 1, "dry_penalty_last_n": 300}
        assert change(place, vocab, history, **options, dry_sequence_breakers=(text,))[c] == pytest.approx(-1.0)
        assert change(place, vocab, history, **options, dry_sequence_breakers=())[c] < -1.5


@pytest.mark.parametrize("text", TEXTS)
def test_the_ways_write_the_text(target: pyspec.Model, text: str) -> None:
    vocab = target.vocab
    pieces = vocab.pieces(range(N), special=True)
    found = ways(vocab, (text,))
    whole = {token for token in range(N) if text.encode() in pieces[token]}
    assert {head for heads, tail in found if not tail for head in heads} == whole
    for heads, tail in found:
        for head in heads:
            assert text.encode() in b"".join(pieces[token] for token in [head, *tail])
    tokens = vocab.tokenize(text)
    assert any(tokens[0] in heads and tail == tokens[1:] for heads, tail in found)


@settings(deadline=None)  # machines are shared
@given(
    st.lists(st.sampled_from([18, 66, 112, 109, 116, 264, 265, 266, 203, 177, 60]), max_size=40),
    st.lists(st.sampled_from(TEXTS), max_size=3, unique=True),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([3, 20, 300]),
)
def test_it_is_the_definition_with_breakers(
    place: Place, target: pyspec.Model, history: list[int], texts: list[str], allowed_length: int, last_n: int
) -> None:
    rows, row = place
    fill(row, len(history))
    config = SamplingConfig(
        temperature=1.0,
        seed=1,
        dry_multiplier=1.5,
        dry_allowed_length=allowed_length,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=tuple(texts),
    )
    chain = SamplerChain(config, N, target.vocab)
    for token in history:
        chain.accept(token)
    tokens, probs = chain.distribution(rows, 0)
    expected = sampling.distribution(row, config, history=history, ways=ways(target.vocab, tuple(texts)))
    assert set(tokens.tolist()) == set(np.flatnonzero(expected).tolist())
    np.testing.assert_allclose(probs, expected[tokens], rtol=1e-9)


def test_the_vocabulary_is_asked_once(target: pyspec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    first = breakers(target.vocab, ("once", "twice"))
    monkeypatch.setattr(pyspec.Vocab, "pieces", None)
    again = breakers(target.vocab, ("twice", "once", "once"))
    assert len(again) == len(first)
    assert {id(breaker) for breaker in again} == {id(breaker) for breaker in first}


def test_what_was_found_does_not_keep_a_model(target: pyspec.Model) -> None:
    model = pyspec.Model(target.path)
    breakers(model.vocab, ("\n",))
    vocab = weakref.ref(model.vocab)
    model.close()
    del model
    gc.collect()
    assert vocab() is None


def test_breakers_need_a_vocabulary() -> None:
    options = {"dry_multiplier": 1.0}
    with pytest.raises(pyspec.errors.ConfigError, match="vocab"):
        SamplerChain(SamplingConfig(**options), N)  # type: ignore[arg-type]
    with pytest.raises(pyspec.errors.ConfigError, match="vocab"):
        pyspec.llama.make_sampler(SamplingConfig(**options), N, "text")  # type: ignore[arg-type]
    assert SamplerChain(SamplingConfig(**options, dry_sequence_breakers=()), N).seed is not None  # type: ignore[arg-type]
    assert SamplerChain(SamplingConfig(**options, dry_penalty_last_n=0), N).seed is not None  # type: ignore[arg-type]


def test_a_vocabulary_that_is_too_large_is_refused(target: pyspec.Model) -> None:
    config = SamplingConfig(dry_multiplier=1.0, dry_sequence_breakers=("the",))
    with pytest.raises(pyspec.errors.ConfigError, match="outside the vocabulary"):
        SamplerChain(config, 100, target.vocab)
