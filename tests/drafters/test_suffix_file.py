"""Past requests in a file: saved, loaded, damaged, killed."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.drafters import ngram_file, suffix_file
from pyspec.drafters.ngram_counts import merged
from pyspec.drafters.registry import Resources
from pyspec.drafters.suffix import Suffix
from pyspec.errors import NgramFileError, TokenError
from tests.drafters.test_suffix import EASY, ask

FEW = [[5, 6, 7, 8], [1], [300000, -1, 2**31 - 1]]
HEADER = 24


def requests_of(lists: list[list[int]]) -> list[suffix_file.Request]:
    return [np.array(each, np.int32) for each in lists]


def lists_of(path: Path) -> list[list[int]]:
    return [request.tolist() for request in suffix_file.read(path)]


def say(path: Path, *requests: list[int], **options: Any) -> Suffix:
    """Return a drafter, not closed yet, that heard these requests."""
    drafter = Suffix(**EASY, share=True, file=path, **options)
    for request in [*requests, []]:
        drafter.begin(0, request)
    return drafter


@settings(deadline=None)  # machines and disks are shared
@given(st.lists(st.lists(st.integers(-1, 2**31 - 1), min_size=1, max_size=6), max_size=5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, requests: list[list[int]]) -> None:
    path = tmp_path_factory.mktemp("files") / "requests.bin"
    suffix_file.write(path, requests_of(requests))
    assert lists_of(path) == requests


def test_the_file_is_as_described(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    suffix_file.write(path, requests_of([[5, 6], [-1]]))
    records = struct.pack("<5i", 2, 5, 6, 1, -1)
    assert path.read_bytes() == b"SFX\xc3\r\n\x1a\n" + struct.pack("<IIQ", 1, zlib.crc32(records), 20) + records


def test_a_later_run_drafts_what_a_former_one_heard(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    for text in ([5, 6, 7, 8], [9, 6, 1]):
        drafter = say(path, text)
        assert ask(drafter, [5, 6]) == [7, 8]
        drafter.close()
        drafter.close()  # saves nothing twice
    assert lists_of(path) == [[5, 6, 7, 8], [5, 6], [9, 6, 1], [5, 6]]
    assert ask(Suffix(**EASY, share=True), [5, 6]) == []


def test_the_file_keeps_the_newest_requests(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    for i in range(5):
        say(path, [i] * 10, max_tokens=25).close()
    assert lists_of(path) == [[3] * 10, [4] * 10]
    say(path, [7] * 30, max_tokens=25).close()
    assert lists_of(path) == [[7] * 25]
    say(path, *([i] * 10 for i in range(5)), max_tokens=25).close()
    assert lists_of(path) == [[3] * 10, [4] * 10]


def test_what_another_process_saved_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    ours, theirs = say(path, [1, 2]), say(path, [3, 4])
    theirs.close()
    ours.close()
    assert lists_of(path) == [[3, 4], [1, 2]]


SAVE = """
import sys
from pyspec.drafters.suffix import Suffix
for i in range(5):
    drafter = Suffix(share=True, file=sys.argv[1])
    drafter.begin(0, [int(sys.argv[2]) + i])
    drafter.close()
"""


def test_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    processes = [subprocess.Popen([sys.executable, "-c", SAVE, str(path), str(100 * i)]) for i in (1, 2, 3)]
    assert [process.wait() for process in processes] == [0] * 3
    assert sorted(lists_of(path)) == [[100 * i + k] for i in (1, 2, 3) for k in range(5)]


KILLED = """
import os, signal, sys
from pyspec.drafters.suffix import Suffix
drafter = Suffix(share=True, file=sys.argv[1])
drafter.begin(0, list(range(1000)))
setattr(os, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
drafter.close()
"""


@pytest.mark.skipif(os.name != "posix", reason="processes are killed by signals on POSIX")
@pytest.mark.parametrize("moment", ["fsync", "rename", "replace"])
def test_a_process_killed_while_it_saves_leaves_the_former_file(tmp_path: Path, moment: str) -> None:
    """All of it is written when fsync is called; replace, or rename where that is what is used, comes after."""
    path = tmp_path / "requests.bin"
    suffix_file.write(path, requests_of(FEW))
    before = path.read_bytes()
    process = subprocess.run([sys.executable, "-c", KILLED, str(path), moment], check=False)
    if moment != "rename":
        assert process.returncode == -signal.SIGKILL
        assert path.read_bytes() == before
    say(path, [4, 2]).close()  # the lock went with the process
    assert lists_of(path)[: len(FEW)] == FEW
    assert lists_of(path)[-1] == [4, 2]


def test_a_file_that_cannot_be_saved_can_be_saved_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.bin"
    suffix_file.write(path, requests_of(FEW))
    before = path.read_bytes()
    drafter = say(path, [1, 2, 3])

    def full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(NgramFileError, match=r"The suffix memory .* cannot be written: No space left"):
            drafter.close()
    assert path.read_bytes() == before
    drafter.close()
    assert lists_of(path) == [*FEW, [1, 2, 3]]


# Damage


def sealed(*integers: int, extra: bytes = b"") -> bytes:
    records = struct.pack(f"<{len(integers)}i", *integers) + extra
    return b"SFX\xc3\r\n\x1a\n" + struct.pack("<IIQ", 1, zlib.crc32(records), len(records)) + records


WRONG = {
    "empty": b"",
    "text": b"once upon a time there was a file",
    "cut record": sealed(3, 5, 6),
    "empty record": sealed(0),
    "negative length": sealed(-2, 5, 6),
    "absurd length": sealed(2**31 - 1, 5),
    "no token": sealed(2, 5, -2),
    "wrong among right ones": sealed(1, 5, 4, 6, 7),
    "no multiple of 4": sealed(1, 5, extra=b"x"),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_memory_is_refused_and_stays(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "requests.bin"
    drafter = say(path, [1, 2])
    path.write_bytes(data)
    with pytest.raises(NgramFileError, match=r"requests\.bin is no suffix memory, or it is damaged: "):
        Suffix(share=True, file=path)
    with pytest.raises(NgramFileError):
        drafter.close()
    assert path.read_bytes() == data


def test_a_file_cut_or_changed_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    suffix_file.write(path, requests_of(FEW))
    whole = path.read_bytes()
    changed = [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(len(whole))]
    for data in (*changed, *(whole[:n] for n in range(len(whole))), whole + b"\0\0\0\0"):
        path.write_bytes(data)
        with pytest.raises(NgramFileError):
            suffix_file.read(path)


def test_other_files_are_told_from_it(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    ngram_file.write(path, merged([]))
    with pytest.raises(NgramFileError, match="is no suffix memory, or it is damaged: it does not begin like one"):
        suffix_file.read(path)
    suffix_file.write(path, requests_of(FEW))
    with pytest.raises(NgramFileError, match="is no n-gram cache"):
        ngram_file.read(path)
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(NgramFileError, match=r"The suffix memory .* has version 2; this pyspec reads version 1"):
        suffix_file.read(path)


def test_a_file_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.bin"
    suffix_file.write(path, requests_of([[5, 6], [1, 99]]))
    for n_vocab in (99, 100):
        resources = cast("Resources", SimpleNamespace(target=SimpleNamespace(n_vocab=n_vocab)))
        if n_vocab > 99:
            assert ask(Suffix(**EASY, resources=resources, share=True, file=path), [5]) == [6]
            continue
        with pytest.raises(TokenError, match="holds the token 99; the target has the tokens 0 to 98"):
            Suffix(resources=resources, share=True, file=path)
