"""Engines with "auto" on real kernels: always made, always plain decoding's output, costs kept for the next one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec import ContextConfig, Speculation
from pyspec.drafters.controller import Controller
from pyspec.drafters.draft_simple import DraftSimple
from pyspec.engine import calibration
from pyspec.engine.timing import DecodeTimes, measured_rows
from pyspec.errors import DecodeError
from pyspec.llama.context import Context
from pyspec.speculation.costs import TYPICAL
from tests.engine.test_engine_native import same_or_tied
from tests.pulled import PulledEngine

OpenZoo = Callable[[str], pyspec.Model]
REPEATING = [1, *([60, 75, 112, 264, 300, 91, 130] * 4)]


def made(open_zoo: OpenZoo, target: str = "target-llama", draft: str | None = None, **sizes: Any) -> PulledEngine:
    config = ContextConfig(**{"n_ctx": 256, "n_batch": 64, "n_ubatch": 16, "n_threads": 1, **sizes})
    speculation = Speculation(draft_model=open_zoo(draft) if draft else None)
    return PulledEngine(open_zoo(target), speculation=speculation, context=config)


def controller_of(engine: PulledEngine) -> Controller:
    assert isinstance(engine.chain, Controller)
    return engine.chain


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("target-llama", None),
        ("target-llama", "draft-llama"),
        ("target-llama", "draft-eagle3"),
        ("target-mamba", "draft-mamba"),
        ("target-lfm2", None),
        ("target-swa", None),
    ],
)
def test_the_output_is_that_of_plain_decoding(open_zoo: OpenZoo, target: str, draft: str | None) -> None:
    config = ContextConfig(n_ctx=256, n_batch=64, n_ubatch=16, n_threads=1)
    with PulledEngine(open_zoo(target), speculation=Speculation("none"), context=config) as plain:
        expected = plain.generate(REPEATING, max_tokens=24, n_top=2)
    with made(open_zoo, target, draft) as engine:
        assert engine.context.memory.length(0) == 0
        same_or_tied(expected, engine.generate(REPEATING, max_tokens=24, n_top=2))
        assert controller_of(engine).costs.verify.points.keys() >= {1, 4}


@pytest.mark.parametrize("n_ctx", [1, 2, 5])
def test_a_small_context_is_no_hindrance(open_zoo: OpenZoo, n_ctx: int) -> None:
    with made(open_zoo, n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=n_ctx) as engine:
        assert engine.generate([1], max_tokens=1).tokens


QUIET = {1: 0.01, 4: 0.015}


def test_what_one_engine_measured_is_the_next_ones(
    open_zoo: OpenZoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def counted(target: Any, *arguments: Any) -> DecodeTimes:
        measured.append(target.model.path.name)
        return measured_rows(target, *arguments)._replace(rows=QUIET, steady=True)

    monkeypatch.setenv("PYSPEC_COSTS", str(tmp_path / "costs"))
    monkeypatch.setattr(calibration, "measured_rows", counted)
    with made(open_zoo):
        pass
    assert not (tmp_path / "costs").exists()  # it did not play
    files: list[Path] = []
    for n_files, n_measured, n_ubatch in [(1, 2, 16), (1, 2, 16), (2, 3, 8)]:
        with made(open_zoo, n_ubatch=n_ubatch) as engine:
            engine.generate(REPEATING, max_tokens=8)
        files[:] = (tmp_path / "costs").iterdir()
        assert (len(files), len(measured)) == (n_files, n_measured)
        contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        assert all(str(1) in content["verify"] and content["acceptance"] for content in contents)
    files[0].write_text(files[0].read_text(encoding="utf-8")[:-9], encoding="utf-8")
    files[1].write_text("{}", encoding="utf-8")
    with made(open_zoo) as engine:
        engine.generate(REPEATING, max_tokens=8)
    assert len(measured) == 4


def test_what_was_measured_beside_something_else_is_not_the_next_ones(
    open_zoo: OpenZoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured: list[Any] = []

    def disturbed(target: Any, *arguments: Any) -> DecodeTimes:
        measured.append(target)
        return measured_rows(target, *arguments)._replace(rows=QUIET, steady=False)

    monkeypatch.setenv("PYSPEC_COSTS", str(tmp_path / "costs"))
    monkeypatch.setattr(calibration, "measured_rows", disturbed)
    caplog.set_level("INFO")
    for _ in range(2):
        with made(open_zoo) as engine:
            in_proportion = {n: took * QUIET[1] / TYPICAL[1] for n, took in TYPICAL.items()}
            assert controller_of(engine).costs.verify.points == pytest.approx(in_proportion)
            assert engine.generate(REPEATING, max_tokens=8).tokens
    assert len(measured) == 2
    assert not (tmp_path / "costs").exists()
    assert "the next engine measures them again" in caplog.text


# What fails


@pytest.mark.parametrize("kind", [DecodeError, RuntimeError])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_decode_that_fails_while_measuring_does_not_stop_an_engine(
    open_zoo: OpenZoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
    at: int,
) -> None:
    decode, n_decodes = Context.decode, 0

    def failing(context: Context, batch: Any) -> Any:
        nonlocal n_decodes
        n_decodes += 1
        rows = decode(context, batch)
        if n_decodes == at:
            msg = "out of memory"
            raise kind(msg)
        return rows

    monkeypatch.setenv("PYSPEC_COSTS", str(tmp_path / "costs"))
    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", failing)
        engine = made(open_zoo)
    with engine:
        assert "target-llama.gguf cannot be measured; auto starts from typical ones: out of memory" in caplog.text
        assert controller_of(engine).costs.verify.points == pytest.approx(TYPICAL)
        assert engine.context.memory.length(0) == 0
        assert len(engine.generate(REPEATING, max_tokens=8).tokens) == 8
    assert not (tmp_path / "costs").exists()  # the next engine measures again


@pytest.mark.parametrize("method", ["begin", "draft", "discard"])
def test_a_drafter_that_raises_while_it_is_measured_does_not_stop_an_engine(
    open_zoo: OpenZoo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    def failing(*_arguments: Any) -> Any:
        msg = "not today"
        raise ZeroDivisionError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(DraftSimple, method, failing)
        engine = made(open_zoo, draft="draft-llama")
    with engine:
        assert "draft-simple cannot be measured; auto starts from typical ones: not today" in caplog.text
        assert controller_of(engine).costs.drafts["draft-simple"].points == {}
        assert 4 in controller_of(engine).costs.verify.points
        assert len(engine.generate(REPEATING, max_tokens=24).tokens) == 24
