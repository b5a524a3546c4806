"""The programs in examples/ that use the engine and the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import served

EXAMPLES = Path(__file__).parents[2] / "examples"
KEY = "key-of-the-test"


def run(name: str, *arguments: object, **variables: str) -> list[str]:
    """Run a program and return the lines that it prints; it must end well, without warnings."""
    command = [sys.executable, "-W", "error", EXAMPLES / name, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **variables}
    ran = subprocess.run(
        list(map(str, command)), capture_output=True, encoding="utf-8", env=environment, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_embedded_in_an_asyncio_program(target_path: Path) -> None:
    lines = run("embedded.py", target_path)
    assert len([line for line in lines if "(length, 32 tokens)" in line or "(eog, " in line]) == 3
    (left,) = (line for line in lines if line.startswith("The story was left after "))
    assert left.endswith("tokens (cancelled).")
    assert any(line.startswith("  story: ") for line in lines)
    assert "Nobody waits for the second story any more." in lines
    assert lines[-1].startswith("5 requests, ")
    assert lines[-1].endswith(" 0 requests are left.")


@pytest.fixture(scope="module")
def address(smollm2: Path) -> Iterator[str]:
    with served(smollm2, "-np", "2", "-c", "2048", "--spec-type", "ngram-simple", key=KEY) as found:
        yield found


def test_langchain(address: str) -> None:
    lines = run("langchain_chat.py", address, OPENAI_API_KEY=KEY, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    said = {name: text for line in lines if ": " in line for name, text in [line.split(": ", 1)]}
    assert said["chain"]
    assert said["at once"].startswith("[")
    assert said["stream"].count("|") > 3
    assert said["structured"].startswith("verdict=")
    assert said["tool"] in ("It is sunny in Paris.", "It is sunny in Rome.")
    assert int(said["tokens"]) > 10
