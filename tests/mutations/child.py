"""Runs tests on a mutated package, in a process of its own: a job a line comes in, an answer a line goes out.

What the tests need besides the package is imported once. The package and its tests are imported anew for each job, the
mutated module from its changed text, so that no file is touched. Random examples are the same every time, and none is
made smaller when it fails: that it fails is all there is to know.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

import numpy as np  # noqa: F401 - cannot be imported twice
import pytest
from hypothesis import Phase, settings

_PLUGINS = ("no:cacheprovider", "no:unraisableexception", "no:threadexception", "pytest_timeout")
_OPTIONS = ("-q", "-x", *(option for plugin in _PLUGINS for option in ("-p", plugin)))


class Mutated(SourceFileLoader):
    """Loads a module from its text with a part of it replaced."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self._old, self._new = old, new

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        assert source is not None
        assert source.count(self._old) == 1
        return compile(source.replace(self._old, self._new), self.path, "exec", dont_inherit=True)


class Mutating:
    """Finds one module of the package as it is mutated; whoever would find it otherwise says where its text lies."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self._module, self._old, self._new = module, old, new

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        origin = next(spec.origin for spec in others if spec is not None)
        assert origin is not None
        return importlib.util.spec_from_file_location(name, loader=Mutated(name, origin, self._old, self._new))


def run(tests: Sequence[str]) -> tuple[int, str]:
    """Run tests to the first failure; return pytest's exit code and output."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("pyspec", "tests"):
            del sys.modules[name]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main([*_OPTIONS, *tests])
    return int(code), output.getvalue()


def main() -> None:
    sys.pycache_prefix, sys.dont_write_bytecode = sys.argv[1], False  # to import is most of the work
    settings.register_profile("mutations", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutations")
    for line in sys.stdin:
        job = json.loads(line)
        finders = [Mutating(*job["mutation"])] if job["mutation"] else []
        sys.meta_path[:0] = finders
        try:
            answer = run(job["tests"])
        finally:
            del sys.meta_path[: len(finders)]
        print(json.dumps(answer), flush=True)  # noqa: T201 - that is how it answers


if __name__ == "__main__":
    main()
