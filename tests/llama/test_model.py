"""Opening models: what is found, what is refused and how."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec import ModelConfig
from pyspec.errors import ConfigError, LoadCancelledError, ModelError, ModelFormatError, ModelNotFoundError


def test_what_a_model_says_about_itself(target: pyspec.Model) -> None:
    info = target.info
    assert (info.architecture, info.n_layer, info.n_embd, info.n_head, info.n_head_kv) == ("llama", 4, 64, 6, 3)
    assert (info.n_ctx_train, info.n_swa, info.has_decoder, info.is_recurrent) == (1024, 0, True, False)
    assert info.size_bytes == 4 * info.n_params
    assert target.metadata["general.name"] == "zoo target-llama"
    assert target.metadata["llama.block_count"] == "4"
    assert target.chat_template() is None
    assert "target-llama.gguf" in repr(target)
    with pytest.raises(TypeError):
        target.metadata["x"] = "y"  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "recurrent", "hybrid", "window"),
    [("target-mamba", True, False, 0), ("target-lfm2", False, True, 0), ("target-swa", False, False, 16)],
)
def test_kinds_of_models(zoo: Path, name: str, recurrent: bool, hybrid: bool, window: int) -> None:  # noqa: FBT001
    with pyspec.Model(zoo / f"{name}.gguf") as model:
        info = model.info
        assert (info.is_recurrent, info.is_hybrid, info.n_swa) == (recurrent, hybrid, window)


def test_next_n_layers_are_counted(zoo: Path) -> None:
    with pyspec.Model(zoo / "target-mtp-chain.gguf") as model:
        assert (model.info.n_layer, model.info.n_layer_nextn) == (4, 3)


def test_a_path_may_be_text_or_a_path(target_path: Path) -> None:
    for path in (target_path, str(target_path)):
        with pyspec.Model(path) as model:
            assert model.path == target_path


def test_an_odd_name_is_no_obstacle(target_path: Path, tmp_path: Path) -> None:
    odd = tmp_path / "ein Mödell \U0001f680 'x'.gguf"
    odd.write_bytes(target_path.read_bytes())
    with pyspec.Model(odd) as model:
        assert model.info.n_layer == 4


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are not text")
def test_a_name_that_is_not_text_is_no_obstacle(target_path: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf"))
    odd.write_bytes(target_path.read_bytes())
    with pyspec.Model(odd) as model:
        assert model.info.n_layer == 4


@pytest.mark.parametrize("path", [b"model.gguf", 3, None, 1.5, ["a"]])
def test_a_path_of_another_type_is_refused(path: object) -> None:
    with pytest.raises(ConfigError, match="path must be"):
        pyspec.Model(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", "nowhere/model.gguf", "a\0b.gguf", "\ud800.gguf", "x" * 5000])
def test_a_file_that_is_not_there(path: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        pyspec.Model(path)
    assert isinstance(caught.value, FileNotFoundError)


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        pyspec.Model(tmp_path)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelNotFoundError, match="pipe"):
        pyspec.Model(tmp_path / "pipe")


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file(target_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(target_path.read_bytes())
    path.chmod(0)
    with pytest.raises(ModelNotFoundError, match="Permission"):
        pyspec.Model(path)


HEADER = struct.Struct("<4sIQQ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a GGUF file"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF", "ends inside its header"),
        (b"GGUF\x03\x00\x00\x00\x01", "ends inside its header"),
        (HEADER.pack(b"GGUF", 1, 0, 0), "version 1"),
        (HEADER.pack(b"GGUF", 4, 0, 0), "version 4"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (HEADER.pack(b"GGUF", 3, 0, 0), "could not be loaded"),
        (HEADER.pack(b"GGUF", 3, 2**63, 2**63) + bytes(64), "could not be loaded"),
        (HEADER.pack(b"GGUF", 3, 1, 2**40) + bytes(64), "could not be loaded"),
    ],
)
def test_what_is_not_a_usable_gguf(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=said) as caught:
        pyspec.Model(path)
    assert str(path) in str(caught.value)
    if said != "could not be loaded":
        assert isinstance(caught.value, ModelFormatError)


@pytest.mark.parametrize("config", [{"n_gpu_layers": 1}, 3, "fast"])
def test_settings_of_another_type_are_refused(target_path: Path, config: object) -> None:
    with pytest.raises(ConfigError, match="config must be a ModelConfig"):
        pyspec.Model(target_path, config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"use_mmap": False},
        {"check_tensors": True},
        {"repack": False},
        {"n_gpu_layers": 0},
        {"use_mmap": False, "use_mlock": True},
    ],
)
def test_ways_to_load(target_path: Path, settings: dict[str, bool]) -> None:
    with pyspec.Model(target_path, ModelConfig(**settings)) as model:
        assert model.info.n_layer == 4


def test_progress_is_reported_from_nothing_to_all(target_path: Path) -> None:
    seen: list[float] = []
    with pyspec.Model(target_path, progress=seen.append):
        assert seen[-1] == 1.0
        assert seen == sorted(seen)


def test_progress_may_cancel(target_path: Path) -> None:
    with pytest.raises(LoadCancelledError):
        pyspec.Model(target_path, progress=lambda _fraction: False)


def test_an_exception_in_progress_comes_back(target_path: Path) -> None:
    def fail(_fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pyspec.Model(target_path, progress=fail)


def test_progress_must_be_a_function(target_path: Path) -> None:
    with pytest.raises(ConfigError, match="progress"):
        pyspec.Model(target_path, progress=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["no such", ""])
def test_an_unknown_template_is_none(target: pyspec.Model, name: str) -> None:
    assert target.chat_template(name) is None


@pytest.mark.parametrize("name", [5, b"x", "a\0b", "\ud800"])
def test_a_template_name_of_nonsense_is_refused(target: pyspec.Model, name: str) -> None:
    with pytest.raises(ConfigError):
        target.chat_template(name)


def test_vocab_only_models_make_no_context(target_path: Path) -> None:
    with pyspec.Model(target_path, ModelConfig(vocab_only=True)) as model:
        assert model.vocab.n_tokens == 384
        with pytest.raises(pyspec.errors.ContextCreateError, match="vocab_only"):
            pyspec.Context(model)


def test_ctrl_c_while_loading_is_not_lost(target_path: Path, run_script: Any) -> None:
    """The handler may run before the first line of the callback, where ctypes would drop its exception."""
    ended = run_script(
        """
        import signal, sys
        import pyspec

        lost = 0
        fired = []

        def interrupt(*_arguments):
            fired.append(True)
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        for i in range(40):
            fired.clear()
            kept = []  # freed outside: Python drops what is raised in finalisers
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + i * 0.00005)
                for _ in range(20):
                    kept.append(pyspec.Model(sys.argv[1]))
                signal.setitimer(signal.ITIMER_REAL, 0)
                lost += bool(fired)
            except KeyboardInterrupt:
                pass
        print("lost", lost)
        """,
        target_path,
    )
    assert ended.stdout == "lost 0\n"


def test_a_file_that_was_read_may_be_cut(zoo: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes((zoo / "target-llama.gguf").read_bytes())
    with pyspec.Model(path, ModelConfig(use_mmap=False)) as model, pyspec.Engine(model) as engine:
        before = engine.generate("a b", max_tokens=20)
        path.write_bytes(b"")
        assert engine.generate("a b c", max_tokens=20).tokens
        assert engine.generate("a b", max_tokens=20).tokens == before.tokens
