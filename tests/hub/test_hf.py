"""Each call runs in a process of its own: huggingface_hub reads its settings when it is imported."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspec import hub
from pyspec.errors import FetchError
from pyspec.hub import hf

from .conftest import COMMIT, FakeHub

pytest.importorskip("huggingface_hub")

ROOT = Path(hub.__file__).parents[2]
CONTENT = b"GGUF" + bytes(range(256)) * 9000
MODEL = "owner/repo/folder/model.gguf"
SCRIPT = """
import json, logging, sys
from pyspec import hub
from pyspec.errors import PyspecError
call, name, options = json.loads(sys.argv[1])
seen = []
try:
    if call == "fetch":
        result = hub.fetch(name, progress=lambda *report: seen.append(report), **options)
    else:
        result = getattr(hub, call)(name, **options)
    answer = {"path": result and str(result)}
except PyspecError as error:
    answer = {"error": type(error).__name__, "message": str(error)}
print(json.dumps({**answer, "seen": seen}))
"""


class Caller:
    """Calls pyspec.hub in a new process, with the hub's settings pointing at the fake one."""

    def __init__(self, fake_hub: FakeHub, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        proxies = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        self.env = {**kept, **proxies, "HF_ENDPOINT": fake_hub.url, "HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
        self.stderr = ""

    def __call__(self, call: str, name: str, env: dict[str, str] | None = None, **options: object) -> dict[str, Any]:
        argv = [sys.executable, "-c", SCRIPT, json.dumps([call, name, options])]
        done = subprocess.run(argv, env={**self.env, **(env or {})}, capture_output=True, text=True, check=True)
        self.stderr = done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def call(fake_hub: FakeHub, tmp_path: Path) -> Caller:
    fake_hub.files[MODEL] = CONTENT
    return Caller(fake_hub, tmp_path / "hf")


def gets(fake_hub: FakeHub) -> list[dict[str, str]]:
    return [headers for method, _, headers in fake_hub.requests if method == "GET"]


def test_names_are_taken_apart() -> None:
    assert hf.parse("hf:o/r/a.gguf") == hf.HfFile("o/r", "a.gguf")
    assert hf.parse("hf:o/r.v1/b/c/a.GGUF@refs/pr/1") == hf.HfFile("o/r.v1", "b/c/a.GGUF", "refs/pr/1")
    assert str(hf.parse("hf:o/r/b/a.gguf@main")) == "hf:o/r/b/a.gguf@main"


def test_a_file_is_fetched_once_and_then_found_without_the_network(call: Caller, fake_hub: FakeHub) -> None:
    assert call("cached_path", f"hf:{MODEL}")["path"] is None
    fetched = call("fetch", f"hf:{MODEL}")
    assert Path(fetched["path"]).read_bytes() == CONTENT
    assert call.stderr == ""
    downloading = [done for done, _, stage in fetched["seen"] if stage == "downloading"]
    assert downloading == sorted(downloading)
    assert fetched["seen"][-1] == [len(CONTENT), len(CONTENT), "verifying"]
    n_requests = len(fake_hub.requests)
    for name in ("resolve", "cached_path"):
        assert call(name, f"hf:{MODEL}")["path"] == fetched["path"]
    assert len(fake_hub.requests) == n_requests
    assert call("fetch", f"hf:{MODEL}")["path"] == fetched["path"]
    assert len(gets(fake_hub)) == 1
    assert call("fetch", f"hf:{MODEL}", force=True)["path"] == fetched["path"]
    assert len(gets(fake_hub)) == 2


def test_resolving_downloads_what_is_not_cached(call: Caller) -> None:
    assert Path(call("resolve", f"hf:{MODEL}")["path"]).read_bytes() == CONTENT


def test_a_revision_is_asked_for(call: Caller, fake_hub: FakeHub) -> None:
    path = call("fetch", f"hf:{MODEL}@v1")["path"]
    assert COMMIT in path
    assert all("/resolve/v1/" in path for _, path, _ in fake_hub.requests)
    assert call("cached_path", f"hf:{MODEL}@v1")["path"] == path
    assert call("cached_path", f"hf:{MODEL}")["path"] is None


def test_the_token_is_sent(call: Caller, fake_hub: FakeHub) -> None:
    call("fetch", f"hf:{MODEL}", env={"HF_TOKEN": "hf_secret"})
    assert {headers.get("authorization") for _, _, headers in fake_hub.requests} == {"Bearer hf_secret"}


def test_a_broken_connection_is_resumed(call: Caller, fake_hub: FakeHub) -> None:
    content = fake_hub.files[MODEL] = b"GGUF" * 3_000_000
    fake_hub.cut_after = 11_000_000
    answer = call("fetch", f"hf:{MODEL}")
    if "error" in answer:  # some versions of the hub's package resume only when they are asked again
        assert answer["error"] == "FetchError"
        assert answer["message"].startswith(f"could not fetch hf:{MODEL}: ")
        answer = call("fetch", f"hf:{MODEL}")
    assert Path(answer["path"]).read_bytes() == content
    _, start = gets(fake_hub)[-1]["range"].removesuffix("-").split("=")
    assert int(start) > 10_000_000


def test_all_parts_of_a_split_model_come(call: Caller, fake_hub: FakeHub) -> None:
    for index in (1, 2, 3):
        fake_hub.files[f"owner/repo/m-0000{index}-of-00003.gguf"] = b"GGUF%d" % index
    path = Path(call("fetch", "hf:owner/repo/m-00002-of-00003.gguf")["path"])
    assert path.name == "m-00001-of-00003.gguf"
    assert len(list(path.parent.glob("m-*.gguf"))) == 3


def test_damage_on_the_way_is_noticed(call: Caller, fake_hub: FakeHub) -> None:
    fake_hub.etags[MODEL] = hashlib.sha256(b"another").hexdigest()
    answer = call("fetch", f"hf:{MODEL}")
    assert answer["error"] == "IntegrityError"
    assert "arrived damaged and was removed" in answer["message"]
    assert call("cached_path", f"hf:{MODEL}")["path"] is None
    del fake_hub.etags[MODEL]
    assert Path(call("fetch", f"hf:{MODEL}")["path"]).read_bytes() == CONTENT


def test_small_files_have_no_hash_to_compare(call: Caller, fake_hub: FakeHub) -> None:
    fake_hub.etags[MODEL] = "0" * 40
    assert Path(call("fetch", f"hf:{MODEL}")["path"]).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "status", "code", "reason"),
    [
        ("hf:owner/repo/other.gguf", 0, "", "no such file"),
        ("hf:owner/repo/folder/model.gguf@v9", 0, "", "no such revision"),
        ("hf:owner/bad/a.gguf", 401, "RepoNotFound", "no such repository"),
        ("hf:owner/bad/a.gguf", 401, "", "HF_TOKEN"),
        ("hf:owner/bad/a.gguf", 403, "GatedRepo", "gated"),
        ("hf:owner/bad/a.gguf", 403, "", "HF_TOKEN"),
        ("hf:owner/bad/a.gguf", 418, "", "status 418"),
        ("hf:owner/re--po/a.gguf", 0, "", "does not allow such a name"),
    ],
)
def test_refusals_are_explained(
    call: Caller, fake_hub: FakeHub, name: str, status: int, code: str, reason: str
) -> None:
    if status:
        fake_hub.errors["owner/bad"] = (status, code)
    answer = call("fetch", name)
    assert answer["error"] == "FetchError"
    assert answer["message"].startswith(f"could not fetch {name}: ")
    assert reason in answer["message"]
    assert "\n" not in answer["message"]


