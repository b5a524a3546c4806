"""Random arguments to the public API: the process lives, and what is wrong is an exception of pyspec."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

N_CALLS = 2000
ROOT = Path(__file__).resolve().parents[2]


def run_fuzzer(zoo: Path, cache: Path, seed: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYSPEC_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-X", "faulthandler", str(Path(__file__).with_name("fuzzer.py")), str(zoo), str(seed)]
    return subprocess.run(
        [*command, str(N_CALLS)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=cache,  # a path may be made of anything
        env=environment,
        encoding="utf-8",
        errors="replace",
    )


@pytest.mark.parametrize("seed", [1, 2, None], ids=["first", "second", "new every time"])
def test_random_calls_end_in_exceptions_of_pyspec_only(zoo: Path, tmp_path: Path, seed: int | None) -> None:
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    ended = run_fuzzer(Path(shutil.copytree(zoo, tmp_path / "zoo")), tmp_path, chosen)  # any path may be written to
    last = "\n".join(ended.stderr.splitlines()[-30:])
    assert ended.returncode == 0, f"seed {chosen}, exit code {ended.returncode}; the call was:\n{last}"
    found = json.loads(ended.stdout)
    assert sum(found["ended"].values()) == N_CALLS
    assert found["ended"]["ok"] > N_CALLS / 4, "hardly any call was right, so little was tried"
    assert found["ended"]["ConfigError"] > 100
    assert not found["others"], f"seed {chosen}"
