"""Weights in large pages: how many bytes may move, and that nothing but time changes."""

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pyspec
from pyspec import ModelConfig
from pyspec.errors import LoadCancelledError
from pyspec.llama import large_pages
from pyspec.llama.large_pages import most_bytes

GIB = 1 << 30
MODES = "sys/kernel/mm/transparent_hugepage/enabled"


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Path]:
    """Make a machine's ``/proc`` and ``/sys``."""

    def make(files: dict[str, str], *, modes: str = "always [madvise] never", available: int = 8 * GIB) -> Path:
        every = {MODES: modes, "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {available >> 10} kB\n", **files}
        for name, text in every.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ("always [madvise] never", 2 * GIB),
        ("[always] madvise never", 2 * GIB),
        ("always madvise [never]", 0),
        ("", 0),
    ],
)
def test_a_system_without_large_pages_gives_none(machine: Callable[..., Path], modes: str, expected: int) -> None:
    assert most_bytes(machine({}, modes=modes)) == expected


def test_other_systems_have_none(tmp_path: Path) -> None:
    assert most_bytes(tmp_path) == 0


def test_a_large_machine_copies_no_more_than_some_seconds(machine: Callable[..., Path]) -> None:
    assert most_bytes(machine({}, available=512 * GIB)) == 4 * GIB


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 5 kB\n", "MemAvailable: many kB\n"])
def test_memory_that_is_not_known_is_not_used(machine: Callable[..., Path], meminfo: str) -> None:
    assert most_bytes(machine({"proc/meminfo": meminfo})) == 0


def group(folder: str, limit: str, used: int, reclaimable: int) -> dict[str, str]:
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 7\ninactive_file {reclaimable}\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (group("sys/fs/cgroup/a/b", str(GIB), 0, 0), GIB // 4),
        (group("sys/fs/cgroup/a", str(GIB), GIB, GIB // 2), GIB // 8),
        (group("sys/fs/cgroup", str(GIB), GIB, 0), 0),
        (group("sys/fs/cgroup/a", "max", GIB, 0), 2 * GIB),
        (group("sys/fs/cgroup/a", str(GIB), 2 * GIB, 0), 0),
        (group("sys/fs/cgroup/other", str(GIB), 0, 0), 2 * GIB),
    ],
)
def test_a_container_has_its_own_limit(machine: Callable[..., Path], files: dict[str, str], expected: int) -> None:
    assert most_bytes(machine({"proc/self/cgroup": "0::/a/b\n", **files})) == expected


@pytest.mark.parametrize("line", [b"", b"\n", b"nonsense", b"4:memory", b"0::/\xff\xfe", b"0::/../../x"])
def test_groups_that_cannot_be_read_limit_nothing(machine: Callable[..., Path], line: bytes) -> None:
    root = machine({})
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_bytes(line)
    assert most_bytes(root) == 2 * GIB


def test_limits_of_the_older_kind_count_too(machine: Callable[..., Path]) -> None:
    folder = "sys/fs/cgroup/memory/docker"
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/1\n0::/\n",
        f"{folder}/memory.limit_in_bytes": f"{GIB}\n",
        f"{folder}/memory.usage_in_bytes": f"{GIB}\n",
        f"{folder}/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}\n",
    }
    assert most_bytes(machine(files)) == GIB // 16


def advised_bytes() -> int:
    """Return how much of this process asks for large pages, 0 on systems that do not tell."""
    gc.collect()  # models that other tests have left
    if not Path("/proc/self/smaps").exists():
        return 0
    size = total = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"Size:\s+(\d+) kB", line):
            size = int(found[1]) << 10
        elif line.startswith("VmFlags:") and "hg" in line.split():
            total += size
    return total


def logits(model: pyspec.Model) -> list[np.ndarray]:
    with pyspec.Context(model, pyspec.ContextConfig(n_ctx=64, n_threads=1)) as context:
        batch = pyspec.Batch()
        batch.extend([1, 2, 3, 4], 0, output=True)
        rows = context.decode(batch)
        return [rows.logits(i).copy() for i in range(4)]


@pytest.mark.parametrize("settings", [{}, {"repack": False}, {"use_mmap": False}, {"use_mmap": False, "repack": False}])
def test_weights_move_and_nothing_else_changes(smollm2: Path, settings: dict[str, bool]) -> None:
    before = advised_bytes()
    with pyspec.Model(smollm2, ModelConfig(large_pages=False, **settings)) as model:
        assert advised_bytes() == before
        expected = logits(model)
    with pyspec.Model(smollm2, ModelConfig(**settings)) as model:
        moved = advised_bytes() - before
        assert moved > 0.8 * model.info.size_bytes if most_bytes() else moved == 0
        assert all(np.array_equal(a, b) for a, b in zip(logits(model), expected, strict=True))
    assert advised_bytes() == before


@pytest.mark.parametrize("settings", [{"vocab_only": True}, {"use_mlock": True}, {"large_pages": False}])
def test_what_is_not_read_or_locked_stays(smollm2: Path, settings: dict[str, bool]) -> None:
    before = advised_bytes()
    with pyspec.Model(smollm2, ModelConfig(**settings)):
        assert advised_bytes() == before


def test_a_model_that_is_too_large_stays(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_MOST", smollm2.stat().st_size // 2)
    before = advised_bytes()
    with pyspec.Model(smollm2):
        assert advised_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="nothing moves on other systems")
def test_moving_can_be_cancelled(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspec.llama.model.most_bytes", lambda: 4 * GIB)
    before = advised_bytes()
    ends: list[float] = []

    def progress(fraction: float) -> bool:
        ends.extend([fraction] if fraction == 1.0 else [])
        return len(ends) < 2  # loaded, and one piece was about to move

    with pytest.raises(LoadCancelledError):
        pyspec.Model(smollm2, progress=progress)
    assert len(ends) == 2
    assert advised_bytes() == before