@pytest.mark.parametrize("force", [False, True])
def test_offline_is_explained(call: Caller, fake_hub: FakeHub, *, force: bool) -> None:
    answer = call("fetch", f"hf:{MODEL}", env={"HF_HUB_OFFLINE": "1"}, force=force)
    assert answer["error"] == "FetchError"
    assert "HF_HUB_OFFLINE is set" in answer["message"]
    assert fake_hub.requests == []


def test_offline_finds_what_is_cached(call: Caller) -> None:
    path = call("fetch", f"hf:{MODEL}")["path"]
    for name in ("fetch", "resolve"):
        assert call(name, f"hf:{MODEL}", env={"HF_HUB_OFFLINE": "1"})["path"] == path


def test_a_cache_that_cannot_be_written_is_explained(call: Caller, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    answer = call("fetch", f"hf:{MODEL}", env={"HF_HOME": str(tmp_path / "file")})
    assert answer["error"] == "HubError"
    assert "set HF_HOME to another folder" in answer["message"]


@pytest.mark.slow
def test_an_unreachable_hub_is_explained(call: Caller) -> None:
    answer = call("fetch", f"hf:{MODEL}", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert answer["error"] == "FetchError"
    assert "could not be reached" in answer["message"]


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for function in (hub.fetch, hub.resolve, hub.cached_path):
        with pytest.raises(FetchError, match=r"pip install 'pyspec-llama\[hub\]'"):
            function("hf:owner/repo/a.gguf")
