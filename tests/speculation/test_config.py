from __future__ import annotations

from typing import Any

import pytest

from pyspec.errors import ConfigError
from pyspec.speculation.config import Speculation


@pytest.mark.parametrize(
    ("types", "parsed", "names"),
    [
        ("none", ("none",), ()),
        ("ngram-simple", ("ngram-simple",), ("ngram-simple",)),
        (" ngram-simple , draft-simple ", ("ngram-simple", "draft-simple"), ("ngram-simple", "draft-simple")),
        (["a", "b", "a"], ("a", "b"), ("a", "b")),
        (iter(["a"]), ("a",), ("a",)),
    ],
)
def test_types_are_read(types: Any, parsed: tuple[str, ...], names: tuple[str, ...]) -> None:
    speculation = Speculation(types)
    assert speculation.types == parsed
    assert speculation.names == names


@pytest.mark.parametrize("types", ["", " ", "a,,b", "none,a", [], [1], 5, 0, ["a", ""]])
def test_types_that_are_none_are_refused(types: Any) -> None:
    with pytest.raises(ConfigError):
        Speculation(types)


@pytest.mark.parametrize("types", [{}, {"types": None}, {"types": "auto"}, {"types": ["auto", "none-such"]}])
def test_without_types_all_is_chosen_round_by_round(types: Any) -> None:
    assert Speculation(**types).auto
    assert not Speculation("none").auto
    assert not Speculation("suffix").auto


def test_options_are_kept() -> None:
    assert Speculation("a", options={"a": {"size_n": 4}}).options == {"a": {"size_n": 4}}


@pytest.mark.parametrize("options", [{"b": {}}, {"a": 5}, [], {"a": {}, "b": {}}])
def test_options_that_nobody_takes_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError):
        Speculation("a", options=options)


def test_options_of_a_drafter_that_is_not_asked_name_it() -> None:
    with pytest.raises(ConfigError, match=r"options are given for b, but the drafters are a\."):
        Speculation("a", options={"b": {}})
    with pytest.raises(ConfigError, match=r"but the drafters are none\."):
        Speculation("none", options={"b": {}})


@pytest.mark.parametrize("rule", ["best", "", None, 3])
def test_a_rule_that_does_not_exist(rule: Any) -> None:
    with pytest.raises(ConfigError, match="match, rejection, coupled, synthetic, not"):
        Speculation("a", rule=rule)


def test_a_request_may_have_another_rule() -> None:
    asked = Speculation("a", synthetic_length=2.5)
    assert asked.make_rule(None, 3).name == "match"
    assert asked.make_rule("coupled", 3).name == "coupled"
    assert not asked.make_rule("synthetic", 3).valid
    with pytest.raises(ConfigError, match="needs rates or length"):
        Speculation("a").make_rule("synthetic", 3)


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Speculation("a").rule = "x"  # type: ignore[misc]
