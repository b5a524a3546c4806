"""The package in examples/custom_drafter: its drafter on fakes, installed as strangers install it, and its tutorial."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.custom_drafter.pyspec_copy_edit import CopyEdit
from pyspec.drafters import Chain, DraftRequest
from pyspec.errors import ConfigError
from pyspec.trace import read_trace
from tests.fakes import Fuse, HashLogits, InjectedError, cycle_logits
from tests.playing import Table
from tests.reference import Request

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "custom_drafter"
TUTORIAL = ROOT / "docs" / "how-to" / "write-a-drafter.md"

# The tutorial's commands as they stand, in this environment and without the network.
SHELL = """
pyspec() { "$PYTHON" -m pyspec "$@"; }
pip() { "$PYTHON" -m pip "$@" --no-index --no-deps --no-build-isolation; }
"""


def ask(drafter: CopyEdit, tokens: Sequence[int], *, budget: int = 99, seq_id: int = 0) -> list[int]:
    request = DraftRequest(seq_id, tokens[:-1], tokens[-1], len(tokens) - 1, budget)
    return list(drafter.draft([request])[0].tokens)


def begun(prompt: Sequence[int], *, size_n: int = 2, n_max: int = 8) -> CopyEdit:
    drafter = CopyEdit(size_n=size_n, n_max=n_max)
    drafter.begin(0, prompt)
    return drafter


def table(prompt: Sequence[int], answer: Sequence[int], *, fuse: Fuse | None = None) -> Table:
    """A target that gives this answer to this prompt, whatever the drafter says."""
    tokens = [*prompt, *answer]
    request = Request(cycle_logits(tokens, 99), 99, tuple(prompt), len(answer))
    made = Table([request], fuse=fuse)
    made.chain = Chain([CopyEdit(size_n=2)])
    made.begin()
    return made


def test_an_edited_copy_takes_few_rounds() -> None:
    prompt = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 9, 10, 11]
    game = table(prompt, [12, 13, 50, 15, 16, 17, 18, 19, 20, 21, 22])
    game.play()
    game.check_end()
    emitted = [list(outcome.emitted) for outcome in game.seats[0].outcomes]
    assert emitted == [[12, 13], [50], [15], [16], [17, 18], [19, 20, 21, 22]]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(0, 9), st.integers(1, 3), st.integers(1, 5))
def test_the_output_is_that_of_plain_decoding(prompt: list[int], seed: int, size_n: int, n_max: int) -> None:
    game = Table([Request(HashLogits(seed, 4, order=2), 4, tuple(prompt), max_tokens=30)])
    game.chain = Chain([CopyEdit(size_n=size_n, n_max=n_max)])
    game.begin()
    game.play()
    game.check_end()


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("point", ["decode", "decoded", "sample"])
def test_a_round_that_was_undone_is_drafted_again(point: str, at: int) -> None:
    prompt, answer = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2], [3, 4, 9, 1, 2, 5, 6]
    game = table(prompt, answer, fuse=Fuse(point, at))
    with pytest.raises(InjectedError):
        game.play()
    game.play()
    game.check_end()
    smooth = table(prompt, answer)
    smooth.play()
    drafts = [[outcome.proposal for outcome in each.seats[0].outcomes] for each in (game, smooth)]
    assert drafts[0] == drafts[1]


def test_the_finger_takes_the_next_place_not_the_last_one() -> None:
    prompt = [1, 2, 30, 1, 2, 31, 1, 2, 32, 8]
    drafter = begun(prompt, n_max=1)
    assert ask(drafter, [*prompt, 1, 2]) == [30]
    drafter.accept(0, 1, own=True)
    assert ask(drafter, [*prompt, 1, 2, 30, 1, 2]) == [31]
    drafter.accept(0, 1, own=True)
    assert ask(drafter, [*prompt, 1, 2, 30, 1, 2, 31, 1, 2]) == [32]
    drafter.accept(0, 1, own=True)
    assert ask(drafter, [*prompt, 1, 2, 30, 1, 2, 31, 1, 2, 32, 1, 2]) == [30]  # once more from the beginning


def test_the_length_follows_what_stood() -> None:
    prompt = list(range(40))
    drafter = begun(prompt, n_max=8)
    lengths = []
    for n_accepted in (1, 3, 7, 8, 2, 0):
        lengths.append(len(ask(drafter, [*prompt, 4, 5])))
        drafter.accept(0, n_accepted, own=True)
        drafter.accept(0, 5, own=False)  # says nothing
        drafter.begin(1, prompt)  # neither does another sequence
    assert lengths == [1, 3, 7, 8, 8, 5]
    assert ask(drafter, [*prompt, 4, 5]) == [6]


def test_a_draft_keeps_to_the_budget() -> None:
    drafter = begun(list(range(40)))
    drafter.accept(0, 8, own=True)
    assert len(ask(drafter, [4, 5])) == 8
    assert ask(drafter, [4, 5], budget=2) == [6, 7]


def test_a_new_request_forgets_the_former_one() -> None:
    drafter = begun([1, 2, 3, 4])
    drafter.begin(0, [5, 6, 7, 8])
    assert ask(drafter, [5, 6, 7, 8, 1, 2]) == []
    assert ask(drafter, [5, 6, 7, 8, 5, 6]) == [7]


def test_the_engine_s_list_is_not_kept() -> None:
    history = [1, 2, 3, 4]
    drafter = begun(history)
    history[2:] = [9, 9, 1, 2]
    assert ask(drafter, history) == [3]


@pytest.mark.parametrize(("size_n", "expected"), [(1, [7]), (2, [8]), (3, [9]), (4, [])])
def test_the_last_tokens_are_looked_up(size_n: int, expected: list[int]) -> None:
    prompt = [3, 7, 2, 3, 8, 1, 2, 3, 9]
    assert ask(begun(prompt, size_n=size_n), [*prompt, 1, 2, 3]) == expected


@pytest.mark.parametrize("tokens", [[7], [7, 7], [7, 7, 7]])
def test_a_history_shorter_than_a_key(tokens: list[int]) -> None:
    assert ask(begun(tokens[:-1], size_n=3), tokens) == []


@pytest.mark.parametrize("options", [{"size_n": 0}, {"n_max": 0}, {"n_max": "8"}, {"size_n": 1.5}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} must be an integer of at least 1"):
        CopyEdit(**options)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Run shell lines in a folder that has the examples; what they install is found there, and nowhere else."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "examples").symlink_to(ROOT / "examples")
    site = folder / "site"
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "PIP_TARGET": str(site),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    def run(lines: str) -> str:
        process = subprocess.run(
            ["bash", "-euc", SHELL + lines], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, f"{lines}\n{process.stdout}\n{process.stderr}"
        return process.stdout

    run("pip install examples/custom_drafter")
    return run


def test_installing_it_leaves_nothing_in_its_folder(shell: Callable[[str], str]) -> None:
    shell("true")
    names = {path.name for path in PACKAGE.iterdir()}
    assert names - {"__pycache__"} == {"README.md", "pyproject.toml", "pyspec_copy_edit.py"}


@pytest.mark.native
def test_it_is_listed(shell: Callable[[str], str]) -> None:
    assert "copy-edit" in json.loads(shell("pyspec info --json"))["drafters"]


def test_it_drafts_for_a_real_target(shell: Callable[[str], str], target_path: Path, tmp_path: Path) -> None:
    tokens, path = tmp_path / "tokens.json", tmp_path / "run.jsonl"
    generate = f"pyspec generate -m '{target_path}' -t 1 -n 60 --prompt-tokens '{tokens}' --json"
    prompt = [1, 60, 75, 112, 264, 300, 91, 130]
    tokens.write_text(json.dumps(prompt), encoding="utf-8")
    prompt += [*json.loads(shell(generate))["tokens"], *prompt[1:]]  # the model is asked to say it again
    tokens.write_text(json.dumps(prompt), encoding="utf-8")
    plain = json.loads(shell(generate))
    drafted = json.loads(shell(f"{generate} --spec-type copy-edit --trace '{path}'"))
    assert drafted["tokens"] == plain["tokens"]
    trace = read_trace(path)
    assert trace.emitted == plain["tokens"]
    assert trace.run["spec"]["options"] == {"copy-edit": {"size_n": 3, "n_max": 16}}
    assert {line["drafter"] for line in trace.rounds} == {"copy-edit", None}
    assert sum(line["accepted"] for line in trace.rounds) == drafted["drafters"]["copy-edit"]["n_accepted"] > 0


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Return the page's code blocks of these languages, each with its language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert {language for language, _code in found} <= {"python", "sh", "text", "toml"}
    return [(language, code) for language, code in found if language in languages]


FILES = {name: (PACKAGE / name).read_text(encoding="utf-8") for name in ("pyspec_copy_edit.py", "pyproject.toml")}


def test_the_tutorial_shows_the_files_as_they_are() -> None:
    shown = [code for _language, code in blocks(TUTORIAL, "python", "toml")]
    assert [code for code in FILES.values() if code in shown] == list(FILES.values())
    assert [code for language, code in blocks(TUTORIAL, "toml")] == [FILES["pyproject.toml"]]


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize("page", [TUTORIAL, PACKAGE / "README.md"], ids=lambda page: page.name)
def test_every_other_block_runs(shell: Callable[[str], str], page: Path) -> None:
    """One after the other, because a later one reads what an earlier one wrote."""
    for language, code in blocks(page, "python", "sh"):
        if code not in FILES.values():
            shell(code if language == "sh" else f'"$PYTHON" - <<"END"\n{code}\nEND')
