"""The engine on real kernels and tiny exact models: speculation changes the speed and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import ContextConfig, Finish, SamplingConfig, Speculation
from pyspec.drafters.automatic import LOOKUPS
from pyspec.errors import (
    ConfigError,
    ContextFullError,
    TokenError,
    UnsupportedError,
    VocabMismatchError,
)
from tests.helpers import PROMPT, decode, greedy, make_context
from tests.llama.test_lifetime import in_thread

OpenZoo = Callable[[str], pyspec.Model]
NGRAM = {"size_n": 2, "size_m": 6}
KINDS = ["none", "ngram-simple", "draft-simple", "ngram-simple,draft-simple"]
REPEATING = [1, *([60, 75, 112, 264, 300, 91, 130] * 4)]
TIE = 1e-3


def config(**settings: Any) -> ContextConfig:
    return ContextConfig(**{"n_ctx": 256, "n_batch": 64, "n_ubatch": 16, "n_threads": 1, **settings})


def speculation(types: str, draft_model: pyspec.Model | None = None) -> Speculation:
    options = {name: NGRAM if name == "ngram-simple" else {"n_max": 4} for name in types.split(",") if name != "none"}
    return Speculation(types, draft_model if "draft" in types else None, options)


@pytest.fixture
def engine(open_zoo: OpenZoo) -> Any:
    """Make engines on zoo models; closed after the test."""
    made: list[pyspec.Engine] = []

    def make(types: str = "none", target: str = "target-llama", draft: str = "draft-llama", **settings: Any) -> Any:
        draft_model = open_zoo(draft) if "draft" in types else None
        made.append(
            pyspec.Engine(open_zoo(target), speculation=speculation(types, draft_model), context=config(**settings))
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def same_or_tied(plain: pyspec.Result, other: pyspec.Result) -> None:
    """Require equal tokens up to the first difference, which must be a tie in both runs."""
    for i, (ours, theirs) in enumerate(zip(plain.tokens, other.tokens, strict=False)):
        if ours != theirs:
            for result in (plain, other):
                logits = dict(result.top[i])
                assert abs(logits[ours] - logits[theirs]) < TIE, f"token {i} differs and is no tie"
            return
    assert len(plain.tokens) == len(other.tokens)


@pytest.mark.parametrize("target", ["target-llama", "target-swa", "target-mtp-chain"])
@pytest.mark.parametrize("types", KINDS)
@pytest.mark.parametrize("prompt", [PROMPT, REPEATING], ids=["short", "repeating"])
def test_speculation_changes_no_token(engine: Any, target: str, types: str, prompt: list[int]) -> None:
    plain = engine("none", target).generate(prompt, max_tokens=120, n_top=5)
    other = engine(types, target).generate(prompt, max_tokens=120, n_top=5)
    same_or_tied(plain, other)
    assert other.finish is Finish.LENGTH
    if "draft" in types:
        assert other.stats.n_accepted > 20


def test_plain_decoding_is_the_plainest_loop(engine: Any, target: pyspec.Model) -> None:
    result = engine().generate(PROMPT, max_tokens=60)
    with make_context(target) as context:
        assert result.tokens == greedy(context, PROMPT, 60)
    assert result.sources == ["plain"] * 60


def read(context: pyspec.Context, prompt: list[int], draft: list[int]) -> pyspec.Rows:
    """Read a prompt in physical batches, the last one with a draft; return the rows of its last token and the draft."""
    batch = pyspec.Batch()
    for position, token in enumerate(prompt):
        if len(batch) == context.n_ubatch:
            context.decode(batch)
            batch.clear()
        batch.add(token, position, output=position + 1 == len(prompt))
    batch.extend(draft, len(prompt), output=True)
    return context.decode(batch)


@pytest.mark.parametrize("types", KINDS[1:])
def test_the_rows_are_those_of_the_same_widths_without_speculation(
    engine: Any, types: str, target: pyspec.Model
) -> None:
    """Level 2: the same tokens in the same batches, without any deciding, give the same bits."""
    widths: list[int] = []

    class Recorder:
        def begin(self, info: Any) -> None: ...
        def end(self, result: Any) -> None: ...
        def round(self, outcome: Any) -> None:
            widths.append(len(outcome.proposal.draft.tokens) + 1)
            drafts.append(list(outcome.proposal.draft.tokens))
            accepted.append(outcome.n_accepted)

    drafts: list[list[int]] = []
    accepted: list[int] = []
    result = engine(types).generate(REPEATING, max_tokens=80, n_top=3, observer=Recorder())
    emitted, tops = iter(result.tokens), []
    with pyspec.Context(target, config()) as context:
        rows = read(context, REPEATING, drafts[0])  # the first token comes from the decode that reads the prompt's end
        for draft, n_accepted, following in zip(drafts, accepted, [*drafts[1:], None], strict=True):
            length = context.memory.length(0) - len(draft)
            for row in range(n_accepted + 1):
                tokens, logits = rows.top_k(row, 3)
                tops.append(tuple(zip(tokens.tolist(), logits.tolist(), strict=True)))
            context.memory.trim(0, length + n_accepted)
            pending = [next(emitted) for _ in range(n_accepted + 1)][-1]
            rows = rows if following is None else decode(context, [pending, *following])
    assert tops == result.top
    assert max(widths) > 1


@pytest.mark.parametrize("types", KINDS[1:])
@pytest.mark.parametrize("sampling", [{}, {"repeat_penalty": 1.3, "presence_penalty": 0.5}, {"top_k": 0, "min_p": 0.0}])
def test_with_a_seed_speculation_changes_no_token(engine: Any, types: str, sampling: dict[str, Any]) -> None:
    settings = SamplingConfig(temperature=1.0, seed=11, **sampling)
    plain = engine("none").generate(REPEATING, max_tokens=100, sampling=settings)
    other = engine(types).generate(REPEATING, max_tokens=100, sampling=settings)
    assert other.tokens == plain.tokens
    assert other.stats.n_drafted > 10
    assert plain.tokens != engine("none").generate(REPEATING, max_tokens=100).tokens


def test_seeds_are_reported_and_repeat(engine: Any) -> None:
    one = engine("ngram-simple")
    first = one.generate(PROMPT, max_tokens=40, sampling=SamplingConfig(temperature=1.0))
    again = one.generate(PROMPT, max_tokens=40, sampling=SamplingConfig(temperature=1.0, seed=first.seed))
    other = one.generate(PROMPT, max_tokens=40, sampling=SamplingConfig(temperature=1.0))
    assert again.tokens == first.tokens != other.tokens


def test_a_model_drafting_for_itself_is_always_accepted(engine: Any) -> None:
    result = engine("draft-simple", draft="target-llama").generate(PROMPT, max_tokens=200)
    assert result.stats.acceptance > 0.99, "only numeric ties may be rejected"


def test_a_banned_token_never_appears(engine: Any) -> None:
    one = engine("draft-simple")
    banned = one.generate(PROMPT, max_tokens=30).tokens[3]
    result = one.generate(PROMPT, max_tokens=60, sampling=SamplingConfig(logit_bias={banned: -np.inf}))
    plain = engine().generate(PROMPT, max_tokens=60, sampling=SamplingConfig(logit_bias={banned: -np.inf}))
    assert banned not in result.tokens
    assert result.tokens == plain.tokens


@pytest.mark.parametrize("types", KINDS)
def test_an_end_token_ends_it_also_inside_a_draft(engine: Any, open_zoo: OpenZoo, types: str) -> None:
    one = engine(types, "target-llama-eog", "draft-llama-eog")
    plain = engine("none", "target-llama-eog")
    eog = open_zoo("target-llama-eog").vocab.eog
    drafted_past_it = 0
    for start in range(60, 100, 4):
        result = one.generate([1, start, start + 3, 200 - start], max_tokens=150)
        assert result.finish is Finish.EOG
        assert [token for token in result.tokens if token in eog] == result.tokens[-1:]
        assert result.tokens == plain.generate([1, start, start + 3, 200 - start], max_tokens=150).tokens
        drafted_past_it += result.stats.n_drafted > result.stats.n_accepted
        assert one.call(lambda workshop: workshop.context.memory.length(0)) <= 4 + len(result.tokens)
    assert types != "draft-simple" or drafted_past_it


@pytest.mark.parametrize("types", KINDS)
@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 7])
def test_max_tokens_is_exact(engine: Any, types: str, max_tokens: int) -> None:
    result = engine(types).generate(REPEATING, max_tokens=max_tokens)
    assert (len(result.tokens), result.finish) == (max_tokens, Finish.LENGTH)
    assert result.tokens == engine().generate(REPEATING, max_tokens=20).tokens[:max_tokens]


@pytest.mark.parametrize("types", KINDS)
@pytest.mark.parametrize("n_prompt", [200, 248, 254, 255, 256])
def test_the_end_of_the_context(engine: Any, types: str, n_prompt: int) -> None:
    prompt = (REPEATING * 10)[:n_prompt]
    result = engine(types).generate(prompt)
    assert result.finish is Finish.CONTEXT
    assert len(result.tokens) == 256 - n_prompt + 1
    assert result.tokens == engine().generate(prompt).tokens


def test_a_prompt_that_does_not_fit(engine: Any) -> None:
    one = engine()
    with pytest.raises(ContextFullError, match="257 tokens; the context has room for 256"):
        one.generate([60] * 257)
    assert len(one.generate(PROMPT, max_tokens=3).tokens) == 3


@pytest.mark.parametrize("types", KINDS)
def test_a_stream_left_midway_leaves_no_trace(engine: Any, types: str) -> None:
    one = engine(types)
    expected = engine(types).generate(REPEATING, max_tokens=40).tokens
    for n_rounds in range(4):
        for leave in ("close", "with", "forget"):
            stream = one.stream([1, 99, 98, 97, 96, 95], max_tokens=30)
            for _ in range(n_rounds):
                next(stream)
            if leave == "close":
                stream.close()
                assert stream.result.finish in (Finish.CANCELLED, Finish.LENGTH, None)  # it may have run to its end
            elif leave == "with":
                with stream:
                    pass
            else:
                del stream
                gc.collect()
            assert one.generate(REPEATING, max_tokens=40).tokens == expected


def test_a_request_waits_while_another_one_runs(engine: Any) -> None:
    one = engine()
    stream = one.stream(PROMPT, max_tokens=10)
    next(stream)
    assert len(one.generate(PROMPT, max_tokens=2).tokens) == 2
    assert len([*stream]) == 9


def test_requests_do_not_see_each_other(engine: Any) -> None:
    one = engine("ngram-simple,draft-simple")
    alone = {i: engine("ngram-simple,draft-simple").generate([1, 60 + i, 80], max_tokens=30).tokens for i in range(3)}
    for i in (0, 1, 2, 1, 0):
        assert one.generate([1, 60 + i, 80], max_tokens=30).tokens == alone[i]


def test_an_engine_serves_any_thread(engine: Any) -> None:
    one = engine()
    expected = one.generate(PROMPT, max_tokens=5).tokens
    found: list[list[int]] = []
    assert in_thread(lambda: found.append(one.generate(PROMPT, max_tokens=5).tokens)) is None
    assert found == [expected]


def test_a_vocabulary_that_differs_is_refused_naming_the_difference(engine: Any) -> None:
    with pytest.raises(VocabMismatchError, match=r"token 89 is b'Q'"):
        engine("draft-simple", draft="draft-llama-othervocab")


def test_a_padded_vocabulary_is_accepted(engine: Any) -> None:
    usual = engine("draft-simple").generate(PROMPT, max_tokens=60)
    padded = engine("draft-simple", draft="draft-llama-paddedvocab").generate(PROMPT, max_tokens=60)
    assert padded.tokens == usual.tokens
    assert padded.stats.n_accepted == usual.stats.n_accepted


@pytest.mark.parametrize("target", ["target-mamba", "target-lfm2", "target-mtp"])
def test_memory_that_does_not_trim_decodes_plainly(engine: Any, open_zoo: OpenZoo, target: str) -> None:
    one = engine("none", target)
    with make_context(open_zoo(target)) as context:
        expected = greedy(context, PROMPT, 40)
    assert one.generate(PROMPT, max_tokens=40).tokens == expected
    assert one.generate(PROMPT, max_tokens=40).tokens == expected


def test_a_drafter_without_its_draft_model_is_refused(target: pyspec.Model) -> None:
    with pytest.raises(UnsupportedError, match="draft model"):
        pyspec.Engine(target, speculation=Speculation("draft-simple"))


def test_a_draft_model_alone_joins_the_drafters_of_auto(target: pyspec.Model, open_zoo: OpenZoo) -> None:
    with pyspec.Engine(target, speculation=Speculation(draft_model=open_zoo("draft-llama")), context=config()) as one:
        assert one.speculation.types == ("auto", *LOOKUPS, "draft-simple")
        drafted = one.generate(PROMPT, max_tokens=20)
    with pyspec.Engine(target, speculation=Speculation("none"), context=config()) as plain:
        assert drafted.tokens == plain.generate(PROMPT, max_tokens=20).tokens


def test_a_draft_model_that_nothing_uses_is_warned_of(
    target: pyspec.Model, open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture
) -> None:
    with pyspec.Engine(target, speculation=Speculation("none", open_zoo("draft-llama")), context=config()) as one:
        assert one.generate(PROMPT, max_tokens=20).stats.n_drafted == 0
    assert "draft-llama" in caplog.text


def test_nothing_is_kept_when_an_engine_cannot_be_made(open_zoo: OpenZoo, zoo: Path) -> None:
    with pyspec.Model(zoo / "target-llama.gguf") as model:
        with pytest.raises(VocabMismatchError):
            pyspec.Engine(model, speculation=Speculation("draft-simple", open_zoo("draft-llama-othervocab")))
        assert all(context.closed for context in model._contexts)


@pytest.mark.parametrize("prompt", [[], "", [384], [-1], [1.5], [None], None, 5, [True], [[1], 2], [[]]])
def test_wrong_prompts(engine: Any, prompt: Any) -> None:
    one = engine()
    if prompt == "":  # becomes BOS
        assert one.generate(prompt, max_tokens=2).prompt_tokens == [1]
        return
    with pytest.raises((ConfigError, TokenError)):
        one.generate(prompt, max_tokens=2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": "5"},
        {"sampling": 5},
        {"sampling": {"temperature": 1}},
        {"stop": 5},
        {"stop": [""]},
        {"stop": [5]},
        {"n_top": -1},
        {"n_top": 385},
        {"n_top": "a"},
        {"sampling": SamplingConfig(logit_bias={384: 1.0})},
    ],
)
def test_wrong_arguments(engine: Any, arguments: dict[str, Any]) -> None:
    one = engine()
    with pytest.raises(ConfigError):
        one.generate(PROMPT, **{"max_tokens": 2, **arguments})
    assert len(one.generate(PROMPT, max_tokens=2).tokens) == 2


def test_text_goes_in_and_comes_out(engine: Any, target: pyspec.Model) -> None:
    result = engine("draft-simple").generate("the model takes", max_tokens=40, stop="zzzz")
    assert result.text == target.vocab.detokenize(result.tokens)
    assert result.prompt_tokens == [1, *target.vocab.tokenize("the model takes")]


@pytest.mark.parametrize("types", KINDS)
def test_a_stop_string_cuts_alike(engine: Any, types: str) -> None:
    text = engine().generate(REPEATING, max_tokens=60).text
    stop = text[25:28]
    plain = engine().generate(REPEATING, max_tokens=60, stop=stop)
    other = engine(types).generate(REPEATING, max_tokens=60, stop=[stop, "never said"])
    assert (other.text, other.tokens, other.finish) == (plain.text, plain.tokens, Finish.STOP)
    assert stop not in other.text


def test_the_statistics_add_up(engine: Any) -> None:
    result = engine("ngram-simple,draft-simple").generate(REPEATING, max_tokens=90)
    stats = result.stats
    assert stats.n_emitted == len(result.tokens) == stats.n_accepted + stats.n_rounds
    assert stats.n_drafted == sum(drafter.n_drafted for drafter in result.drafters.values())
    assert stats.n_accepted == sum(source.startswith("draft:") for source in result.sources)
    for drafter in result.drafters.values():
        assert drafter.accepted_at == sorted(drafter.accepted_at, reverse=True)


def test_a_real_model_with_and_without_lookups(smollm2: Path) -> None:
    prompt = "apple, pear, plum, cherry, fig, lime.\n" * 4 + "apple, pear,"
    settings = ContextConfig(n_ctx=512, n_threads=1)
    with pyspec.Model(smollm2) as model:
        with pyspec.Engine(model, context=settings) as one:
            plain = one.generate(prompt, max_tokens=48, n_top=8)
        with pyspec.Engine(model, context=settings, speculation=speculation("ngram-simple")) as one:
            other = one.generate(prompt, max_tokens=48, n_top=8)
    assert other.stats.n_accepted > 5
    for i, (ours, theirs) in enumerate(zip(plain.tokens, other.tokens, strict=False)):
        if ours != theirs:  # level 3: a quantised model may flip a near tie
            assert all(abs(dict(run.top[i])[ours] - dict(run.top[i])[theirs]) < 0.5 for run in (plain, other))
            break
    else:
        assert len(plain.tokens) == len(other.tokens)
