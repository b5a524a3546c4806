"""The public surface is a list, the exceptions are a drawn tree, and importing does nothing."""

from __future__ import annotations

import builtins
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pyspec
from pyspec import errors

MODULES_WITH_LISTS = [
    module
    for module in (
        pyspec,
        pyspec.config,
        pyspec.drafters,
        pyspec.engine,
        pyspec.errors,
        pyspec.hub,
        pyspec.llama,
        pyspec.speculation,
    )
    if hasattr(module, "__all__")
]


def public_names(module: ModuleType) -> set[str]:
    """Names without an underscore that are no modules, apart from modules that are listed on purpose."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (not inspect.ismodule(value) or name in module.__all__)
        and name != "annotations"
    }


@pytest.mark.parametrize("module", MODULES_WITH_LISTS, ids=lambda module: module.__name__)
def test_lists_are_sorted_and_hold_what_exists(module: ModuleType) -> None:
    names = list(module.__all__)
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))  # constants first
    assert len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names)


@pytest.mark.parametrize(
    "module",
    [pyspec, pyspec.drafters, pyspec.engine, pyspec.hub, pyspec.llama, pyspec.speculation],
    ids=lambda module: module.__name__,
)
def test_packages_offer_nothing_beside_their_list(module: ModuleType) -> None:
    assert public_names(module) == set(module.__all__)


def test_everything_public_has_a_docstring() -> None:
    undocumented = [name for name in pyspec.__all__ if not inspect.getdoc(getattr(pyspec, name))]
    assert undocumented == []


def test_there_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", pyspec.__version__)


# Exceptions


def drawn_tree() -> dict[str, tuple[str, ...]]:
    """Read the tree in the docstring: per class its parents, the one above first."""
    tree: dict[str, tuple[str, ...]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([ │├└─]*)(\w+Error)(?: \((\w+)\))?", line)
        if not found:
            continue
        depth, name, builtin = len(found[1]), found[2], found[3]
        above = [(d, n) for d, n in above if d < depth]
        parents = [above[-1][1]] if above else ["Exception"]
        tree[name] = (*parents, builtin) if builtin else tuple(parents)
        above.append((depth, name))
    return tree


def test_every_exception_is_drawn_with_its_parents() -> None:
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__ == errors.__name__
    }
    assert {name: tuple(base.__name__ for base in cls.__bases__) for name, cls in classes.items()} == drawn_tree()
    assert sorted(classes) == list(errors.__all__)


def test_the_reference_has_every_exception() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(?:pyspec\.)?(\w+Error)`", page)) - set(dir(builtins)) == set(errors.__all__)


def test_every_exception_is_one_of_ours_and_says_what_it_is() -> None:
    for name in errors.__all__:
        cls = getattr(errors, name)
        assert issubclass(cls, errors.PyspecError)
        assert cls.__doc__
        assert cls("x").partial is None


# Imports

IMPORT_EVERYTHING = """
import sys

def hook(event, args):
    if event == "ctypes.dlopen" and "pyspec" in str(args[0]):
        raise SystemExit(f"importing loaded {args[0]}")

sys.addaudithook(hook)
for name in sys.argv[1:]:
    __import__(name)
from pyspec._native import library
assert library.lib.cache_info().currsize == 0
"""


def all_modules() -> list[str]:
    found = pkgutil.walk_packages(pyspec.__path__, "pyspec.")
    return ["pyspec", *(module.name for module in found if not module.name.endswith("__main__"))]


def test_importing_prints_nothing_and_loads_no_library() -> None:
    modules = all_modules()
    assert {"pyspec.engine.generation", "pyspec.llama.context", "pyspec.trace.writer"} <= set(modules)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_EVERYTHING, *modules],
        env={**os.environ, "PYSPEC_LIBRARY": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
