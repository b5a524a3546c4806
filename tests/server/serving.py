"""``pyspec serve`` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def served(model: Path, *flags: str, key: str) -> Iterator[str]:
    """Serve a model on any free port of this machine, and yield the address; the server must end well."""
    command = [sys.executable, "-m", "pyspec", "serve", "-m", str(model), "--port", "0", "-t", "1", *flags]
    environment = {**os.environ, "PYSPEC_API_KEY": key, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            found = process.stdout.readline().strip()
            assert found.startswith("http://127.0.0.1:")
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
