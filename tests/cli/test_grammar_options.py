"""Where ``pyspec generate`` takes a grammar from, and what it says of one that it cannot take."""

from __future__ import annotations

import codecs
import json
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pyspec.llama.grammar.description import MAX_TEXT
from tests.cli.conftest import Run

PROMPT = ("-p", "the name of the")
SCHEMA = '{"properties": {"naïve": {"const": "été"}}, "required": ["naïve"], "type": "object", "maxProperties": 1}'
GBNF = 'root ::= "été" ("a" | "b") "\\n"'


def text(run: Run, *arguments: object) -> str:
    ran = run(*PROMPT, *arguments)
    assert ran.code == 0, ran.err
    return ran.out


def failed(run: Run, *arguments: object) -> str:
    ran = run(*PROMPT, *arguments)
    assert (ran.code, ran.out) == (1, ""), ran.err
    assert len(ran.err.splitlines()) == 1
    return ran.err


@pytest.mark.parametrize(
    ("flag", "grammar", "pattern"),
    [
        ("--grammar", GBNF, "été[ab]\n"),
        ("--regex", "été[ab]{3}", "été[ab]{3}"),
        ("--lark", 'start: "été" /[ab]/', "été[ab]"),
        ("--json-schema", SCHEMA, r'\{\s*"naïve"\s*:\s*"été"\s*\}'),
        ("-j", " \n" + SCHEMA, r'\{\s*"naïve"\s*:\s*"été"\s*\}'),
        ("-j", '{"const": 12}', "12"),
    ],
)
def test_a_grammar_on_the_command_line(generate: Run, flag: str, grammar: str, pattern: str) -> None:
    assert re.fullmatch(pattern, text(generate, flag, grammar))


@pytest.mark.parametrize("before", [b"", codecs.BOM_UTF8], ids=["plain", "marked"])
@pytest.mark.parametrize(
    ("flag", "grammar", "inline"),
    [
        ("--grammar-file", GBNF, "--grammar"),
        ("--json-schema-file", SCHEMA, "--json-schema"),
        ("-jf", SCHEMA, "-j"),
        ("--json-schema", SCHEMA, "--json-schema"),
    ],
)
def test_a_grammar_in_a_file(
    generate: Run, tmp_path: Path, flag: str, grammar: str, inline: str, before: bytes
) -> None:
    path = tmp_path / "gramática.txt"
    path.write_bytes(before + grammar.replace(" ", "\r\n" if inline != "--grammar" else " ").encode())
    assert text(generate, flag, path) == text(generate, inline, grammar)


@pytest.mark.parametrize(("flag", "grammar"), [("--grammar-file", GBNF), ("--json-schema-file", SCHEMA)])
def test_a_grammar_from_stdin(
    start: Callable[..., subprocess.Popen[bytes]], target_path: Path, flag: str, grammar: str
) -> None:
    process = start("generate", "-m", target_path, "-t", "1", *PROMPT, flag, "-")
    out, err = process.communicate(grammar.encode(), timeout=120)
    assert process.returncode == 0, err
    assert "été" in out.decode()


@pytest.mark.parametrize("schema", ["{}", " { }\n"])
def test_an_empty_schema_is_for_objects_as_in_llama_cpp(generate: Run, tmp_path: Path, schema: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(schema, encoding="utf-8")
    for flags in (("-j", schema), ("-j", path), ("-jf", path)):
        assert text(generate, *flags, "-n", "8").startswith("{")


@pytest.mark.parametrize(
    ("flag", "content", "trouble"),
    [
        ("--grammar", "root ::= (", "line 1, column 11"),
        ("--regex", "a(b", "line 1, column 2"),
        ("--lark", "start: foo", "line 1, column 8"),
        ("-j", '{"type": "strin"}', "line 1, column 10"),
        ("-j", "false", "schema is false"),
        ("-j", "{", "line 1, column 2"),
    ],
)
def test_a_wrong_grammar_is_one_line_that_says_where(generate: Run, flag: str, content: str, trouble: str) -> None:
    assert trouble in failed(generate, flag, content)


@pytest.mark.parametrize("flag", ["--json-schema", "--json-schema-file", "--grammar-file"])
def test_files_that_hold_no_grammar(generate: Run, tmp_path: Path, flag: str) -> None:
    path = tmp_path / "grammar"
    contents: list[bytes] = [b"", b"{", b"\0", b"root ::= (", b'"root"', b"[]"]
    for content in contents:
        path.write_bytes(content)
        error = failed(generate, flag, path)
        assert ("JSON schema" in error) is flag.startswith("--json"), content


@pytest.mark.parametrize("flag", ["--json-schema", "--json-schema-file", "--grammar-file"])
def test_files_that_are_no_text(generate: Run, tmp_path: Path, flag: str) -> None:
    path = tmp_path / "grammar"
    path.write_bytes('{"const": "é"}'.encode("latin-1"))
    assert f"{flag}: the file {path} is not UTF-8" in generate(*PROMPT, flag, path).usage_error
    path.write_bytes(SCHEMA.encode("utf-16"))
    assert f"{flag}: the file {path} is not UTF-8" in generate(*PROMPT, flag, path).usage_error


@pytest.mark.parametrize("flag", ["--json-schema", "--json-schema-file", "--grammar-file"])
def test_files_that_are_too_long(generate: Run, tmp_path: Path, flag: str) -> None:
    path = tmp_path / "grammar"
    path.write_bytes(b" " * (MAX_TEXT + 1))
    assert f"has {MAX_TEXT + 1} characters; at most {MAX_TEXT} are compiled" in failed(generate, flag, path)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on disk, and cannot be read to its end
    assert f"{flag}: the file {path} is too long" in generate(*PROMPT, flag, path).usage_error


@pytest.mark.parametrize("given", ["", "schema.json", "[1]", "~", "x" * 5000, "\udcff", ".", "-", "--"])
def test_what_is_neither_a_schema_nor_a_file(run: Run, given: str) -> None:
    error = run("generate", "-m", "does-not-exist.gguf", *PROMPT, f"--json-schema={given}").usage_error
    assert "is neither a schema, which begins with a brace, nor a file" in error
    assert len(error) < 500


@pytest.mark.parametrize("flag", ["--json-schema-file", "--grammar-file"])
def test_files_that_are_not_there(run: Run, tmp_path: Path, flag: str) -> None:
    for path in (tmp_path / "missing", tmp_path):
        assert flag in run("generate", "-m", "does-not-exist.gguf", *PROMPT, flag, path).usage_error


def test_one_grammar_at_a_time(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "grammar"
    path.write_text(json.dumps({}), encoding="utf-8")
    flags = [("--grammar", "root ::= 'a'"), ("--grammar-file", path), ("-j", "{}"), ("-jf", path), ("--regex", "")]
    for first, second in [*pairwise(flags), (("--lark", ""), flags[0])]:
        error = run("generate", "-m", "does-not-exist.gguf", *PROMPT, *first, *second).usage_error
        assert "give one of --grammar, --grammar-file, --json-schema, --json-schema-file, --regex and --lark" in error


def test_grammars_are_checked_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "grammar"
    path.write_bytes(b"\xff")
    assert "not UTF-8" in run("generate", "-m", "does-not-exist.gguf", *PROMPT, "-jf", path).usage_error
