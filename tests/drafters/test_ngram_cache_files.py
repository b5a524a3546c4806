"""The files of ngram-cache: both forms, damage of every kind, merging, and saving at the same time."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.config import MAX_INT32
from pyspec.drafters import ngram_file
from pyspec.drafters.ngram_cache import NgramCache
from pyspec.drafters.ngram_counts import NgramCounts, merged
from pyspec.drafters.ngram_table import Table
from pyspec.errors import NgramFileError

HEADER = 24

Counted = dict[tuple[int, ...], dict[int, int]]  # per n-gram its followers and their counts, the latest last


def counts_of(counted: Counted) -> NgramCounts:
    table, time = Table(), 0
    for ngram, followers in counted.items():
        for token, count in followers.items():
            table.add(ngram, token, time, count)
            time += 1
    return table.to_counts()


def told(counts: NgramCounts) -> list[tuple[tuple[int, ...], list[tuple[int, int]]]]:
    """Everything in counts, sorted by n-gram; the order of the followers stays."""
    found = []
    for ngram in sorted(tuple(t for t in row if t >= 0) for row in counts.ngrams.tolist()):
        followers = counts.get(ngram)
        assert followers is not None
        found.append((ngram, list(zip(*followers, strict=True))))
    return found


def tell(counted: Counted) -> list[tuple[tuple[int, ...], list[tuple[int, int]]]]:
    return [(ngram, list(counted[ngram].items())) for ngram in sorted(counted)]


def llama_cpp_file(records: list[tuple[list[int], list[tuple[int, int]]]]) -> bytes:
    """The form that llama.cpp writes, from the description of it."""
    data = b""
    for ngram, followers in records:
        data += struct.pack("<4i", *ngram, *[-1] * (4 - len(ngram)))
        data += struct.pack("<i", len(followers))
        for token, count in followers:
            data += struct.pack("<ii", token, count)
    return data


tokens = st.one_of(st.integers(0, 3), st.sampled_from([255, 256, 65536, 2**24, MAX_INT32]))
ngrams = st.lists(tokens, min_size=1, max_size=4).map(tuple)
numbers = st.one_of(st.integers(1, 3), st.just(MAX_INT32))  # so that there are ties
counteds = st.dictionaries(ngrams, st.dictionaries(tokens, numbers, min_size=1, max_size=4), max_size=12)
FEW: Counted = {(7,): {3: 2, 1: 5}, (7, 3): {0: 1}, (7, 3, 0, 0): {9: 4}, (0,): {0: 1}}


@settings(deadline=None)  # machines and disks are shared
@given(counteds)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, counted: Counted) -> None:
    path = tmp_path_factory.mktemp("files") / "cache.bin"
    counts = counts_of(counted)
    ngram_file.write(path, counts)
    read = ngram_file.read(path)
    assert told(read) == told(counts) == tell(counted)
    assert read.get((1, 1, 1, 2)) == counts.get((1, 1, 1, 2))
    assert ngram_file.form_of(path) == "pyspec 1"


@settings(deadline=None)  # machines and disks are shared
@given(counteds, st.randoms(use_true_random=False))
def test_llama_cpps_files_are_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, counted: Counted, chance: object
) -> None:
    records = [(list(ngram), list(followers.items())) for ngram, followers in counted.items()]
    chance.shuffle(records)  # type: ignore[attr-defined]
    path = tmp_path_factory.mktemp("files") / "lookup.bin"
    path.write_bytes(llama_cpp_file(records))
    if not records:
        with pytest.raises(NgramFileError, match="it is empty"):
            ngram_file.read(path)
        return
    assert told(ngram_file.read(path)) == tell(counted)
    assert ngram_file.form_of(path) == "llama.cpp"


def test_our_records_are_llama_cpps(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    ngram_file.write(path, counts_of(FEW))
    records = sorted(FEW, key=lambda ngram: struct.pack(">4I", *ngram, *[2**32 - 1] * (4 - len(ngram))))
    assert path.read_bytes()[HEADER:] == llama_cpp_file([(list(n), list(FEW[n].items())) for n in records])


def test_the_header_is_as_described(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    ngram_file.write(path, counts_of(FEW))
    data = path.read_bytes()
    assert data[:HEADER] == b"NGR\xc3\r\n\x1a\n" + struct.pack("<IIQ", 1, zlib.crc32(data[HEADER:]), len(data) - HEADER)
    assert struct.unpack("<i", data[:4])[0] < -1  # which is no token, and no padding either


def test_nothing_can_be_saved_and_read(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    ngram_file.write(path, merged([]))
    counts = ngram_file.read(path)
    assert told(counts) == []
    assert counts.get((1,)) is None
    assert counts.largest_token == -1
    assert told(merged([counts, counts])) == []


def test_repeated_records_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "lookup.bin"  # two files of llama.cpp, one behind the other
    path.write_bytes(llama_cpp_file([([1, 2], [(3, 1), (4, 2)])]) + llama_cpp_file([([1, 2], [(3, 5)])]))
    assert told(ngram_file.read(path)) == [((1, 2), [(4, 2), (3, 6)])]


# Merging


@settings(deadline=None)  # machines and disks are shared
@given(st.lists(counteds, max_size=4))
def test_merging_adds_up_and_the_later_part_is_the_more_recent(parts: list[Counted]) -> None:
    expected: Counted = {}
    for part in parts:
        for ngram, followers in part.items():
            into = expected.setdefault(ngram, {})
            for token, count in followers.items():
                into[token] = min(into.pop(token, 0) + count, MAX_INT32)
    assert told(merged(map(counts_of, parts))) == tell(expected)


@settings(deadline=None)  # machines and disks are shared
@given(st.lists(counteds, max_size=3))
def test_tables_merge_as_files_do(parts: list[Counted]) -> None:
    table = Table()
    for part in parts:
        other, time = Table(), 0
        for ngram, followers in part.items():
            for token, count in followers.items():
                other.add(ngram, token, time, count)
                time += 1
        table.merge(other)
    assert told(table.to_counts()) == told(merged(map(counts_of, parts)))


@settings(deadline=None)  # machines and disks are shared
@given(counteds, counteds)
def test_a_table_over_columns_is_a_table(base: Counted, added: Counted) -> None:
    plain, over = Table(), Table(counts_of(base))
    for counted, tables in ((base, (plain,)), (added, (plain, over))):
        for table in tables:
            other = Table()
            for time, (ngram, token) in enumerate((n, t) for n in counted for t in counted[n]):
                other.add(ngram, token, time, counted[ngram][token])
            table.merge(other)
    for ngram in {*base, *added, (5, 5)}:
        one, two = plain.get(ngram), over.get(ngram)
        if one is None or two is None:
            assert one is two
            continue
        assert (one.best, one.total) == (two.best, two.total)
        assert sorted(one, key=one.rank_of) == sorted(two, key=two.rank_of)


# Damage

WRONG = {
    "empty": b"",
    "text": b"once upon a time",
    "a model": b"GGUF\x03\0\0\0" + bytes(100),
    "zeros": bytes(400),
    "no multiple of 4": llama_cpp_file([([1], [(2, 3)])])[:-1],
    "cut in a record": llama_cpp_file([([1], [(2, 3)])])[:-4],
    "cut in a head": llama_cpp_file([([1], [(2, 3)]), ([2], [(2, 3)])])[:-16],
    "no followers": struct.pack("<5i", 1, 2, -1, -1, 0),
    "negative followers": struct.pack("<5i", 1, 2, -1, -1, -1),
    "absurdly many followers": struct.pack("<7i", 1, 2, -1, -1, MAX_INT32, 3, 4),
    "more followers than there are": struct.pack("<7i", 1, 2, -1, -1, 2, 3, 4),
    "count of 0": llama_cpp_file([([1], [(2, 0)])]),
    "negative count": llama_cpp_file([([1], [(2, -3)])]),
    "negative token": llama_cpp_file([([1], [(-2, 3)])]),
    "negative n-gram": llama_cpp_file([([1, -5], [(2, 3)])]),
    "empty n-gram": llama_cpp_file([([], [(2, 3)])]),
    "hole in an n-gram": llama_cpp_file([([1, -1, 2], [(2, 3)])]),
    "wrong among right ones": llama_cpp_file([([1], [(2, 3)]), ([3, -1, 4], [(2, 3)]), ([5], [(2, 3)])]),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_cache_is_refused_and_stays(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(data)
    with pytest.raises(NgramFileError, match=r"cache\.bin is no n-gram cache, or it is damaged: "):
        ngram_file.read(path)
    with pytest.raises(NgramFileError):
        ngram_file.update(path, counts_of(FEW))
    assert path.read_bytes() == data


def test_a_wrong_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(llama_cpp_file([([1], [(2, 3)]), ([7, 8], [(5, 1), (6, -9)])]))
    with pytest.raises(NgramFileError, match=r"\[7, 8, -1, -1\] is followed by token 6 -9 times"):
        ngram_file.read(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    ngram_file.write(path, counts_of(FEW))
    whole = path.read_bytes()
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(NgramFileError):
            ngram_file.read(path)
    path.write_bytes(whole + b"\0\0\0\0")
    with pytest.raises(NgramFileError, match="bytes of records instead of"):
        ngram_file.read(path)


def test_a_changed_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    ngram_file.write(path, counts_of(FEW))
    whole = path.read_bytes()
    for n in range(len(whole)):
        path.write_bytes(whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :])
        with pytest.raises(NgramFileError):
            ngram_file.read(path)


def test_a_later_version_is_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    ngram_file.write(path, counts_of(FEW))
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(NgramFileError, match="has version 2; this pyspec reads version 1"):
        ngram_file.read(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NgramFileError, match="is not a file"):
        ngram_file.read(tmp_path)
    with pytest.raises(NgramFileError, match="cannot be read: No such file"):
        ngram_file.read(tmp_path / "missing")
    if os.name == "posix":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(NgramFileError, match="is not a file"):  # and nobody waits for a writer
            ngram_file.read(tmp_path / "pipe")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(NgramFileError, match="an n-gram cache has at most"):
        ngram_file.read(path)


# Writing


def test_a_failed_write_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.bin"
    ngram_file.write(path, counts_of(FEW))
    before = path.read_bytes()

    def full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(NgramFileError, match=r"cannot be written: No space left"):
        ngram_file.write(path, counts_of({(1,): {1: 1}}))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    for save in (ngram_file.write, ngram_file.update):
        with pytest.raises(NgramFileError, match="cannot be written: No such file"):
            save(tmp_path / "no" / "cache.bin", counts_of(FEW))


@pytest.mark.skipif(os.name != "posix", reason="permissions and links as on POSIX")
def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "cache.bin", tmp_path / "link.bin"
    link.symlink_to(path)
    former = os.umask(0o027)
    try:
        ngram_file.update(link, counts_of(FEW))
    finally:
        os.umask(former)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    ngram_file.update(link, counts_of(FEW))
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o604
    assert told(ngram_file.read(path))[0] == ((0,), [(0, 2)])


# Saving at the same time

SAVE = """
import sys
from pyspec.drafters.ngram_cache import NgramCache
for i in range(5):
    drafter = NgramCache(dynamic=sys.argv[1])
    drafter.begin(0, [1, 2, 3, int(sys.argv[2]) + i])
    drafter.close()
