"""What cannot work is refused with an error that names what is missing; what can, finds its drafter and its sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import ModelConfig, SamplingConfig, Speculation
from pyspec.drafters.automatic import LOOKUPS, resolved
from pyspec.drafters.model_drafter import draft_context_config
from pyspec.errors import ConfigError, PyspecError, UnsupportedError, VocabMismatchError
from pyspec.speculation.detection import drafter_for
from tests.conftest import Script
from tests.pairs import (
    DFLASH,
    DSPARK,
    EAGLE3,
    LONG,
    MEDIUM,
    N_MAX,
    SHORT,
    TARGETS,
    WITH_LAYER_INPUTS,
    Drafts,
    ModelTable,
    OpenZoo,
    Pair,
    sizes,
)
from tests.zoo import MODELS, dflash, eagle3
from tests.zoo.language import N_EMBD
from tests.zoo.writer import GgufModel

MTP = ("draft-mtp", "draft-gemma4")
KINDS = {
    "draft-simple": tuple(name for name in MODELS if name.startswith(("draft-llama", "draft-mamba"))),
    "draft-eagle3": (*EAGLE3, "draft-eagle3-nextn"),
    "draft-mtp": MTP,
    "draft-dflash": DFLASH,
    "draft-dspark": DSPARK,
}
FED = ("draft-eagle3", "draft-dflash", "draft-dspark")
ONE_OF_EACH = [
    Pair("target-llama", "draft-simple", "draft-llama"),
    Pair("target-llama", "draft-simple", "draft-mamba"),
    Pair("target-llama", "draft-eagle3", "draft-eagle3-d2t"),
    Pair("target-mtp", "draft-eagle3", "draft-eagle3-nextn"),
    Pair("target-mtp", "draft-mtp"),
    Pair("target-mtp-chain", "draft-mtp"),
    Pair("target-gemma4", "draft-mtp", "draft-gemma4"),
    Pair("target-llama", "draft-dflash", "draft-dflash"),
    Pair("target-llama", "draft-dflash", "draft-dflash2"),
    Pair("target-llama", "draft-dspark", "draft-dspark"),
    Pair("target-llama", "draft-dspark", "draft-dspark-noanchor"),
]
Refuse = Callable[..., None]


@pytest.fixture
def refuse(open_zoo: OpenZoo) -> Refuse:
    """Require that an engine is refused with an error of this kind and with these words, and leaves nothing open."""

    def check(target: Any, name: str, draft: Any, error: type[PyspecError], *words: str, **options: Any) -> None:
        models = [open_zoo(one) if isinstance(one, str) else one for one in (target, draft) if one is not None]
        before = [context for model in models for context in model._contexts if not context.closed]
        speculation = Speculation(name, models[1] if draft is not None else None, {name: options})
        with pytest.raises(error) as caught:
            pyspec.Engine(models[0], speculation=speculation, context=sizes())
        for word in words:
            assert word in str(caught.value)
        after = [context for model in models for context in model._contexts if not context.closed]
        assert len(after) == len(before)

    return check


def narrow_target(path: Path) -> None:
    """Write a llama of width 32 that says nothing sensible."""
    width, n_ff = 32, 48
    model = GgufModel(path, "llama", 1, n_ff=n_ff)
    del model.writer.kv_data[0]["llama.embedding_length"]
    model.writer.add_embedding_length(width)
    model.heads(2, 2, 16)
    nothing = np.zeros((width, width))
    model.embedding_and_output(np.ones((384, width)), np.ones((384, width)))
    model.tensor("output_norm.weight", np.ones(width))
    attention = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), nothing)
    feed_forward = {"ffn_gate": np.zeros((n_ff, width)), "ffn_up": np.zeros((n_ff, width))}
    feed_forward["ffn_down"] = np.zeros((width, n_ff))
    model.block(0, {"attn_norm": np.ones(width), "ffn_norm": np.ones(width), **attention, **feed_forward})
    model.close()


class WiderTarget(GgufModel):
    """For a target of width 128."""

    def u32(self, key: str, value: int) -> None:
        super().u32(key, 2 * value if key == "target_hidden_size" else value)


class WithoutMask(GgufModel):
    """With a vocabulary that has no mask token."""

    def close(self) -> None:
        del self.writer.kv_data[0]["tokenizer.ggml.mask_token_id"]
        super().close()


class ShortBlocks(GgufModel):
    """With blocks that hold the pending token and nothing else."""

    def u32(self, key: str, value: int) -> None:
        super().u32(key, 1 if key == "block_size" else value)


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a model of the zoo in another way and open it; closed after the test."""
    made: list[pyspec.Model] = []

    def make(write: Callable[..., None], kind: type[GgufModel] = GgufModel, **changes: Any) -> pyspec.Model:
        path = tmp_path / f"variant-{len(made)}.gguf"
        with monkeypatch.context() as patched:
            for module in (dflash, eagle3):
                patched.setattr(module, "GgufModel", kind)
            write(path, **changes)
        made.append(pyspec.Model(path))
        return made[-1]

    yield make
    for model in made:
        model.close()


