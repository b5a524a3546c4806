"""Opening, closing and generating again and again takes no more memory than doing it a few times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MEASURE = """
import gc, os, sys
import pyspec

def megabytes():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

def growth(work, warm_up, times):
    for _ in range(warm_up):
        work()
    before, n_files = megabytes(), len(os.listdir("/proc/self/fd"))
    for _ in range(times):
        work()
    assert len(os.listdir("/proc/self/fd")) == n_files, "file descriptors leak"
    return megabytes() - before

small = pyspec.ContextConfig(n_ctx=256, n_batch=64, n_ubatch=64, n_threads=1)
"""


def measured(run_script: Any, code: str, *arguments: object) -> float:
    return float(run_script(MEASURE + code, *arguments, timeout=250).stdout)


def test_opening_and_closing_a_model(target_path: Path, run_script: Any) -> None:
    grown = measured(
        run_script,
        """
def work():
    with pyspec.Model(sys.argv[1]) as model, pyspec.Context(model, small) as context:
        batch = pyspec.Batch()
        batch.extend([1, 60, 75], 0, output=True)
        context.decode(batch).logits(0)
print(growth(work, 15, 50))
""",
        target_path,
    )
    assert grown < 8.0, f"{grown:.1f} MB more after 50 rounds"  # a model is 1 MB


def test_forgetting_instead_of_closing(target_path: Path, run_script: Any) -> None:
    grown = measured(
        run_script,
        """
def work():
    model = pyspec.Model(sys.argv[1])
    engine = pyspec.Engine(model, context=small)
    next(engine.stream([1, 60, 75]))
    del model, engine
    gc.collect()
print(growth(work, 15, 50))
""",
        target_path,
    )
    assert grown < 8.0, f"{grown:.1f} MB more after 50 rounds"  # a model is 1 MB


def test_failing_to_open_a_model(target_path: Path, tmp_path: Path, run_script: Any) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(target_path.read_bytes()[:-50_000])
    grown = measured(
        run_script,
        """
def work():
    try:
        pyspec.Model(sys.argv[1])
    except pyspec.errors.ModelFormatError:
        return
    raise SystemExit("loaded")
print(growth(work, 15, 100))
""",
        cut,
    )
    assert grown < 8.0, f"{grown:.1f} MB more after 100 failures"


@pytest.mark.slow
def test_a_real_model(smollm2: Path, run_script: Any) -> None:
    grown = measured(
        run_script,
        """
def work():
    with pyspec.Model(sys.argv[1]) as model, pyspec.Engine(model, context=small) as engine:
        engine.generate("Hi", max_tokens=1)
print(growth(work, 4, 10))
""",
        smollm2,
    )
    assert grown < 47.0, f"{grown:.1f} MB more after 10 rounds of a model of 94 MB"


def test_two_hundred_requests_on_an_engine(zoo: Path, run_script: Any) -> None:
    grown = measured(
        run_script,
        """
model, draft_model = pyspec.Model(sys.argv[1]), pyspec.Model(sys.argv[2])
engine = pyspec.Engine(model, speculation=pyspec.Speculation("ngram-simple,draft-simple", draft_model), context=small)
n = 0
def work():
    global n
    n += 1
    sampling = pyspec.SamplingConfig(temperature=1.0 * (n % 2), repeat_penalty=1.1, seed=n)
    prompt = [1] + [60 + (n * 7 + i) % 90 for i in range(20 + n % 30)]
    if n % 3 == 0:
        stream = engine.stream(prompt, max_tokens=24, sampling=sampling)
        next(stream)
        stream.close()
    else:
        engine.generate(prompt, max_tokens=24, sampling=sampling)
print(growth(work, 60, 200))
""",
        zoo / "target-llama.gguf",
        zoo / "draft-llama.gguf",
    )
    assert grown < 3.0, f"{grown:.1f} MB more after 200 requests"
