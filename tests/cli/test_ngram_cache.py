from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec.drafters import ngram_file
from tests.cli.conftest import Run

Start = Callable[..., "subprocess.Popen[bytes]"]
TEXT = "the small boat left the harbour in the morning and the sea was calm and the wind was light\n" * 3


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture
def build(run: Run, target_path: Path) -> Run:
    return lambda *arguments: run("ngram-cache", "build", "-m", target_path, *arguments)


def result(ran: Any) -> dict[str, Any]:
    assert (ran.code, ran.err) == (0, "")
    parsed: dict[str, Any] = json.loads(ran.out)
    return parsed


def llama_cpp_file(path: Path, ngram: tuple[int, ...], token: int, count: int) -> Path:
    path.write_bytes(struct.pack("<7i", *ngram, *[-1] * (4 - len(ngram)), 1, token, count))
    return path


def test_build_counts_the_pairs_of_texts(build: Run, text: Path, tmp_path: Path, target: pyspec.Model) -> None:
    out = tmp_path / "static.bin"
    made = result(build(text, text, "-o", out, "--json"))
    tokens = target.vocab.tokenize(TEXT)
    counts = ngram_file.read(out)
    assert made == {
        "inputs": [str(text)] * 2,
        "output": str(out),
        "tokens": 2 * len(tokens),
        "bytes": out.stat().st_size,
        "ngrams": {"1": 0, "2": len(counts.keys), "3": 0, "4": 0},
        "followers": len(counts.tokens),
        "counted": 2 * (len(tokens) - 2),
        "largest_token": counts.largest_token,
    }
    assert {tuple(row[:2]) for row in counts.ngrams.tolist()} == set(pairwise(tokens[:-1]))
    assert {file.name for file in tmp_path.iterdir()} == {"text.txt", "static.bin"}


