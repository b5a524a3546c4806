"""Slots in files: what goes on from one is what would have come without stopping."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyspec
from pyspec import Finish, Grammar, SamplingConfig
from pyspec.engine import Drafting
from pyspec.engine.saving import read, save
from pyspec.errors import BusyError, ConfigError, StateError, UnsupportedError
from tests.engine.test_engine_native import same_or_tied
from tests.pairs import LONG, MODEL_PAIRS, TARGETS, Pair, sizes
from tests.pulled import PulledEngine

OpenZoo = Callable[[str], pyspec.Model]
N_TOKENS = 60
DRAWN = SamplingConfig(temperature=0.9, seed=5, repeat_penalty=1.1, presence_penalty=0.3)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"sampling": DRAWN},
    "mirostat": {"sampling": SamplingConfig(temperature=0.9, seed=5, mirostat=2)},
    "dry": {"sampling": SamplingConfig(temperature=0.9, seed=6, dry_multiplier=0.8)},
    "rejection": {"sampling": DRAWN, "rule": "rejection"},
    "coupled": {"sampling": DRAWN, "rule": "coupled"},
    "grammar": {"sampling": DRAWN, "grammar": Grammar.regex(r"[a-z ]{200}")},
    "stop": {"stop": ["zz", "q q"]},
    "narrow": {"drafting": Drafting("draft-simple", n_max=2), "logprobs": True, "n_top": 2},
}


def make(open_zoo: OpenZoo, pair: Pair, **settings: Any) -> pyspec.Engine:
    return pyspec.Engine(open_zoo(pair.target), speculation=pair.speculation(open_zoo), context=sizes(), **settings)


def check_goes_on(whole: pyspec.Result, resumed: pyspec.Result, path: Path) -> None:
    n_said = read(path).n_emitted
    said = pyspec.Result(tokens=whole.tokens[n_said:], finish=whole.finish, top=whole.top[n_said:])
    assert resumed.tokens == said.tokens
    assert resumed.finish is whole.finish
    assert whole.text.endswith(resumed.text)
    assert resumed.prompt_tokens == whole.prompt_tokens


@pytest.mark.parametrize("name", SETTINGS)
def test_what_was_saved_goes_on_as_if_it_had_not_stopped(name: str, open_zoo: OpenZoo, tmp_path: Path) -> None:
    pair, path = Pair("target-llama", "ngram-simple,draft-simple", "draft-llama"), tmp_path / "slot"
    whole = held_midway(open_zoo, pair, path, **SETTINGS[name])
    with make(open_zoo, pair) as other:
        stream = other.restore_slot(path)
        assert stream is not None
        assert "".join(chunk.text for chunk in stream) == stream.result.text
        assert stream.result.seed == whole.seed
    check_goes_on(whole, stream.result, path)
    assert 0 < len(stream.result.tokens) < len(whole.tokens)


def held_midway(open_zoo: OpenZoo, pair: Pair, path: Path, n_slots: int = 1, **settings: Any) -> pyspec.Result:
    """Generate; the slot is saved between two rounds, when some tokens have been said."""
    speculation = pair.speculation(open_zoo)
    with PulledEngine(open_zoo(pair.target), speculation=speculation, context=sizes(), n_slots=n_slots) as engine:
        stream = engine.stream(LONG, max_tokens=N_TOKENS, **settings)
        while len(stream.result.tokens) < N_TOKENS // 3:
            next(stream)
        save(engine.place.scheduler.slots[0], engine.context).write(path)
        for _chunk in stream:
            pass
        return stream.result


@pytest.mark.parametrize("pair", [*(Pair(target, "ngram-simple") for target in TARGETS), *MODEL_PAIRS[::2]], ids=str)
def test_every_memory_and_drafter(pair: Pair, open_zoo: OpenZoo, tmp_path: Path) -> None:
    path = tmp_path / "slot"
    whole = held_midway(open_zoo, pair, path, 2, n_top=3)
    with make(open_zoo, pair, n_slots=2) as other:
        stream = other.restore_slot(path)
        beside = other.stream([1, 70, 71], max_tokens=20)
        assert stream is not None
        for _chunk in stream:
            pass
        beside.close()
    n_said = len(read(path).tokens) - len(LONG)
    same_or_tied(pyspec.Result(tokens=whole.tokens[n_said:], top=whole.top[n_said:]), stream.result)


def test_an_idle_slot_gives_its_tokens_to_another_engine(open_zoo: OpenZoo, tmp_path: Path) -> None:
    pair, path = Pair("target-llama", "draft-simple", "draft-llama"), tmp_path / "slot"
    with make(open_zoo, pair) as engine:
        first = engine.generate(LONG, max_tokens=9)
        assert engine.save_slot(0, path) == 0
        longer = [*LONG, *first.tokens, 99]
        expected = engine.generate(longer, max_tokens=9).tokens
    with make(open_zoo, pair) as other:
        assert other.restore_slot(path) is None
        result = other.generate(longer, max_tokens=9)
    assert result.tokens == expected
    assert result.stats.n_reused == len(LONG) + len(first.tokens) - 1


def test_the_engines_rule_and_stops_from_an_iterator_are_saved(open_zoo: OpenZoo, tmp_path: Path) -> None:
    target, path = open_zoo("target-llama"), tmp_path / "slot"
    speculation = pyspec.Speculation(
        "ngram-simple", rule="coupled", options={"ngram-simple": {"size_n": 2, "size_m": 4}}
    )
    with PulledEngine(target, speculation=speculation, context=sizes()) as engine:
        stops = (text for text in ["@@@"])
        stream = engine.stream(LONG, max_tokens=np.int64(50), sampling=DRAWN, stop=stops)
        while len(stream.result.tokens) < 10:
            next(stream)
        save(engine.place.scheduler.slots[0], engine.context).write(path)
        list(stream)
    assert read(path).request["settings"]["stop"] == ["@@@"]  # type: ignore[index]
    with make(open_zoo, Pair("target-llama", "ngram-simple")) as other:
        resumed = other.restore_slot(path)
        assert resumed is not None
        list(resumed)
    check_goes_on(stream.result, resumed.result, path)


def test_a_resumed_request_that_is_left_has_its_own_text_only(saved: Path, open_zoo: OpenZoo) -> None:
    with PulledEngine(open_zoo("target-llama"), context=sizes()) as engine:
        slot = read(saved)
        stream = engine.resume(slot)
        texts = [next(stream).text for _ in range(3)]
        stream.close()
    assert stream.result.text == "".join(texts)


def test_devices_and_folders_are_not_replaced(open_zoo: OpenZoo, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with make(open_zoo, Pair("target-llama", "ngram-simple")) as engine:
        engine.generate(LONG, max_tokens=3)
        for wrong in (fifo, tmp_path):
            with pytest.raises(StateError, match="cannot be written"):
                engine.save_slot(0, wrong)
    assert fifo.is_fifo()


def test_odd_content_with_a_right_checksum_is_refused(saved: Path, open_zoo: OpenZoo, tmp_path: Path) -> None:
    good, path = read(saved), tmp_path / "slot"
    assert good.request is not None
    changes: list[dict[str, Any]] = [
        {"n_prompt": 10**9},
        {"n_prompt": 0},
        {"n_released": "x"},
        {"progress": [-1, 0.0]},
        {"progress": None},
        {"reading": 3},
        {"grammar": ["NONE", ""]},
        {"sampling": {}, "logit_bias": [[1]]},
        {"settings": {"n_top": -1}, "drafting": {"n_max": -3}},
    ]
    with make(open_zoo, Pair("target-llama", "draft-simple", "draft-llama")) as engine:
        for change in changes:
            replace(good, request={**good.request, **change}).write(path)
            with pytest.raises(StateError, match="cannot be understood"):
                engine.restore_slot(path)
        replace(good, tokens=[-1, *good.tokens]).write(path)
        with pytest.raises(StateError, match="cannot be understood"):
            engine.restore_slot(path)


def test_no_slot_is_free(saved: Path, open_zoo: OpenZoo) -> None:
    with PulledEngine(open_zoo("target-llama"), context=sizes()) as engine:
        stream = engine.stream(LONG)
        next(stream)
        with pytest.raises(BusyError, match="No slot is free"):
            engine.place.scheduler.put(read(saved))


def test_what_cannot_be_saved(open_zoo: OpenZoo, tmp_path: Path) -> None:
    path = tmp_path / "slot"
    with make(open_zoo, Pair("target-llama", "ngram-simple")) as engine:
        with pytest.raises(StateError, match="empty"):
            engine.save_slot(0, path)
        for wrong in (-1, 1, "0", None):
            with pytest.raises(ConfigError, match="slot must be"):
                engine.save_slot(wrong, path)  # type: ignore[arg-type]
        engine.generate(LONG, max_tokens=3)
        with pytest.raises(StateError, match="cannot be written"):
            engine.save_slot(0, tmp_path / "nowhere" / "slot")
    assert not path.exists()
    with PulledEngine(open_zoo("target-llama"), context=sizes()) as pulled:
        stream = pulled.stream([pyspec.Embeddings([[0.1] * pulled.context.model.info.n_embd] * 3), "a"])
        next(stream)
        with pytest.raises(UnsupportedError, match="embeddings"):
            save(pulled.place.scheduler.slots[0], pulled.context)


@pytest.fixture(scope="module")
def saved(open_zoo: OpenZoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "slot"
    held_midway(open_zoo, Pair("target-llama", "draft-simple", "draft-llama"), path)
    return path


def test_damaged_files_are_refused(saved: Path, open_zoo: OpenZoo, tmp_path: Path) -> None:
    content, path = saved.read_bytes(), tmp_path / "slot"
    n = len(content)
    damaged = [
        b"",
        content[:20],
        content[: n // 2],
        content + b"x",
        *(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in (0, 13, 17, 25, 40, n // 2, n - 1)),
    ]
    with make(open_zoo, Pair("target-llama", "draft-simple", "draft-llama")) as engine:
        for wrong in damaged:
            path.write_bytes(wrong)
            with pytest.raises(StateError, match=r"slot file|no slot"):
                engine.restore_slot(path)
        with pytest.raises(StateError, match="cannot be read"):
            engine.restore_slot(tmp_path)
        assert engine.restore_slot(saved) is not None


def test_a_file_of_another_model_is_refused(saved: Path, open_zoo: OpenZoo) -> None:
    with (
        make(open_zoo, Pair("target-lfm2", "ngram-simple")) as engine,
        pytest.raises(StateError, match=r"this engine has .*slots"),
    ):
        engine.restore_slot(saved)


def test_a_context_that_is_too_small_is_refused(saved: Path, open_zoo: OpenZoo) -> None:
    with pyspec.Engine(open_zoo("target-llama"), context=sizes(n_ctx=40)) as engine:
        with pytest.raises((StateError, pyspec.PyspecError)):
            list(engine.restore_slot(saved) or ())
        assert engine.generate([1, 2], max_tokens=3).finish is Finish.LENGTH


SAVE_FOREVER = """
import sys, pyspec
with pyspec.Model(sys.argv[1]) as model:
    engine = pyspec.Engine(model, context=pyspec.ContextConfig(n_ctx=512, n_threads=1))
    engine.generate([1, *range(60, 360)], max_tokens=2)
    while True:
        engine.save_slot(0, sys.argv[2])
        print("saved", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signal")
def test_kill_while_saving_leaves_a_whole_file(open_zoo: OpenZoo, tmp_path: Path) -> None:
    path = tmp_path / "slot"
    model = open_zoo("target-llama").path
    for turn in range(6):
        command = [sys.executable, "-c", SAVE_FOREVER, str(model), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            assert process.stdout is not None
            for _ in range(2):
                assert process.stdout.readline() == b"saved\n"
            time.sleep(0.0007 * turn)  # somewhere in the next ones
            process.send_signal(signal.SIGKILL)
        assert len(read(path).tokens) == 303