@pytest.mark.parametrize("name", [name for name in KINDS if name != "draft-mtp"])
def test_no_draft_model(name: str, refuse: Refuse) -> None:
    refuse("target-llama", name, None, UnsupportedError, name, "needs a draft model", "-md")


def test_no_next_n_layers(refuse: Refuse, zoo: Path) -> None:
    refuse("target-llama", "draft-mtp", None, UnsupportedError, "needs next-n layers", "target-llama.gguf", "-md")
    refuse("target-llama", "draft-mtp", "draft-llama", UnsupportedError, "needs next-n layers", "draft-llama.gguf")
    with pyspec.Model(zoo / "target-mtp.gguf", ModelConfig(next_n=False)) as target:
        refuse(target, "draft-mtp", None, UnsupportedError, "ModelConfig(next_n=True)", "target-mtp.gguf")


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in WITH_LAYER_INPUTS])
@pytest.mark.parametrize("name", FED)
def test_targets_without_layer_inputs(target: str, name: str, refuse: Refuse, open_zoo: OpenZoo) -> None:
    draft = KINDS[name][0]
    if (target, name) == ("target-gemma4", "draft-eagle3"):  # whose layer 3 stands for its next-n rows
        assert Pair(target, name, draft).speculation(open_zoo).names == (name,)
        return
    refuse(target, name, draft, UnsupportedError, name, "does not hand out", f"{target}.gguf")


@pytest.mark.parametrize("target", ["target-llama", "target-lfm2", "target-moe", "target-swa", "target-mamba"])
def test_targets_without_next_n_rows(target: str, refuse: Refuse) -> None:
    refuse(target, "draft-mtp", "draft-mtp", UnsupportedError, "before the output norm", f"{target}.gguf")
    refuse(target, "draft-mtp", "draft-gemma4", UnsupportedError, "draft-gemma4.gguf", f"{target}.gguf")


def test_layers_that_the_target_does_not_have(refuse: Refuse, variant: Any) -> None:
    for layer in (5, 9):
        for module, name in ((eagle3, "draft-eagle3"), (dflash, "draft-dflash")):
            draft = variant(module._write, layers=(1, layer, 2))
            refuse("target-llama", name, draft, UnsupportedError, name, f"layer {layer}", "target-llama.gguf has")
    refuse("target-llama", "draft-dflash", variant(dflash._write, layers=(1, 2, 4)), UnsupportedError, "1, 2, 4")
    refuse("target-llama", "draft-eagle3", "draft-eagle3-nextn", UnsupportedError, "before the output norm")


