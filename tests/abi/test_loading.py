"""A library that is missing or is not ours is refused with a message that says so."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspec._native import library
from pyspec._native.declarations import ABI_VERSION, FUNCTIONS, UPSTREAM_TAG
from pyspec.errors import LibraryError, LibraryMismatchError, LibraryNotFoundError

Compile = Callable[..., Path]


@pytest.fixture
def compile_library(tmp_path: Path) -> Compile:
    """Make a shared library that says about itself what it is told to say."""

    def make(abi: int = ABI_VERSION, tag: str = UPSTREAM_TAG, functions: tuple[str, ...] = ()) -> Path:
        source = tmp_path / "library.c"
        lines = [
            f"int pys_abi_version(void) {{ return {abi}; }}",
            f'const char *pys_upstream_tag(void) {{ return "{tag}"; }}',
        ]
        lines += [f"int {name}(void) {{ return 1; }}" for name in functions]
        source.write_text("\n".join(lines), encoding="utf-8")
        compiled = tmp_path / "library.so"
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        assert compiler is not None, "this test needs a C compiler, as building pyspec does"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", compiled, source], check=True)
        return compiled

    return make


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], object]:
    """Load a library from a path as if nothing had been loaded before."""

    def do(path: Path) -> object:
        monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, str(path))
        return library.lib.__wrapped__()

    return do


Load = Callable[[Path], object]


def test_a_missing_library_lists_every_path_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(Path, "is_file", lambda _self: False)
    tried = library.candidates()
    assert tried
    with pytest.raises(LibraryNotFoundError, match="Tried:") as caught:
        library.lib.__wrapped__()
    assert all(str(path) in str(caught.value) for path in tried)
    assert library.ENVIRONMENT_VARIABLE in str(caught.value)


def test_the_environment_variable_names_the_only_path_tried(tmp_path: Path, load: Load) -> None:
    with pytest.raises(LibraryNotFoundError, match=r"Tried:\n  .*nowhere\.so\n"):
        load(tmp_path / "nowhere.so")


def test_a_folder_is_not_a_library(tmp_path: Path, load: Load) -> None:
    with pytest.raises(LibraryNotFoundError):
        load(tmp_path)


def test_a_file_that_is_no_library(tmp_path: Path, load: Load) -> None:
    path = tmp_path / "text.so"
    path.write_text("hello", encoding="utf-8")
    with pytest.raises(LibraryNotFoundError, match=r"text\.so could not be loaded"):
        load(path)


def test_another_abi_number_is_refused_naming_both(compile_library: Compile, load: Load) -> None:
    with pytest.raises(
        LibraryMismatchError, match=rf"ABI 9999 of llama.cpp {UPSTREAM_TAG}.*needed is ABI {ABI_VERSION}"
    ):
        load(compile_library(abi=9999))


def test_another_upstream_tag_is_refused_naming_both(compile_library: Compile, load: Load) -> None:
    with pytest.raises(LibraryMismatchError, match=rf"of llama.cpp b1, needed is .*{UPSTREAM_TAG}"):
        load(compile_library(tag="b1"))


def test_a_library_of_somebody_else_is_refused(tmp_path: Path, load: Load) -> None:
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 0; }", encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "other.so", source], check=True)
    with pytest.raises(LibraryMismatchError, match="is not pyspec's native library"):
        load(tmp_path / "other.so")


def test_a_library_with_a_missing_function_is_refused_naming_it(compile_library: Compile, load: Load) -> None:
    functions = tuple(name for name in FUNCTIONS if name not in ("pys_abi_version", "pys_upstream_tag"))
    left_out = functions[-1]
    with pytest.raises(LibraryMismatchError, match=left_out):
        load(compile_library(functions=functions[:-1]))


def test_a_library_that_cannot_start_says_why(compile_library: Compile, load: Load) -> None:
    functions = tuple(
        name for name in FUNCTIONS if name not in ("pys_abi_version", "pys_upstream_tag", "pys_last_error")
    )
    path = compile_library(functions=functions)
    source = path.with_suffix(".c")
    source.write_text(
        source.read_text(encoding="utf-8") + '\nconst char *pys_last_error(void) { return "no engine"; }\n',
        encoding="utf-8",
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with pytest.raises(LibraryError, match="could not start: no engine"):
        load(path)
