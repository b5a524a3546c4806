from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path

import pytest

from pyspec.errors import HubError, ModelNotFoundError
from pyspec.hub import cache_dir, models_dir
from pyspec.hub.cache import explain_os_errors, publish, require_space, workspace


def never() -> None:
    pytest.fail("nobody else holds the lock")


def test_the_variable_names_the_folder(tmp_path: Path) -> None:
    assert cache_dir({"PYSPEC_CACHE": str(tmp_path / "here")}) == tmp_path / "here"


def test_a_relative_variable_becomes_absolute() -> None:
    assert cache_dir({"PYSPEC_CACHE": "here"}) == Path.cwd() / "here"


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="XDG belongs to the other systems")
def test_xdg_names_the_folder_unless_it_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir({"XDG_CACHE_HOME": str(tmp_path / "xdg")}) == tmp_path / "xdg" / "pyspec"
    assert cache_dir({"XDG_CACHE_HOME": "xdg"}) == tmp_path / ".cache" / "pyspec"
    assert cache_dir({"PYSPEC_CACHE": ""}) == tmp_path / ".cache" / "pyspec"


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("darwin", {}, "Library/Caches/pyspec"),
        ("win32", {}, "AppData/Local/pyspec"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/pyspec"),
    ],
)
def test_each_platform_has_its_folder(
    platform: str, environ: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_dir(environ) == tmp_path / expected


def test_no_home_folder_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(HubError, match="set PYSPEC_CACHE"):
        cache_dir({})


def test_models_live_in_the_cache_folder(cache: Path) -> None:
    assert models_dir() == cache / "models"


def test_a_workspace_is_empty_and_goes_away(tmp_path: Path) -> None:
    with workspace(tmp_path / "new", "m", on_wait=never) as work:
        assert list(work.iterdir()) == []
        (work / "half").write_bytes(b"x")
    assert not work.exists()


def test_a_workspace_goes_away_when_the_block_raises(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), workspace(tmp_path, "m", on_wait=never) as work:
        raise KeyboardInterrupt
    assert not work.exists()


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    stale = tmp_path / ".m.tmp-dead"
    other = tmp_path / ".other.tmp-alive"
    for folder in (stale, other):
        folder.mkdir()
        (folder / "half").write_bytes(b"x")
    with workspace(tmp_path, "m", on_wait=never):
        assert not stale.exists()
        assert other.exists()


def test_one_name_has_one_workspace_at_a_time(tmp_path: Path) -> None:
    inside, waited, entered = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        inside.wait(10)
        with workspace(tmp_path, "m", on_wait=waited.set):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    with workspace(tmp_path, "m", on_wait=never):
        inside.set()
        assert waited.wait(10)
        assert not entered.is_set()
    thread.join(10)
    assert entered.is_set()


@pytest.mark.skipif(sys.platform == "win32", reason="flock is not there")
def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_descriptor: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("pyspec.locking._lock", no_locks)
    maybe_alive = tmp_path / ".m.tmp-other"
    maybe_alive.mkdir()
    with workspace(tmp_path, "m", on_wait=never):
        assert maybe_alive.exists()


def test_publishing_replaces_the_old_file(tmp_path: Path) -> None:
    new, target = tmp_path / "new", tmp_path / "target"
    new.write_bytes(b"new")
    target.write_bytes(b"old")
    publish(new, target)
    assert target.read_bytes() == b"new"
    assert not new.exists()


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "write to"), (errno.EACCES, "write to")]
)
def test_system_errors_say_what_to_do(number: int, hint: str) -> None:
    with (
        pytest.raises(HubError, match=rf"could not store it: .*/there.*{hint}"),
        explain_os_errors("could not store it"),
    ):
        raise OSError(number, "Reason", "/there")


def test_our_own_errors_pass_unchanged() -> None:
    with pytest.raises(ModelNotFoundError, match=r"^as it was$"), explain_os_errors("could not"):
        raise ModelNotFoundError("as it was")


def test_a_full_disk_is_seen_before_the_work(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(OSError, match="are needed"):
        require_space(tmp_path, 1 << 60)