def test_another_width(refuse: Refuse, variant: Any) -> None:
    wide = variant(eagle3._write, WiderTarget, features=np.zeros((N_EMBD, 6 * N_EMBD)))
    refuse("target-llama", "draft-eagle3", wide, UnsupportedError, "width 128", "target-llama.gguf has 64")
    narrow = variant(narrow_target)
    for name in FED:
        refuse(narrow, name, KINDS[name][0], UnsupportedError, "width 64", "has 32")
    for draft in ("draft-mtp", "target-mtp-chain"):
        refuse(narrow, "draft-mtp", draft, UnsupportedError, "width 64", "gives 32")


@pytest.mark.parametrize("name", KINDS)
def test_another_vocabulary(name: str, refuse: Refuse) -> None:
    """The target is the one that differs."""
    draft = KINDS[name][0]
    refuse("draft-llama-othervocab", name, draft, VocabMismatchError, "token 89", f"{draft}.gguf cannot draft for")


WRONG_KINDS = [
    (name, draft)
    for name in KINDS
    for kind, drafts in KINDS.items()
    for draft in (drafts if kind == "draft-mtp" else drafts[:1])
    if kind != name
]


@pytest.mark.parametrize(("name", "draft"), [pair for pair in WRONG_KINDS if pair[0] != "draft-simple"])
def test_a_draft_model_of_another_kind(name: str, draft: str, refuse: Refuse) -> None:
    target = "target-llama" if name == "draft-mtp" else "target-mtp"
    refuse(target, name, draft, UnsupportedError, name, f"{draft}.gguf")


def test_the_targets_own_next_n_layers_beside_a_draft_model_of_another_kind(open_zoo: OpenZoo) -> None:
    pair = Pair("target-mtp", "draft-simple,draft-mtp", "draft-llama")
    with pyspec.Context(open_zoo(pair.target), sizes()) as context:
        chain = pair.chain(open_zoo, context)
        drafter: Any = chain.drafters[1]
        assert drafter._context.model is open_zoo(pair.target)
        chain.close()


@pytest.mark.parametrize("draft", [draft for name, draft in WRONG_KINDS if name == "draft-simple"])
def test_a_head_is_no_model_for_draft_simple(draft: str, run_script: Script, zoo: Path, open_zoo: OpenZoo) -> None:
    """In a process of its own: llama.cpp dies of a model that has only next-n layers."""
    script = """
        import sys, pyspec
        target, draft = map(pyspec.Model, sys.argv[1:])
        try:
            pyspec.Engine(target, speculation=pyspec.Speculation("draft-simple", draft))
        except pyspec.errors.UnsupportedError as error:
            print(error)
    """
    said = run_script(script, zoo / "target-mtp.gguf", zoo / f"{draft}.gguf").stdout
    assert f"{draft}.gguf" in said
    assert drafter_for(open_zoo(draft)) in said


@pytest.mark.parametrize("head", ["draft-mtp", "draft-gemma4", "draft-dflash", "draft-eagle3-shared"])
def test_a_head_is_no_target(head: str, run_script: Script, zoo: Path) -> None:
    script = """
        import sys, pyspec
        try:
            pyspec.Engine(pyspec.Model(sys.argv[1]))
        except pyspec.PyspecError as error:
            print(error)
    """
    assert run_script(script, zoo / f"{head}.gguf").stdout


def test_what_block_drafters_need(refuse: Refuse, variant: Any) -> None:
    without = "no confidence head"
    refuse("target-llama", "draft-dspark", "draft-dspark-noconf", ConfigError, "p_min", without, p_min=0.5)
    for write, name in ((dflash.draft_dflash, "draft-dflash"), (dflash.draft_dspark, "draft-dspark")):
        refuse("target-llama", name, variant(write, WithoutMask), UnsupportedError, name, "mask token")
    short = variant(dflash.draft_dflash, ShortBlocks)
    refuse("target-llama", "draft-dflash", short, UnsupportedError, "blocks of 1")


@pytest.mark.parametrize(("name", "draft"), [(name, draft) for name, drafts in KINDS.items() for draft in drafts])
def test_a_draft_model_tells_its_drafter(name: str, draft: str, open_zoo: OpenZoo) -> None:
    assert drafter_for(open_zoo(draft)) == name
    assert resolved(Speculation(draft_model=open_zoo(draft))).names == (*LOOKUPS, name)


