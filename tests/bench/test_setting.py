from __future__ import annotations

import pytest

from pyspec.bench import PLAIN, parse_setting
from pyspec.errors import ConfigError


def test_drafters_with_options() -> None:
    setting = parse_setting("suffix, draft-simple:n_max=7:p_min=0.5:sampling=greedy")
    assert setting.types == ("suffix", "draft-simple")
    assert setting.options == {"draft-simple": {"n_max": 7, "p_min": 0.5, "sampling": "greedy"}}
    assert setting.wants_model


def test_the_flags_say_the_same() -> None:
    assert parse_setting("draft-simple:n_max=7:p_min=0.5").flags == [
        "--spec-type",
        "draft-simple",
        "--spec-draft-n-max",
        "7",
        "--spec-set",
        "draft-simple.p_min=0.5",
    ]
    assert parse_setting("auto:n_max=4").flags == ["--spec-type", "auto", "--spec-draft-n-max", "4"]
    assert parse_setting("suffix:share=true:n_max=8").flags[2:] == [
        "--spec-set",
        "suffix.share=true",
        "--spec-set",
        "suffix.n_max=8",
    ]
    assert PLAIN.flags == parse_setting("none").flags == ["--spec-type", "none"]


def test_what_the_library_gets() -> None:
    assert parse_setting("suffix:n_max=8").speculation(None).options == {"suffix": {"n_max": 8}}
    automatic = parse_setting("auto:n_max=4").speculation(None)
    assert (automatic.auto, automatic.n_max) == (True, 4)
    for plain in (PLAIN, parse_setting("none")):
        assert plain.speculation(None).names == ()
        assert not plain.speculation(None).auto


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "NAME[:OPTION=VALUE]"),
        ("suffix,", "NAME[:OPTION=VALUE]"),
        ("sufix", "Did you mean suffix?"),
        ("suffix:n_max", "NAME[:OPTION=VALUE]"),
        ("suffix:n_mx=3", "Did you mean n_max?"),
        ("auto:p_min=3", "it has n_max"),
        ("suffix:n_max=1:n_max=4", "gives n_max of suffix twice"),
        ("suffix:n_max=1,ngram-mod,suffix:n_max=1", "gives n_max of suffix twice"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_setting(text)
    assert words in str(caught.value)


def test_none_stands_alone() -> None:
    with pytest.raises(ConfigError, match="stands alone"):
        parse_setting("none,suffix").speculation(None)
