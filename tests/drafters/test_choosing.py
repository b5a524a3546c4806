"""How a draft model's token is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from pyspec.drafters.choosing import Chooser, Sampling, shares
from pyspec.errors import ConfigError
from pyspec.llama.batch import Batch
from pyspec.speculation import DraftRequest
from pyspec.speculation.noise import Stream, gumbel, uniform
from tests.fakes import FakeRows, FakeTarget, HashLogits

N_VOCAB = 16
LOGITS = HashLogits(3, N_VOCAB, levels=255)


def rows() -> FakeRows:
    batch = Batch()
    batch.add(4, 0, 0, output=True)
    return FakeTarget(LOGITS, N_VOCAB).decode(batch)


def asked(temperature: float, seed: int | None = 5) -> DraftRequest:
    return DraftRequest(0, (), 4, 0, 9, temperature=temperature, seed=seed)


def best_ten() -> tuple[np.ndarray, np.ndarray]:
    return rows().top_k(0, 10)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("position", range(1, 40, 3))
def test_coupled_takes_the_best_of_log_probability_and_the_rules_noise(position: int, temperature: float) -> None:
    tokens, logits = best_ten()
    choice = Chooser(N_VOCAB, sampling="coupled").choose(rows(), 0, asked(temperature), position)
    assert choice is not None
    assert choice.candidates is not None
    np.testing.assert_allclose(choice.candidates.probs, shares(logits, temperature))
    scores = {
        int(token): logit / temperature + gumbel(5, position, np.array([token], np.int32))[0]
        for token, logit in zip(tokens, logits, strict=True)
    }
    assert choice.token == max(scores, key=lambda token: scores[token])


def test_probabilistic_takes_the_token_that_the_drafts_number_falls_on() -> None:
    for position in range(1, 40):
        choice = Chooser(N_VOCAB, sampling="probabilistic").choose(rows(), 0, asked(1.0), position)
        assert choice is not None
        assert choice.candidates is not None
        assert choice.token == choice.candidates.draw(uniform(5, position, Stream.DRAFT))


@pytest.mark.parametrize("sampling", ["probabilistic", "coupled"])
def test_drawing_goes_through_the_candidates_and_stops_at_a_low_share(sampling: Sampling) -> None:
    drawing = Chooser(N_VOCAB, sampling=sampling)
    found = [drawing.choose(rows(), 0, asked(1.0), position) for position in range(200)]
    assert len({choice.token for choice in found if choice is not None}) > 3
    share = float(shares(best_ten()[1]).max())
    for p_min, stops in ((share - 0.01, False), (share + 0.01, True)):
        choices = {Chooser(N_VOCAB, p_min, sampling).choose(rows(), 0, asked(1.0), i) is None for i in range(50)}
        assert choices == {stops}, "whether a token is drafted must not depend on the draw"


@pytest.mark.parametrize("sampling", ["greedy", "probabilistic", "coupled"])
def test_without_temperature_all_take_the_most_likely_token(sampling: Sampling) -> None:
    choice = Chooser(N_VOCAB, sampling=sampling).choose(rows(), 0, asked(0.0), 7)
    assert choice is not None
    assert (choice.token, choice.candidates) == (int(np.argmax(LOGITS((4,)))), None)


@pytest.mark.parametrize("sampling", ["probabilistic", "coupled"])
def test_padding_is_never_drawn(sampling: Sampling) -> None:
    n_legal = 9
    drawing = Chooser(n_legal, sampling=sampling)
    for position in range(100):
        choice = drawing.choose(rows(), 0, asked(3.0), position)
        assert choice is not None
        assert choice.candidates is not None
        assert choice.token < n_legal
        assert choice.candidates.tokens.max() < n_legal
        assert choice.candidates.probs.sum() == pytest.approx(1.0)


def test_a_tiny_temperature_leaves_tokens_without_probability() -> None:
    choice = Chooser(N_VOCAB, sampling="coupled").choose(rows(), 0, asked(1e-6), 3)
    assert choice is not None
    assert choice.token == int(np.argmax(LOGITS((4,))))


@pytest.mark.parametrize("sampling", ["best", None, ["greedy"]])
def test_another_sampling_is_an_error(sampling: object) -> None:
    with pytest.raises(ConfigError, match='sampling must be "greedy", "probabilistic" or "coupled", not '):
        Chooser(N_VOCAB, sampling=sampling)  # type: ignore[arg-type]