def test_every_draft_model_of_the_zoo_has_a_kind() -> None:
    assert {draft for drafts in KINDS.values() for draft in drafts} == {n for n in MODELS if n.startswith("draft-")}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("pyspec.drafters")]


@pytest.mark.parametrize("pair", ONE_OF_EACH, ids=str)
def test_a_draft_context_that_is_too_small(pair: Pair, open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture) -> None:
    """Drafting stops with one warning, and the output goes on; the second request drafts again until it is too long."""
    n_ctx, n_tokens = 44, 108  # many more than wait to be read together
    target = open_zoo(pair.target)
    with pyspec.Engine(target, context=sizes()) as engine:
        plain = engine.generate(MEDIUM, max_tokens=n_tokens).tokens
    with pyspec.Engine(
        target, speculation=pair.speculation(open_zoo, self_check=True, n_ctx=n_ctx), context=sizes()
    ) as engine:
        drafter: Any = engine.call(lambda workshop: workshop.chain.drafters[0])
        room = drafter._context.n_ctx_seq
        for _ in range(2):
            drafts = Drafts()
            assert engine.generate(MEDIUM, max_tokens=n_tokens, observer=drafts).tokens == plain
            ends = [position + len(draft) for position, draft in drafts.tokens if draft]
            assert n_ctx - 3 * N_MAX <= max(ends) <= room + 1  # the last token is drafted and not read
    (said,) = warnings_of(caplog)
    assert pair.drafter in said
    assert "The draft context holds" in said


@pytest.mark.parametrize(
    ("n_ctx_train", "n_ctx_seq", "n_sequences", "n_rows", "expected"),
    [
        (256, 1000, 4, 1, (1024, 512, 4)),
        (0, 1000, 2, 1, (2000, 512, 2)),
        (4096, 1000, 3, 8, (3000, 512, 24)),
        (4096, 1000, 64, 16, (64000, 1024, 1024)),
    ],
)
def test_sizes_of_draft_contexts(
    n_ctx_train: int, n_ctx_seq: int, n_sequences: int, n_rows: int, expected: tuple[int, int, int]
) -> None:
    model: Any = SimpleNamespace(info=SimpleNamespace(n_ctx_train=n_ctx_train))
    config = draft_context_config(model, n_ctx_seq=n_ctx_seq, n_sequences=n_sequences, n_rows=n_rows)
    assert (config.n_ctx, config.n_batch, config.n_outputs_max) == expected
    assert (config.n_ubatch, config.n_seq_max) == (config.n_batch, n_sequences)


@pytest.mark.parametrize(
    ("pair", "n_ctx_seq", "n_outputs"),
    [
        (Pair("target-llama", "draft-simple", "draft-llama"), 128, 1),
        (Pair("target-llama", "draft-eagle3", "draft-eagle3"), 128, N_MAX + 1),
        (Pair("target-mtp", "draft-mtp"), 129, N_MAX + 1),  # its first entry stands before the first token
        (Pair("target-llama", "draft-dflash", "draft-dflash"), 128 + N_MAX + 1, N_MAX + 1),  # and a block
        (Pair("target-llama", "draft-dspark", "draft-dspark"), 128 + N_MAX, N_MAX),
    ],
    ids=str,
)
@pytest.mark.parametrize("n_sequences", [1, 3])
def test_sizes_of_the_drafters(pair: Pair, n_ctx_seq: int, n_outputs: int, n_sequences: int, open_zoo: OpenZoo) -> None:
    with pyspec.Context(open_zoo(pair.target), sizes(n_sequences)) as context:
        chain = pair.chain(open_zoo, context)
        draft = chain.drafters[0]._context  # type: ignore[attr-defined]
        assert (draft.n_ctx_seq, draft.n_seq_max) == (n_ctx_seq, n_sequences)
        assert draft.n_outputs_max == n_outputs * n_sequences
        chain.close()


