"""What the package says about itself agrees with itself. Nothing is built here."""

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from vendor import fetch

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_pin_is_well_formed() -> None:
    pin = fetch.read_pin()
    assert re.fullmatch(r"b\d+", pin.tag)
    assert pin.version.split(".")[0] == pin.tag.removeprefix("b")
    assert pin.file == f"{pin.package.replace('-', '_')}-{pin.version}.tar.gz"
    assert re.fullmatch(r"[0-9a-f]{64}", pin.sha256)


def test_the_pin_is_toml_too() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer have it")
    pin = fetch.read_pin()
    assert tomllib.loads(fetch.PIN_FILE.read_text(encoding="utf-8")) == {
        name: getattr(pin, name) for name in pin.__dataclass_fields__
    }


def test_the_library_check_expects_the_pinned_tag() -> None:
    declarations = (ROOT / "pyspec/_native/declarations.py").read_text(encoding="utf-8")
    assert f'"{fetch.read_pin().tag}"' in declarations


def test_the_installed_version_is_the_project_s() -> None:
    match = re.search(r'^version = "(.+)"$', PYPROJECT, re.MULTILINE)
    assert match is not None
    assert metadata.version("pyspec-llama") == match[1]


def test_every_supported_python_is_named() -> None:
    named = re.findall(r"Python :: 3\.(\d+)", PYPROJECT)
    assert named == [str(minor) for minor in range(10, 15)]
    assert 'requires-python = ">=3.10"' in PYPROJECT
    assert 'target-version = "py310"' in PYPROJECT


def test_the_package_is_typed() -> None:
    assert (ROOT / "pyspec/py.typed").is_file()


def test_no_file_names_a_package_registry() -> None:
    hosts = re.compile(r"(?:pypi|pythonhosted|test\.pypi)\.(?:org|io)", re.IGNORECASE)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.splitlines()]
    texts = {path: path.read_text(encoding="utf-8", errors="ignore") for path in files if path.is_file()}
    assert [path for path, text in texts.items() if hosts.search(text)] == []
