"""Each mutation makes the tests named with it fail; without one they pass. See docs/explanation/losslessness.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mutations.choices import CHOICES
from tests.mutations.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
ALL = (*MUTATIONS, *CHOICES)


class Child:
    """The process in which the tests run; see ``child.py``."""

    def __init__(self, compiled: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutations.child", str(compiled)],
            cwd=ROOT,
            env={**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, tests: Sequence[str], mutation: Mutation | None = None) -> tuple[pytest.ExitCode, str]:
        """Return what pytest says of these tests, with the package as it is or with a mutation."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {
            "tests": [f"tests/{test}" for test in tests],
            "mutation": None if mutation is None else (mutation.module, mutation.old, mutation.new),
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        code, output = json.loads(self.process.stdout.readline())
        return pytest.ExitCode(code), output


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    started = Child(tmp_path_factory.mktemp("compiled"))
    with started.process as process:
        yield started
        process.stdin.close()  # type: ignore[union-attr]


def test_the_package_as_it_is_passes(child: Child) -> None:
    code, output = child.run([*dict.fromkeys(test for mutation in ALL for test in mutation.caught_by)])
    assert code is pytest.ExitCode.OK, output


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_test_fails(mutation: Mutation, child: Child) -> None:
    source = (ROOT / "pyspec" / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1, f"what is to be mutated must stand once in {mutation.file}"
    for test in mutation.caught_by:
        code, output = child.run([test], mutation)
        # Neither an import that fails nor a test that is not found counts: those have codes of their own.
        assert code is pytest.ExitCode.TESTS_FAILED, f"{test} does not see it: {mutation.fault}\n{output}"


def test_each_mutation_has_a_name_and_a_test_of_its_own() -> None:
    names = [mutation.name for mutation in ALL]
    assert len(set(names)) == len(names)
    assert all(mutation.caught_by for mutation in ALL)