@pytest.mark.parametrize("pair", ONE_OF_EACH, ids=str)
def test_a_draft_model_has_the_targets_threads(pair: Pair, open_zoo: OpenZoo) -> None:
    cases: list[tuple[dict[str, Any], int]] = [({}, 3), ({"n_threads": 2}, 2)]
    for given, expected in cases:
        speculation = pair.speculation(open_zoo, **given)
        with pyspec.Engine(open_zoo(pair.target), speculation=speculation, context=sizes(n_threads=3)) as engine:
            assert engine.call(lambda workshop: getattr(workshop.chain.drafters[0], "n_threads", None)) == expected


@pytest.mark.parametrize("pair", ONE_OF_EACH, ids=str)
def test_selecting_on_the_device_drafts_the_same(
    pair: Pair, open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    sampling = SamplingConfig(temperature=0.8, seed=3)
    for backend_sampling in (False, True):
        speculation = pair.speculation(open_zoo, backend_sampling=backend_sampling, sampling="probabilistic", p_min=0.1)
        with pyspec.Engine(open_zoo(pair.target), speculation=speculation, context=sizes()) as engine:
            drafter: Any = engine.call(lambda workshop: workshop.chain.drafters[0])
            assert drafter.backend_sampling == backend_sampling or len(warnings_of(caplog)) == 1
            drafts = Drafts()
            for settings in (None, sampling):
                engine.generate(LONG, max_tokens=30, sampling=settings, observer=drafts)
            found.append(drafts.tokens)
    assert found[0] == found[1]
    assert sum(bool(draft) for _, draft in found[0]) > 4


@pytest.mark.parametrize("pair", ONE_OF_EACH, ids=str)
def test_several_sequences_select_on_the_cpu(pair: Pair, open_zoo: OpenZoo, caplog: pytest.LogCaptureFixture) -> None:
    drafts = []
    for backend_sampling in (False, True):
        with pyspec.Context(open_zoo(pair.target), sizes(3)) as context:
            chain = pair.chain(open_zoo, context, backend_sampling=backend_sampling)
            table = ModelTable(context, chain)
            table.begin([LONG, SHORT, MEDIUM], [20, 20, 20])
            table.play()
            drafts.append([outcome.proposal for outcome in table.outcomes])
            chain.close()
    assert drafts[0] == drafts[1]
    (said,) = warnings_of(caplog)
    assert pair.drafter in said
    assert "3 sequences" in said


@pytest.mark.parametrize("pair", ONE_OF_EACH, ids=str)
def test_drafts_that_are_drawn(pair: Pair, open_zoo: OpenZoo) -> None:
    target = open_zoo(pair.target)
    sampling = SamplingConfig(temperature=1.0, seed=21)
    with pyspec.Engine(target, context=sizes()) as engine:
        plain = engine.generate(SHORT, max_tokens=48, sampling=sampling).tokens
    runs = []
    for kind in ("greedy", "probabilistic", "probabilistic"):
        drafts = Drafts()
        speculation = pair.speculation(open_zoo, sampling=kind)
        with pyspec.Engine(target, speculation=speculation, context=sizes()) as engine:
            assert engine.generate(SHORT, max_tokens=48, sampling=sampling, observer=drafts).tokens == plain
        runs.append(drafts)
    greedy, first, again = runs
    assert first.tokens == again.tokens
    assert dict(first.tokens) != dict(greedy.tokens), "the draws changed nothing"
    assert all(draft.probs is None for _, draft in greedy.drafts)
    for _position, draft in first.drafts:
        for token, candidates in zip(draft.tokens, draft.probs or (), strict=True):
            assert token in candidates.tokens
            assert len(candidates.tokens) == len(set(candidates.tokens.tolist())) == len(candidates.probs) <= 10
            assert candidates.probs.sum() == pytest.approx(1.0)
            assert (candidates.probs >= 0.0).all()
