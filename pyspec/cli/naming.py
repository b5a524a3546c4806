"""Names of drafters and of their options, as somebody typed them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

import typer


def parsed_setting(setting: str) -> tuple[str, str, Any]:
    """Return drafter, option and value of ``NAME.OPTION=VALUE``; a value that is not JSON is text."""
    key, equals, text = setting.partition("=")
    drafter, dot, option = key.rpartition(".")
    if not (equals and dot and drafter and option):
        msg = f"it must be NAME.OPTION=VALUE, such as ngram-simple.size_n=4; found {setting!r}."
        raise typer.BadParameter(msg, param_hint="--spec-set")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return drafter, option, value


def meant(name: str, known: Sequence[str]) -> str:
    """Return what to type instead of a name that no drafter has; options behind a colon are how ``bench`` has them."""
    drafter, *options = name.split(":")
    if options and drafter in known:
        flags = " ".join(f"--spec-set {drafter}.{option}" for option in options)
        return f" Did you mean --spec-type {drafter} {flags}?"
    return _near(name, known)


def require_option(drafter: str, option: str, flag: str) -> None:
    """Refuse an option that a drafter has not.

    Args:
        drafter: An installed one.
        option: What the flag sets.
        flag: Is blamed.

    Raises:
        typer.BadParameter: There is no such option.
    """
    from pyspec.drafters.registry import option_names  # noqa: PLC0415 - --help does without

    known = option_names(drafter)
    if option not in known:
        options = ", ".join(known) or "none"
        msg = f"the drafter {drafter} has no option {option!r}; it has {options}.{_near(option, known)}"
        raise typer.BadParameter(msg, param_hint=flag)


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]}?" if near else ""
