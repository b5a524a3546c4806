"""What llama.cpp would die of is refused before it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec.errors import BatchError, ConfigError, ContextCreateError, PositionError, UnsupportedError

OpenZoo = Callable[[str], pyspec.Model]
HEADS = [
    "draft-eagle3",
    "draft-eagle3-shared",
    "draft-dflash",
    "draft-dflash2",
    "draft-dspark",
    "draft-gemma4",
    "draft-mtp",
]
MODELS = ["target-llama", "target-mtp", "target-mamba", "target-lfm2", "target-swa", "draft-llama", "target-gemma4"]


def config(**settings: Any) -> pyspec.ContextConfig:
    return pyspec.ContextConfig(**{"n_ctx": 64, "n_batch": 32, "n_ubatch": 16, "n_threads": 1, **settings})


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_no_model(open_zoo: OpenZoo, name: str) -> None:
    head = open_zoo(name)
    assert head.is_head
    with pytest.raises(ContextCreateError, match="head that drafts for one"):
        pyspec.Context(head, config())
    with pytest.raises(UnsupportedError, match=rf"{name}.gguf is a head for draft-"):
        pyspec.Engine(head)
    target = open_zoo("target-mtp" if name == "draft-mtp" else "target-llama")
    with pytest.raises(UnsupportedError, match="is no language model by itself; it is made for draft-"):
        pyspec.Engine(target, speculation=pyspec.Speculation("draft-simple", head), context=config())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_no_head(open_zoo: OpenZoo, name: str) -> None:
    assert not open_zoo(name).is_head


def test_next_n_layers_alone_are_not_run_as_a_model(open_zoo: OpenZoo) -> None:
    with pyspec.Context(open_zoo("target-mtp"), config()) as target:
        with pytest.raises(ContextCreateError, match="next-n layers only"):
            pyspec.Context(open_zoo("draft-mtp"), config(), target=target)
        with pytest.raises(ContextCreateError, match="has no next-n layers"):
            pyspec.Context(open_zoo("draft-llama"), config(), target=target, next_n=True)


@pytest.mark.parametrize("name", MODELS)
def test_what_has_no_encoder_does_not_encode(open_zoo: OpenZoo, name: str) -> None:
    with pyspec.Context(open_zoo(name), config()) as context, pytest.raises(UnsupportedError, match="no encoder"):
        context.encode(np.zeros((3, 64), np.float32))


ROWS = [
    ("target-llama", {}, (64, False)),
    ("draft-eagle3", {}, (64, True)),
    ("draft-dflash", {}, (192, False)),
    ("draft-dspark", {}, (192, False)),
    ("target-mtp", {"next_n": True}, (64, True)),
]


@pytest.mark.parametrize(("name", "options", "rule"), ROWS, ids=[name for name, _, _ in ROWS])
@pytest.mark.parametrize("width", [0, 1, 63, 64, 65, 192, 193])
@pytest.mark.parametrize("token", [5, -1])
def test_rows_are_those_that_a_model_reads(
    open_zoo: OpenZoo, name: str, options: dict[str, bool], rule: tuple[int, bool], width: int, token: int
) -> None:
    """Any combination of token and row is computed or refused; none ends the process."""
    target_name = "target-mtp" if name == "target-mtp" else "target-llama"
    with pyspec.Context(open_zoo(target_name), config()) as target:
        other = None if name == target_name and not options else target
        with pyspec.Context(open_zoo(name), config(), target=other, **options) as context:
            batch = pyspec.Batch()
            state = np.full(width, 0.125, np.float32) if width else None
            batch.add(token, 0, output=True, state=state)
            wanted_width, beside_token = rule
            legal = width == wanted_width and (token >= 0) == beside_token
            legal = legal or (not width and not beside_token and token >= 0)
            if legal:
                assert len(context.decode(batch)) == 1
            else:
                with pytest.raises((BatchError, pyspec.errors.TokenError)):
                    context.decode(batch)


@pytest.mark.parametrize("name", ["target-lfm2", "target-mtp"])
@pytest.mark.parametrize(("n_rs_seq", "sizes"), [(15, {}), (1000, {}), (31, {"n_ubatch": 32}), (62, {"n_batch": 64})])
def test_more_snapshots_than_a_batch_are_refused(
    open_zoo: OpenZoo, name: str, n_rs_seq: int, sizes: dict[str, int]
) -> None:
    with pytest.raises(ConfigError, match=f"{n_rs_seq} snapshots"):
        pyspec.Context(open_zoo(name), config(n_rs_seq=n_rs_seq, **sizes))
    with pyspec.Context(open_zoo(name), config(n_rs_seq=14)) as context:  # the model is still good
        batch = pyspec.Batch()
        batch.extend(range(1, 30), 0)
        context.decode(batch)


def test_a_shared_memory_must_be_laid_out_alike(open_zoo: OpenZoo) -> None:
    assistant, options = open_zoo("draft-gemma4"), {"next_n": True}
    with (
        pyspec.Context(open_zoo("target-llama"), config()) as other,
        pytest.raises(UnsupportedError, match="gemma4 target"),
    ):
        pyspec.Context(assistant, config(), target=other, **options)
    with pyspec.Context(open_zoo("target-gemma4"), config(n_seq_max=2)) as target:
        with pytest.raises(ConfigError, match="n_seq_max must be the target's 2, not 1"):
            pyspec.Context(assistant, config(), target=target, **options)
        with pytest.raises(ConfigError, match="flash_attn"):
            pyspec.Context(assistant, config(n_seq_max=2, flash_attn="off"), target=target, **options)
        batch = pyspec.Batch()
        batch.add(1, 0)
        target.decode(batch)
        with pytest.raises(PositionError, match="must be empty"):
            pyspec.Context(assistant, config(n_seq_max=2), target=target, **options)


def test_rows_that_the_device_selects_from_are_not_here(target: pyspec.Model) -> None:
    with pyspec.Context(target, config()) as context:
        assert context.hidden.select_on_device(0, 10)
        batch = pyspec.Batch()
        batch.add(1, 0, output=True)
        rows = context.decode(batch)
        with pytest.raises(UnsupportedError, match="device selects"):
            rows.logits(0)
        assert rows.top_k(0, 3)[0][0] == rows.argmax(0)
        context.hidden.select_on_device(0, 0)
        batch.clear()
        batch.add(1, 1, output=True)
        assert len(context.decode(batch).logits(0)) == context.n_vocab
