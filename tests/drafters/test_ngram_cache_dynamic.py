"""The dynamic cache of ngram-cache, its files and its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pyspec.drafters import create, ngram_file
from pyspec.drafters.ngram_cache import NgramCache
from pyspec.drafters.registry import Resources
from pyspec.errors import ConfigError, NgramFileError, TokenError
from tests.drafters.test_ngram_cache import ask, save


def test_the_dynamic_cache_is_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drafter = NgramCache()
    drafter.begin(0, [1, 2, 3] * 20)
    drafter.close()
    assert list(tmp_path.iterdir()) == []
    assert drafter.dynamic is None


def test_a_request_enters_the_dynamic_cache_when_it_ends(tmp_path: Path) -> None:
    drafter = NgramCache(n_max=2, dynamic=tmp_path / "dynamic.bin")
    request = [1, 2, 3, 4, 5] * 3
    drafter.begin(0, request)
    assert ask(drafter, [8, 8, 3], 4, seq_id=1) == []
    drafter.begin(0, [9])
    assert ask(drafter, [8, 8, 3], 4, seq_id=1) == [5, 1]
    assert not (tmp_path / "dynamic.bin").exists()


def test_what_was_saved_drafts_the_same(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    first = NgramCache(dynamic=path)
    first.begin(0, [1, 2, 3, 4, 5, 6, 7] * 4)
    first.begin(0, [2, 3, 9, 2, 3, 9, 2, 3, 9])
    first.begin(0, [])
    questions = [([7, a], b) for a in range(10) for b in range(10)]
    expected = [ask(first, *question) for question in questions]
    first._contexts.clear()  # the questions are not to be learned
    first.close()
    second = NgramCache(dynamic=path)
    for (history, pending), draft in zip(questions, expected, strict=True):
        second.begin(0, history)
        assert ask(second, history, pending) == draft
        second._contexts.clear()
    assert any(len(draft) == 8 for draft in expected)


def test_closing_saves_once_and_adds_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    for n_sessions in (1, 2, 3):
        drafter = NgramCache(dynamic=path)
        drafter.begin(0, [1, 2])
        drafter.close()
        drafter.close()
        assert ngram_file.read(path).get((1,)) == ([2], [n_sessions])


def test_a_session_without_requests_writes_nothing(tmp_path: Path) -> None:
    NgramCache(dynamic=tmp_path / "dynamic.bin").close()
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    drafter = NgramCache(dynamic=path)
    drafter.begin(0, [1, 2, 3])
    path.write_bytes(b"something else")
    with pytest.raises(NgramFileError, match="is no n-gram cache"):
        drafter.close()
    assert path.read_bytes() == b"something else"
    path.unlink()
    drafter.close()
    assert ngram_file.read(path).get((1, 2)) == ([3], [1])


# Options


def test_every_option_changes_a_field(tmp_path: Path) -> None:
    default: Any = create("ngram-cache")
    assert (default.n_max, default.static, default.dynamic) == (8, None, None)
    static = save(tmp_path / "static.bin", {(1, 2): {3: 4}})
    changed: Any = create("ngram-cache", n_max=3, static=static, dynamic=str(tmp_path / "d.bin"))
    assert (changed.n_max, changed.static, changed.dynamic) == (3, str(static), str(tmp_path / "d.bin"))
    json.dumps([changed.static, changed.dynamic])  # traces have the options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_max": 0}, "n_max must be"),
        ({"n_max": 2.5}, "n_max must be"),
        ({"n_max": True}, "n_max must be"),
        ({"n_min": 1}, "no option 'n_min'"),
        ({"static": 5}, "static must be the path of a file, not 5"),
        ({"static": ""}, "static must be the path of a file"),
        ({"static": b"bytes"}, "static must be the path of a file"),
        ({"dynamic": "a\0b"}, "dynamic must be the path of a file"),
        ({"dynamic": False}, "dynamic must be the path of a file"),
        ({"static": "/nonexistent/static.bin"}, "does not exist; `pyspec ngram-cache build` makes"),
        ({"dynamic": "/nonexistent/dynamic.bin"}, "nothing can be written to the folder /nonexistent"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create("ngram-cache", **options)


@pytest.mark.parametrize("option", ["static", "dynamic"])
def test_a_damaged_file_is_refused_and_stays(tmp_path: Path, option: str) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(b"GGUF and so on")
    options: dict[str, Any] = {option: path}
    with pytest.raises(NgramFileError, match="is no n-gram cache"):
        create("ngram-cache", **options)
    assert path.read_bytes() == b"GGUF and so on"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("option", ["static", "dynamic"])
def test_a_file_of_another_vocabulary_is_refused(tmp_path: Path, option: str) -> None:
    path = save(tmp_path / "cache.bin", {(1, 2): {49: 2}})
    options: dict[str, Any] = {option: path}
    for n_vocab, fits in ((50, True), (49, False)):
        target = cast("Any", type("Target", (), {"n_vocab": n_vocab})())
        resources = Resources(cast("Any", None), target, None, n_sequences=1)
        if fits:
            NgramCache(resources=resources, **options)
        else:
            with pytest.raises(
                TokenError, match=f"{option} is .*holds the token 49; the target has the tokens 0 to 48"
            ):
                NgramCache(resources=resources, **options)


def test_tokens_that_no_file_can_hold(tmp_path: Path) -> None:
    path = save(tmp_path / "dynamic.bin", {(1,): {2: 9}})
    before = path.read_bytes()
    for wrong in (2**40, -1, 2**31):
        drafter = NgramCache(dynamic=path)
        assert isinstance(ask(drafter, [1, wrong, 1, wrong], 1), list)
        with pytest.raises(TokenError, match=f"A token is {wrong}"):
            drafter.close()
        assert path.read_bytes() == before


def test_numpys_integers_are_tokens(tmp_path: Path) -> None:
    history = np.array([1, 2, 3, 4, 9, 1, 2], np.int32)
    drafter = NgramCache(n_max=1, dynamic=tmp_path / "dynamic.bin")
    assert ask(drafter, cast("Any", history), 3) == [4]
    drafter.close()
    assert ngram_file.read(tmp_path / "dynamic.bin").get((1, 2)) == ([3], [2])