def test_build_says_what_it_made(build: Run, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "static.bin"
    ran = build(text, "-o", out)
    assert ran.out.startswith(f"{out}: ")
    assert ran.out.endswith(" followers, 0.0 MB\n")
    assert ran.err == ""


def test_build_reads_stdin(start: Start, build: Run, text: Path, target_path: Path, tmp_path: Path) -> None:
    build(text, "-o", tmp_path / "expected.bin")
    out = tmp_path / "static.bin"
    process = start("ngram-cache", "build", "-", "-m", target_path, "-o", out)
    stdout, stderr = process.communicate(TEXT.encode(), 120)
    assert (process.returncode, stderr) == (0, b"")
    assert str(out) in stdout.decode()
    assert out.read_bytes() == (tmp_path / "expected.bin").read_bytes()


def test_build_draws_on_a_terminal(build: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = build(text, "-o", tmp_path / "static.bin")
    assert "counting" in ran.err
    assert "counting" not in ran.out


def test_an_empty_text_makes_an_empty_cache(build: Run, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    assert result(build(tmp_path / "empty.txt", "-o", tmp_path / "static.bin", "--json"))["followers"] == 0
    assert result(run("ngram-cache", "info", tmp_path / "static.bin", "--json"))["largest_token"] == -1


@pytest.mark.parametrize("command", ["build", "merge"])
def test_nothing_is_overwritten_unasked(run: Run, text: Path, tmp_path: Path, target_path: Path, command: str) -> None:
    out = tmp_path / "out.bin"
    cache = llama_cpp_file(tmp_path / "cache.bin", (1, 2), 3, 4)
    for content in (b"precious", cache.read_bytes()):
        out.write_bytes(content)
        arguments: tuple[object, ...] = ("ngram-cache", command, cache, "-o", out)
        if command == "build":
            arguments = ("ngram-cache", command, text, "-m", target_path, "-o", out)
        ran = run(*arguments)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"error: {out} exists; give --force to replace it, or another OUT\n"
        assert out.read_bytes() == content
        assert run(*arguments, "--force").code == 0
        assert ngram_file.form_of(out) == "pyspec 1"


def test_build_never_replaces_its_text(build: Run, text: Path) -> None:
    assert "is one of the texts" in build(text, "-o", text, "--force").usage_error
    assert text.read_bytes() == TEXT.encode()


def test_a_text_that_is_not_utf_8_leaves_nothing(build: Run, text: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "latin.txt"
    wrong.write_bytes("für".encode("latin-1"))
    out = tmp_path / "static.bin"
    out.write_bytes(b"precious")
    ran = build(text, wrong, "-o", out, "--force")
    assert ran.code == 1
    assert f"The text {wrong} is not UTF-8" in ran.err
    assert out.read_bytes() == b"precious"


@pytest.mark.skipif(sys.platform == "win32", reason="has no such device")
def test_a_device_is_no_text(build: Run, text: Path, tmp_path: Path) -> None:
    ran = build(text, "/dev/null", "-o", tmp_path / "out.bin")
    assert (ran.code, ran.err) == (1, "error: The text /dev/null cannot be read: it is a device, not a file.\n")
    assert not (tmp_path / "out.bin").exists()


def test_wrong_usage(build: Run, run: Run, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.bin"
    assert "missing.txt does not exist" in build(tmp_path / "missing.txt", "-o", out).usage_error
    assert "is a folder" in build(tmp_path, "-o", out).usage_error
    assert "the folder" in build(text, "-o", tmp_path / "no" / "out.bin").usage_error
    assert "is a directory" in build(text, "-o", tmp_path).usage_error
    assert "Missing option '--output'" in build(text).usage_error
    assert "Missing option '--model'" in run("ngram-cache", "build", text, "-o", out).usage_error
    assert "does not exist" in run("ngram-cache", "info", tmp_path / "missing.bin").usage_error
    assert not out.exists()


def test_merge_adds_up(run: Run, tmp_path: Path) -> None:
    one = llama_cpp_file(tmp_path / "one.bin", (1, 2), 3, 4)
    two = llama_cpp_file(tmp_path / "two.bin", (1, 2), 3, 5)
    out = tmp_path / "out.bin"
    made = result(run("ngram-cache", "merge", one, two, "-o", out, "--json"))
    assert (made["inputs"], made["output"], made["counted"]) == ([str(one), str(two)], str(out), 9)
    assert ngram_file.read(out).get((1, 2)) == ([3], [9])
    run("ngram-cache", "merge", out, one, "-o", out, "--force")  # OUT may be one of them
    assert ngram_file.read(out).get((1, 2)) == ([3], [13])


def test_merge_refuses_what_is_damaged(run: Run, tmp_path: Path) -> None:
    one = llama_cpp_file(tmp_path / "one.bin", (1, 2), 3, 4)
    wrong = tmp_path / "wrong.bin"
    wrong.write_bytes(one.read_bytes()[:-4])
    out = tmp_path / "out.bin"
    ran = run("ngram-cache", "merge", one, wrong, "-o", out)
    assert ran.code == 1
    assert f"error: {wrong} is no n-gram cache, or it is damaged" in ran.err
    assert not out.exists()


def test_info_describes_both_forms(run: Run, tmp_path: Path) -> None:
    path = llama_cpp_file(tmp_path / "lookup.bin", (1, 2, 7), 3, 4)
    expected = {
        "path": str(path),
        "form": "llama.cpp",
        "bytes": 28,
        "ngrams": {"1": 0, "2": 0, "3": 1, "4": 0},
        "followers": 1,
        "counted": 4,
        "largest_token": 7,
    }
    assert result(run("ngram-cache", "info", path, "--json")) == expected
    ours = tmp_path / "ours.bin"
    run("ngram-cache", "merge", path, "-o", ours)
    assert result(run("ngram-cache", "info", ours, "--json")) == {
        **expected,
        "path": str(ours),
        "form": "pyspec 1",
        "bytes": 52,
    }
    lines = dict(line.rsplit("  ", 1) for line in run("ngram-cache", "info", path).out.splitlines())
    assert {name.strip(): value.strip() for name, value in lines.items()} == {
        "path": str(path),
        "form": "llama.cpp",
        "bytes": "28",
        "followers": "1",
        "counted": "4",
        "largest token": "7",
        **{f"n-grams of {n}": str(int(n == 3)) for n in range(1, 5)},
    }


# Generating with a cache


def test_generate_uses_and_saves_caches(generate: Run, build: Run, text: Path, tmp_path: Path) -> None:
    static, dynamic = tmp_path / "static.bin", tmp_path / "dynamic.bin"
    build(text, "-o", static)
    prompt = ("-p", "the name of the", "-n", "60", "--json")
    plain = result(generate(*prompt))
    flags = ("--spec-type", "ngram-cache", "-lcs", static, "-lcd", dynamic, "--spec-ngram-cache-n-max", "5")
    runs = [result(generate(*prompt, *flags)) for _ in range(3)]
    assert all(run["tokens"] == plain["tokens"] for run in runs)
    options = {"n_max": 5, "static": str(static), "dynamic": str(dynamic)}
    assert runs[0]["spec"] == {"types": ["ngram-cache"], "options": {"ngram-cache": options}}
    n_accepted = [run["stats"]["n_accepted"] for run in runs]
    assert n_accepted[2] > 30 > n_accepted[0]  # what was said twice is expected to be said again
    found = ngram_file.read(dynamic).get(tuple(plain["prompt_tokens"][:4]))
    assert found == (plain["prompt_tokens"][4:5], [3])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lookup-cache-static", "missing.bin"), "Invalid value for --lookup-cache-static: static is missing.bin"),
        (("-lcd", "/nonexistent/d.bin"), "Invalid value for --lookup-cache-dynamic: dynamic is /nonexistent/d.bin"),
        (("--spec-ngram-cache-n-max", "0"), "Invalid value for --spec-ngram-cache-n-max: n_max must be"),
    ],
)
def test_a_wrong_flag_is_named(generate: Run, flags: tuple[str, ...], message: str) -> None:
    assert message in generate("-p", "x", "-n", "1", "--spec-type", "ngram-cache", *flags).usage_error


def test_a_cache_without_its_drafter_is_wrong_usage(generate: Run, tmp_path: Path) -> None:
    ran = generate("-p", "x", "-n", "1", "--spec-type", "suffix", "-lcd", tmp_path / "d.bin")
    assert "it belongs to ngram-cache" in ran.usage_error


def test_a_damaged_cache_ends_it_and_stays(generate: Run, tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    path.write_bytes(b"precious")
    ran = generate("-p", "x", "-n", "1", "--spec-type", "ngram-cache", "-lcd", path)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: {path} is no n-gram cache, or it is damaged")
    assert path.read_bytes() == b"precious"