"""


def test_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    processes = [subprocess.Popen([sys.executable, "-c", SAVE, str(path), str(100 * i)]) for i in range(1, 5)]
    assert [process.wait() for process in processes] == [0] * 4
    counts = ngram_file.read(path)
    assert counts.get((1,)) == ([2], [20])
    found = counts.get((1, 2, 3))
    assert found is not None
    assert sorted(found[0]) == sorted(100 * i + k for i in range(1, 5) for k in range(5))
    assert {file.name for file in tmp_path.iterdir()} == {"dynamic.bin", ".dynamic.bin.lock"}


def test_threads_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"

    def save() -> None:
        drafter = NgramCache(dynamic=path)
        drafter.begin(0, [1, 2, 3])
        drafter.close()

    threads = [threading.Thread(target=save) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ngram_file.read(path).get((1, 2)) == ([3], [8])


def test_what_another_process_saved_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    ours, theirs = NgramCache(dynamic=path), NgramCache(dynamic=path)
    ours.begin(0, [1, 2])
    theirs.begin(0, [3, 4])
    theirs.close()
    ours.close()
    assert told(ngram_file.read(path)) == [((1,), [(2, 1)]), ((3,), [(4, 1)])]


def test_a_file_system_without_locks_is_named_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(number: int) -> None:
        def lock(_descriptor: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("pyspec.locking._lock", lock)

    path = tmp_path / "dynamic.bin"
    refuse(errno.ENOLCK)
    ngram_file.update(path, counts_of(FEW))
    assert told(ngram_file.read(path)) == tell(FEW)
    assert f"{path} is on a file system without locks" in caplog.text
    refuse(errno.EIO)
    with pytest.raises(NgramFileError, match="cannot be locked: Input/output error"):
        ngram_file.update(path, counts_of(FEW))


def test_many_ngrams_are_found_again(tmp_path: Path) -> None:
    chance = np.random.default_rng(3)
    history = chance.integers(0, 50_000, 20_000).tolist()
    drafter = NgramCache(dynamic=tmp_path / "dynamic.bin")
    drafter.begin(0, history)
    drafter.close()
    counts = ngram_file.read(tmp_path / "dynamic.bin")
    for i in range(4, len(history), 371):
        for n in range(1, 5):
            found = counts.get(tuple(history[i - n : i]))
            assert found is not None
            assert history[i] in found[0]
