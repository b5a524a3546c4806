"""Imports go downwards only, and one folder speaks to C.

::

    cli, server, bench, trace, the package itself
    engine
    drafters
    speculation
    llama
    _native
    errors, config, files, folders, locking      hub stands beside: it knows these, and cli knows it

A folder may import itself and what is below it. Imports for type checkers count like any other, because a layer
that names another one's types depends on it; so do imports inside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyspec"
LAYERS = ("config", "files", "folders", "locking", "_native", "llama", "speculation", "drafters", "engine")
TOP = ("trace", "bench", "server", "cli")
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "hub": {"errors", "config", "folders", "locking"},
    **{layer: {"errors", *LAYERS[:i]} for i, layer in enumerate(LAYERS)},
    "trace": {"errors", *LAYERS},
    "bench": {"errors", *LAYERS, "trace"},
    "server": {"errors", *LAYERS, "trace", ""},
    "cli": {"errors", *LAYERS, "trace", "bench", "server", "hub", ""},
    "__main__": {"cli"},
    "": {"errors", "hub", *LAYERS, *TOP},
}
"""Per folder or module what it may import; "" is the package itself, ``import pyspec``."""
for _above in ("speculation", "drafters", "engine", *TOP):
    ALLOWED[_above].discard("_native")  # llama is its only user


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def layer_of(module: str) -> str:
    """Return the part of ``pyspec.<layer>.…``, "" for the package itself.

    A name that is no module, as in ``from pyspec import Engine``, belongs to the package itself.
    """
    name = module.split(".")[1] if "." in module else ""
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() else ""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and full name of everything that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def forbidden(path: Path) -> list[str]:
    """Return the imports of a file of the package that do not go downwards."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    own = "" if parts == ("__init__",) else parts[0]
    assert own in ALLOWED, f"{own} has no place in the layers"
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for line, name in imports(path)
        if name.startswith(".")  # imports are absolute, so that they can be read here
        or (name.split(".")[0] == "pyspec" and layer_of(name) not in {own, *ALLOWED[own]})
    ]


def speaks_to_c(path: Path) -> bool:
    return any(name.split(".")[0] in {"ctypes", "cffi", "_ctypes", "_cffi_backend"} for _, name in imports(path))


def test_imports_go_downwards() -> None:
    assert [line for path in files(PACKAGE) for line in forbidden(path)] == []


def test_one_folder_speaks_to_c() -> None:
    allowed = (PACKAGE / "_native", ROOT / "tests" / "abi")
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
    speaking = [path for folder in folders for path in files(folder) if speaks_to_c(path)]
    assert [path for path in speaking if not any(path.is_relative_to(folder) for folder in allowed)] == []
    assert any(path.is_relative_to(allowed[0]) for path in speaking)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("speculation/x.py", "import pyspec.engine"),
        ("speculation/x.py", "from pyspec.drafters import Chain"),
        ("speculation/x.py", "from pyspec import drafters"),
        ("speculation/x.py", "from pyspec import Engine"),
        ("speculation/x.py", "import pyspec"),
        ("llama/x.py", "def f():\n    from pyspec.speculation.round import run_round"),
        ("config.py", "from pyspec._native import lib"),
        ("errors.py", "import pyspec.config"),
        ("engine/x.py", "from . import result"),
        ("hub/x.py", "from pyspec.llama import Model"),
        ("engine/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspec.trace.writer"),
    ],
)
def test_an_import_upwards_is_found(tmp_path: Path, place: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAYERS, *TOP, "errors", "hub"):
        (tmp_path / "pyspec" / name).mkdir(parents=True)
    path = tmp_path / "pyspec" / place
    path.write_text(line + "\n", encoding="utf-8")
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "pyspec")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert len(forbidden(path)) == 1


@pytest.mark.parametrize(
    "line", ["import ctypes", "from ctypes import c_int", "import cffi", "import ctypes.util as u"]
)
def test_speaking_to_c_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(line + "\n", encoding="utf-8")
    assert speaks_to_c(tmp_path / "x.py")
