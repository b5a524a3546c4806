"""Finding, loading and checking the native library. It is loaded on first use, never on import."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from pyspec._native.declarations import ABI_VERSION, FUNCTIONS, UNCONVERTED, UPSTREAM_TAG
from pyspec.errors import LibraryError, LibraryMismatchError, LibraryNotFoundError

ENVIRONMENT_VARIABLE = "PYSPEC_LIBRARY"
_FILE_NAMES = {"win32": "pyspec.dll", "darwin": "libpyspec.dylib"}


@functools.cache
def lib() -> Any:
    """Return the native library, loading and checking it on the first call.

    Raises:
        LibraryNotFoundError: No library was found; the message lists each path tried.
        LibraryMismatchError: A library was found that is not the one this package was built with.
    """
    path = _find()
    library = _open(path)
    _check_identity(library, path)
    for name, (result, arguments) in FUNCTIONS.items():
        function = _function(library, name, path)
        function.restype = result
        function.argtypes = None if name in UNCONVERTED else arguments
    if library.pys_init(os.fsencode(path.parent)) != 0:
        msg = f"The native library {path} could not start: {library.pys_last_error().decode(errors='replace')}"
        raise LibraryError(msg)
    return library


def library_info() -> dict[str, Any]:
    """Return where the library is and what it was built from, for ``pyspec info`` and traces."""
    library = lib()
    return {
        "path": str(_find()),
        "abi": library.pys_abi_version(),
        "llama_cpp": library.pys_upstream_tag().decode(),
        "system": library.pys_system_info().decode(errors="replace").strip(),
    }


def candidates() -> list[Path]:
    """Return the paths where the library may be, in the order they are tried."""
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    if override:
        return [Path(override)]
    name = _FILE_NAMES.get(sys.platform, "libpyspec.so")
    # An editable install spreads the package over two folders, both on __path__.
    return [Path(root) / "lib" / name for root in sys.modules["pyspec"].__path__]


def _find() -> Path:
    tried = candidates()
    for path in tried:
        if path.is_file():
            return path.resolve()
    listing = "\n".join(f"  {path}" for path in tried)
    msg = (
        f"The native library of pyspec was not found. Tried:\n{listing}\n"
        f"Install the package (pip install .) or set {ENVIRONMENT_VARIABLE} to the library file."
    )
    raise LibraryNotFoundError(msg)


def _open(path: Path) -> Any:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        msg = f"The native library {path} could not be loaded: {error}"
        raise LibraryNotFoundError(msg) from error


def _function(library: Any, name: str, path: Path) -> Any:
    try:
        return getattr(library, name)
    except AttributeError as error:
        msg = f"{path} does not belong to this version of pyspec: it has no {name}. Install pyspec again."
        raise LibraryMismatchError(msg) from error


def _check_identity(library: Any, path: Path) -> None:
    try:
        library.pys_abi_version.restype = ctypes.c_int32
        library.pys_upstream_tag.restype = ctypes.c_char_p
        found = (library.pys_abi_version(), library.pys_upstream_tag().decode())
    except AttributeError as error:
        msg = f"{path} is not pyspec's native library: it has no pys_abi_version."
        raise LibraryMismatchError(msg) from error
    if found != (ABI_VERSION, UPSTREAM_TAG):
        msg = (
            f"{path} does not belong to this version of pyspec: it has ABI {found[0]} of llama.cpp {found[1]}, "
            f"needed is ABI {ABI_VERSION} of llama.cpp {UPSTREAM_TAG}. Install pyspec again."
        )
        raise LibraryMismatchError(msg)
