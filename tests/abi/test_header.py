"""cffi parses csrc/pyspec_decl.h; the ctypes declarations and the compiled library must agree with it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cffi  # type: ignore[import-untyped,unused-ignore] # stubs are a package of their own
import pytest

from pyspec._native.declarations import ABI_VERSION, FUNCTIONS, STRUCTURES, ProgressFunction
from pyspec._native.library import lib, library_info
from pyspec._native.status import _EXCEPTIONS, Status

pytestmark = pytest.mark.native

HEADER = (Path(__file__).resolve().parents[2] / "csrc/pyspec_decl.h").read_text(encoding="utf-8")
WITHOUT_COMMENTS = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
DECLARED = re.findall(r"^(?:const )?\w+ \*? ?(pys_\w+)\(([^)]*)\);", WITHOUT_COMMENTS, re.MULTILINE)
SCALARS = {
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "char": ctypes.c_char,
}


@pytest.fixture(scope="module")
def ffi() -> cffi.FFI:
    parsed = cffi.FFI()
    parsed.cdef(HEADER)
    return parsed


@pytest.fixture(scope="module")
def compiled(ffi: cffi.FFI) -> Any:
    return ffi.dlopen(library_info()["path"])


def allowed(ctype: Any) -> set[Any]:
    """Return the ctypes types that may stand for a type of the header; None stands for void."""
    if ctype.kind == "array":
        (item,) = allowed(ctype.item)
        return {item * ctype.length}
    if ctype.kind == "pointer":
        return allowed_for_pointer(ctype.item)
    return {None if ctype.kind == "void" else SCALARS[ctype.cname]}


def allowed_for_pointer(item: Any) -> set[Any]:
    if item.kind == "struct":
        return {ctypes.POINTER(STRUCTURES[item.cname])} if item.cname in STRUCTURES else {ctypes.c_void_p}
    if item.kind in ("pointer", "void"):
        return {ctypes.c_void_p if item.kind == "void" else ctypes.POINTER(ctypes.c_void_p)}
    if item.cname == "char":
        return {ctypes.c_char_p, ctypes.c_void_p}
    return {ctypes.POINTER(SCALARS[item.cname]), ctypes.c_void_p}  # one value, or an array by its address


def test_the_header_is_plain_declarations() -> None:
    assert "#" not in WITHOUT_COMMENTS
    assert not re.search(r"llama|ggml", WITHOUT_COMMENTS)


def test_both_sides_declare_the_same_functions() -> None:
    assert [name for name, _ in DECLARED] == list(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_signature_is_the_header_s(name: str, ffi: cffi.FFI, compiled: Any) -> None:
    declared = ffi.typeof(getattr(compiled, name))  # fails when the library does not export it
    result, arguments = FUNCTIONS[name]
    assert result in allowed(declared.result)
    assert len(arguments) == len(declared.args)
    for i, (ours, theirs) in enumerate(zip(arguments, declared.args, strict=True)):
        assert ours in allowed(theirs), f"argument {i} is {theirs.cname} in the header"


@pytest.mark.parametrize(("name", "text"), DECLARED)
def test_only_constant_text_is_passed_as_bytes(name: str, text: str) -> None:
    arguments = [argument.strip() for argument in text.split(",")]
    as_bytes = [argument is ctypes.c_char_p for argument in FUNCTIONS[name][1]]
    if arguments != ["void"]:
        assert as_bytes == [argument.startswith("const char *") for argument in arguments]


def test_both_sides_have_the_same_structures(ffi: cffi.FFI) -> None:
    _typedefs, structs, _unions = ffi.list_types()
    names = {name for name in structs if ffi.typeof(f"struct {name}").fields is not None}
    assert names == set(STRUCTURES)


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_fields_are_the_header_s(name: str, ffi: cffi.FFI) -> None:
    structure = STRUCTURES[name]
    declared = ffi.typeof(name)
    ours = {field[0]: field[1] for field in structure._fields_}
    assert list(ours) == [field for field, _ in declared.fields]
    for field, info in declared.fields:
        descriptor = getattr(structure, field)
        assert (descriptor.offset, descriptor.size) == (info.offset, ffi.sizeof(info.type)), field
        if info.type.kind == "function":
            assert ours[field] is ProgressFunction
        else:
            assert ours[field] in allowed(info.type), field


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_compiler_gave_the_structure_this_size(name: str, ffi: cffi.FFI) -> None:
    assert lib().pys_struct_size(name.encode()) == ctypes.sizeof(STRUCTURES[name]) == ffi.sizeof(name)


def test_an_unknown_structure_has_no_size() -> None:
    assert lib().pys_struct_size(b"pys_nothing") == -1


def test_the_callback_is_the_header_s(ffi: cffi.FFI) -> None:
    declared = ffi.typeof("pys_progress_fn")
    prototype: Any = ProgressFunction
    assert prototype._restype_ in allowed(declared.result)
    assert [ours in allowed(theirs) for ours, theirs in zip(prototype._argtypes_, declared.args, strict=True)] == [
        True,
        True,
    ]


def test_the_status_numbers_are_the_header_s(ffi: cffi.FFI) -> None:
    declared = {name: number for number, name in ffi.typeof("enum pys_status").elements.items()}
    no_failures = (Status.OK, Status.LOGGED)
    ours = {f"PYS_{'' if status in no_failures else 'ERR_'}{status.name}": int(status) for status in Status}
    assert ours == declared


def test_every_failure_has_an_exception() -> None:
    assert set(_EXCEPTIONS) == set(Status) - {Status.OK, Status.LOGGED}


def test_the_abi_number_is_the_header_s(ffi: cffi.FFI) -> None:
    assert ffi.typeof("enum pys_abi").elements == {ABI_VERSION: "PYS_ABI_VERSION"}
    assert lib().pys_abi_version() == ABI_VERSION


def test_the_library_exports_the_contract_and_nothing_of_upstream() -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm, which comes with a compiler, is not on the PATH")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library_info()["path"]], capture_output=True, text=True, check=True
    )
    symbols = [line.split()[-2:] for line in listing.stdout.splitlines()]
    assert {name for kind, name in symbols if kind == "T"} == set(FUNCTIONS)
    assert not [name for _, name in symbols if re.search(r"llama|ggml", name)]
