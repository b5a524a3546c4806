"""Nothing is printed: llama.cpp's log goes to logging, and standard output and error stay empty."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import pyspec

LOGGER = "pyspec.llama_cpp"
USE_EVERYTHING = """
import sys
import pyspec

model = pyspec.Model(sys.argv[1])
draft_model = pyspec.Model(sys.argv[2])
speculation = pyspec.Speculation("ngram-simple,draft-simple", draft_model)
engine = pyspec.Engine(model, speculation=speculation, context=pyspec.ContextConfig(n_ctx=256))
assert len(engine.generate([1, 60, 75, 112], max_tokens=20).tokens) == 20
"""


DECODE_ON_A_DAEMON_THREAD = """
import threading, time

def work():
    own = pyspec.Context(model, pyspec.ContextConfig(n_ctx=64, n_threads=1))
    batch = pyspec.Batch()
    batch.extend([60] * 60, 0, output=True)
    while True:
        own.memory.clear()
        own.decode(batch)

threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""


def silent(process: Any) -> None:
    assert (process.stdout, process.stderr) == ("", "")


def test_importing_prints_nothing_and_loads_nothing(run_script: Any) -> None:
    silent(
        run_script(
            """
            import pyspec
            from pyspec._native.library import lib
            assert lib.cache_info().currsize == 0, "importing must not load the native library"
            """
        )
    )


def test_a_whole_life_prints_nothing(zoo: Path, run_script: Any) -> None:
    closing = "\nengine.close(); draft_model.close(); model.close()"
    silent(run_script(USE_EVERYTHING + closing, zoo / "target-llama.gguf", zoo / "draft-llama.gguf"))


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "sys.exit(0)",
        "stream = engine.stream([1, 60]); next(stream)",
        "cycle = [engine, model]; cycle.append(cycle); del engine, model, draft_model",
        "import atexit; atexit.register(lambda: engine.generate([1, 60], max_tokens=2))",
        "view = engine.call(lambda its: its.context.logits_view()); del engine, model, draft_model, speculation",
        DECODE_ON_A_DAEMON_THREAD,
    ],
    ids=["nothing closed", "exit", "stream under way", "cycle", "atexit", "view", "daemon thread"],
)
def test_nothing_is_printed_at_exit(zoo: Path, run_script: Any, ending: str) -> None:
    silent(run_script(USE_EVERYTHING + ending + "\n", zoo / "target-llama.gguf", zoo / "draft-llama.gguf"))


def test_failures_print_nothing(tmp_path: Path, target_path: Path, run_script: Any) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(target_path.read_bytes()[:20_000])
    silent(
        run_script(
            """
            import sys
            import pyspec
            try:
                pyspec.Model(sys.argv[1])
            except pyspec.errors.ModelFormatError:
                pass
            else:
                raise SystemExit("loaded")
            """,
            cut,
        )
    )


def test_the_log_arrives_in_logging(target_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER), pyspec.Model(target_path):
        pass
    records = [record for record in caplog.records if record.name == LOGGER]
    assert any("llama_model_loader" in record.message for record in records)
    assert all(record.message and "\n" not in record.message for record in records)
    assert {record.levelno for record in records} >= {logging.INFO}


def test_only_what_the_logger_wants_is_kept(target_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, LOGGER), pyspec.Model(target_path):
        pass
    assert not [record for record in caplog.records if record.name == LOGGER]


def test_a_logger_that_prints_shows_it_and_percent_signs_are_text(target_path: Path, run_script: Any) -> None:
    said = run_script(
        """
        import logging, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
        import pyspec
        pyspec.Model(sys.argv[1]).close()
        """,
        target_path,
    )
    assert "pyspec.llama_cpp" in said.stdout
    assert said.stderr == ""


def test_the_reason_of_a_failure_is_in_the_message(tmp_path: Path, target_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(target_path.read_bytes()[:-50_000])
    with pytest.raises(pyspec.errors.ModelFormatError, match="not within the file bounds"):
        pyspec.Model(cut)
