"""The most likely tokens beside each emitted one: as logits, or as log-probabilities where these are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import ContextConfig, SamplingConfig, Speculation
from tests.helpers import PROMPT


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_are_those_of_the_whole_row(target_path: Path, temperature: float) -> None:
    speculation = Speculation("ngram-simple", options={"ngram-simple": {"size_n": 1, "size_m": 3}})
    settings: dict[str, Any] = {"max_tokens": 12, "sampling": SamplingConfig(temperature=temperature, seed=3)}
    with (
        pyspec.Model(target_path) as model,
        pyspec.Engine(model, speculation=speculation, context=ContextConfig(n_ctx=128, n_threads=1)) as engine,
    ):
        n_vocab = model.vocab.n_tokens
        with_logits = engine.generate(PROMPT, n_top=n_vocab, **settings)
        with_logprobs = engine.generate(PROMPT, n_top=n_vocab, logprobs=True, **settings)
    assert with_logits.tokens == with_logprobs.tokens
    for token, logprob, logits, logprobs in zip(
        with_logits.tokens, with_logprobs.logprobs, with_logits.top, with_logprobs.top, strict=True
    ):
        assert [entry[0] for entry in logits] == [entry[0] for entry in logprobs]
        values = np.array([entry[1] for entry in logits])
        expected = values - values.max() - np.log(np.exp(values - values.max()).sum())
        assert np.allclose([entry[1] for entry in logprobs], expected, atol=1e-5)
        assert dict(logprobs)[token] == pytest.approx(logprob, abs=1e-9)
