from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec.drafters.automatic import LOOKUPS
from pyspec.errors import DecodeError
from pyspec.trace import read_trace
from tests.cli.conftest import Run

Start = Callable[..., "subprocess.Popen[bytes]"]
PROMPT = ("-p", "the name of the")
FEW = (*PROMPT, "-n", "40")


def result(run: Run, *arguments: object) -> dict[str, Any]:
    ran = run(*arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    parsed: dict[str, Any] = json.loads(ran.out)
    return parsed


def test_text_goes_to_stdout_and_a_summary_to_stderr(generate: Run) -> None:
    ran, parsed = generate(*FEW, "--spec-type", "none"), result(generate, *FEW)
    assert ran.code == 0
    assert ran.out == parsed["text"]
    assert re.fullmatch(
        r"\n?\[40 tokens, [\d.]+ tokens/s, prompt of \d+ tokens in [\d.]+ s, finish length\]\n",
        ran.err,
    )
    assert (len(parsed["tokens"]), parsed["finish"], parsed["draft_model"]) == (40, "length", None)
    assert "[1 token, " in generate(*PROMPT, "-n", "1", "--spec-type", "none").err
    assert parsed["spec"]["types"][:2] == ["auto", "suffix"]
    plain = result(generate, *FEW, "--spec-type", "none")
    assert (plain["spec"]["types"], plain["tokens"]) == (["none"], parsed["tokens"])


@pytest.mark.skipif(sys.platform == "win32", reason="a shell that closes streams")
def test_nobody_listens(target_path: Path) -> None:
    command = f'"{sys.executable}" -m pyspec generate -m "{target_path}" -t 1 -p a -n 3 >&-'
    ran = subprocess.run(command, shell=True, stderr=subprocess.PIPE, check=False)  # noqa: S602 - closes stdout
    assert ran.returncode == 0
    assert b"[3 tokens" in ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="has no such devices")
@pytest.mark.parametrize("flag", ["-f", "--prompt-tokens", "--grammar-file", "--json-schema-file", "-j"])
def test_devices_are_no_files(generate: Run, flag: str) -> None:
    prompt = PROMPT if "-j" in flag or "grammar" in flag else ()
    ran = generate(*prompt, flag, "/dev/null")
    assert (ran.code, "is a device, not a file" in ran.err) == (2, True)


@pytest.mark.skipif(sys.platform == "win32", reason="has no such devices")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_devices_are_no_traces(run: Run, device: str) -> None:
    ran = run("trace", "explain", device)
    assert (ran.code, "is a device, not a" in ran.err) == (1, True)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes that have names")
@pytest.mark.parametrize(("flag", "content"), [("-f", b"the name of the"), ("--prompt-tokens", b"[5, 6, 7]")])
def test_prompts_come_from_pipes(generate: Run, tmp_path: Path, flag: str, content: bytes) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(content)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    piped = result(generate, flag, pipe, "-n", "3")
    writer.join()
    assert piped["prompt_tokens"] == result(generate, flag, file, "-n", "3")["prompt_tokens"]


def test_a_context_without_room_for_its_slots(generate: Run) -> None:
    ran = generate(*PROMPT, "-np", "256", "-c", "16")
    assert (ran.code, "--ctx-size: n_ctx is 16" in " ".join(ran.err.split())) == (2, True)


def test_a_draft_model_brings_its_drafter_and_changes_nothing(generate: Run, draft: tuple[object, ...]) -> None:
    plain, drafted = result(generate, *FEW), result(generate, *FEW, *draft, "--spec-draft-n-max", "4")
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["spec"]["types"] == ["auto", "suffix", *LOOKUPS[1:], "draft-simple"]
    assert drafted["spec"]["options"]["draft-simple"] == {"n_max": 4, "n_threads": 1}
    assert drafted["spec"]["options"]["suffix"]["n_max"] == 4
    lookups = ("--spec-type", "ngram-simple")
    fixed = result(generate, *FEW, *draft, *lookups, "--spec-draft-n-max", "4")
    assert fixed["spec"]["types"] == ["ngram-simple", "draft-simple"]
    assert fixed["stats"]["n_accepted"] > 0
    assert "acceptance " in generate(*FEW, *draft, *lookups).err


def test_several_drafters(generate: Run, draft: tuple[object, ...]) -> None:
    flags = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4")
    both = result(generate, *FEW, *flags, *draft)
    assert both["spec"]["types"] == ["ngram-simple", "draft-simple"]
    assert both["tokens"] == result(generate, *FEW)["tokens"]
    alone = generate(*PROMPT, "-n", "2", "--spec-type", "ngram-simple")
    assert "nothing was drafted" in alone.err


def test_none_leaves_the_draft_model_alone(generate: Run) -> None:
    parsed = result(generate, *FEW, "--spec-type", "none", "-md", "does-not-exist.gguf")
    assert parsed["draft_model"] is None


def test_llama_cpps_short_flags(generate: Run, zoo: Path) -> None:
    flags = "-ngl 0 -ngld all -c512 -b 64 -ub 32 -tb 1 -fa on -ctk q8_0 -ctv q8_0 -ctkd q8_0 -ctvd q8_0 -np 1 -td 1"
    parsed = result(generate, *FEW, *flags.split(), "-md", zoo / "draft-llama.gguf", "-s", "3")
    assert parsed["context"] == {"n_ctx": 512, "n_batch": 64}
    options = parsed["spec"]["options"]["draft-simple"]
    assert options == {"n_max": 8, "n_threads": 1, "type_k": "q8_0", "type_v": "q8_0"}
    assert result(generate, *PROMPT, "-n5")["stats"]["n_emitted"] == 5


def test_sampling_flags(generate: Run) -> None:
    flags = "--temp 1.5 --top-k 0 --top-p 1 --min-p 0 --typical-p 1 --repeat-penalty 1.1 --repeat-last-n 8"
    more = "--frequency-penalty 0.1 --presence-penalty 0.1 -l 42=-inf -l 44+1 -l 45-1.5 --logit-bias 43=1.5"
    seeded = [result(generate, *FEW, *flags.split(), *more.split(), "--seed", seed) for seed in (7, 7, 8)]
    assert seeded[0]["tokens"] == seeded[1]["tokens"] != seeded[2]["tokens"]
    assert seeded[0]["seed"] == 7
    assert 42 not in seeded[0]["tokens"]
    assert result(generate, *FEW, "--temp", "1", "-s", "-1")["seed"] is not None


def test_prompts_from_files_and_stdin(generate: Run, start: Start, target_path: Path, tmp_path: Path) -> None:
    path, tokens = tmp_path / "prompt.txt", tmp_path / "tokens.json"
    path.write_bytes(b"the name of the\n")
    expected = result(generate, *FEW)
    tokens.write_text(json.dumps(expected["prompt_tokens"]))
    assert result(generate, "-f", path, "-n", "40")["tokens"] == expected["tokens"]
    assert result(generate, "--prompt-tokens", tokens, "-n", "40")["tokens"] == expected["tokens"]
    out, _ = start("generate", "-m", target_path, "-t", "1", "-f", "-", "-n", "40").communicate(path.read_bytes(), 120)
    assert out.decode() == expected["text"]


def test_carriage_returns_stay_in_the_prompt(generate: Run, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"a\r\nb\n\n")
    expected = result(generate, "-p", "a\r\nb\n", "-n", "1")["prompt_tokens"]
    assert result(generate, "-f", path, "-n", "1")["prompt_tokens"] == expected


def test_stop_strings_are_cut(generate: Run) -> None:
    text = result(generate, *FEW)["text"]
    ran = generate(*FEW, "--stop", text[10:14], "--stop", "never to be seen")
    assert ran.out == text[: text.index(text[10:14])]
    assert "finish stop" in ran.err


def test_the_end_of_the_context_ends_it(generate: Run) -> None:
    parsed = result(generate, *PROMPT, "-n", "-1", "-c", "256")
    assert parsed["finish"] == "context"
    assert len(parsed["tokens"]) + len(parsed["prompt_tokens"]) == 257


def test_nothing_to_generate(generate: Run) -> None:
    ran = generate(*PROMPT, "-n", "0")
    assert (ran.code, ran.out) == (0, "")


def test_colours(generate: Run, draft: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    draft = (*draft, "--spec-type", "draft-simple")
    plain = generate(*FEW, *draft).out
    colored = generate(*FEW, *draft, "--color", "always").out
    assert "\x1b[36m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert generate(*FEW, *draft, "--color", "never").out == plain
    assert "\x1b" not in generate(*FEW, "--color", "always").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert generate(*FEW, *draft).out == colored
    monkeypatch.setenv("NO_COLOR", "1")
    assert generate(*FEW, *draft).out == plain


def test_loading_is_shown_on_a_terminal(generate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = generate(*FEW)
    assert "target-llama.gguf" in ran.err
    assert "target-llama.gguf" not in ran.out


def test_a_trace(generate: Run, draft: tuple[object, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    parsed = result(generate, *FEW, *draft, "--trace", path)
    trace = read_trace(path)
    assert trace.run["prompt_tokens"] == parsed["prompt_tokens"]
    assert trace.emitted == parsed["tokens"]
    assert trace.end is not None
    assert trace.end["finish"] == "length"


WRONG = {
    "": "exactly one of --prompt",
    "-p x -f -": "exactly one of --prompt",
    "-p x --top-p 7": "--top-p: top_p must be between 0 and 1",
    "-p x --temp x": "--temp",
    "-p x -s -2": "--seed",
    "-p x --logit-bias 3": "--logit-bias: cannot read '3'",
    "-p x --logit-bias -3=1": "--logit-bias",
    "-p x -np 0": "--parallel",
    "-p x --keep 3": "--keep",
    "-p x -n -2": "--predict",
    "-p x -c -1": "--ctx-size",
    "-p x -b 100 -ub 200": "--ubatch-size",
    "-p x -t -1": "--threads",
    "-p x -ctk q9": "--cache-type-k",
    "-p x -fa maybe": "-fa",
    "-p x -ngl few": "-ngl",
    "-p x --stop=": "--stop: '' is no text",
    "-p x --stop \udcff": "--stop: '\\udcff' is no text",
    "-p x --dry-sequence-breaker=": "--dry-sequence-breaker: dry_sequence_breakers must be texts of 1 to 40 bytes",
    "-p x -l 3=nan": "--logit-bias: a value of logit_bias must be a number",
    "-p x --spec-rule synthetic": "--spec-rule: --spec-synth-len or --spec-synth-rates belong to",
    "-p x --spec-rule match --spec-synth-len 2": "--spec-rule: --spec-synth-len or --spec-synth-rates belong to",
    "-p x --spec-synth-len 2 --spec-synth-rates 1": "--spec-synth-len: give one of",
    "-p x --spec-synth-rates 1,,1": "--spec-synth-rates: it must be numbers",
    "-p x -ngl -2": "--gpu-layers",
    "-p x -ngld 3": "-ngld: there is no draft model",
    "-p x -f does-not-exist": "No such file",
    "-p x --color blue": "--color",
    "-p x --spec-type nonsense": "--spec-type: there is no drafter 'nonsense'; installed are",
    "-p x --spec-type sufix": "Did you mean suffix?",
    "-p x --spec-type ngram-mod:n_max=4:n_min=2": "--spec-type ngram-mod --spec-set ngram-mod.n_max=4 --spec-set",
    "-p x --spec-type none,ngram-simple": "--spec-type",
    "-p x --spec-type suffix --spec-draft-n-max 3": "--spec-draft-n-max: it belongs to a draft model",
    "-p x --spec-draft-p-min 0.3": "--spec-draft-p-min: it belongs to a draft model",
    "-p x --spec-type ngram-simple -ctkd f16": "-ctkd: it belongs to a draft model",
    "-p x --spec-set suffix.foo=3": "--spec-set: the drafter suffix has no option 'foo'; it has n_max, n_min",
    "-p x --spec-type suffix --spec-set suffix.n_mx=3": "max_tokens, file. Did you mean n_max?",
    "-p x -md y --spec-type draft-simple --spec-set draft-simple.foo=3": "--spec-set: the drafter draft-simple has no",
    "-p x --spec-set auto.n_max=3": "--spec-set: it belongs to auto, which is not among the drafters (suffix)",
    "-p x --spec-suffix-file f": "--spec-suffix-file: past requests are only kept with --spec-suffix-share on",
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.items())
def test_wrong_usage_is_found_before_anything_is_loaded(run: Run, arguments: str, words: str) -> None:
    assert words in run("generate", "-m", "does-not-exist.gguf", *arguments.split()).usage_error


def test_an_option_that_only_other_draft_models_have(generate: Run, draft: tuple[object, ...]) -> None:
    for given in ("draft-simple.foo=3", "draft-*.foo=3"):  # which drafter it is, the draft model says
        ran = generate(*FEW, *draft, "--spec-set", given)
        assert "--spec-set: the drafter draft-simple has no option 'foo'" in ran.usage_error


def test_a_model_is_required(run: Run) -> None:
    assert "--model" in run("generate", "-p", "x").usage_error


@pytest.mark.parametrize("content", ["", "{}", "[1, 2.0]", "[true]", '["1"]', "[1"])
def test_token_files_are_lists_of_integers(run: Run, tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content, encoding="utf-8")
    assert "--prompt-tokens" in run("generate", "-m", "x.gguf", "--prompt-tokens", path).usage_error


def test_synthetic_acceptance_must_suit_the_drafter(generate: Run) -> None:
    flags = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "2")
    for rates in ("0.5", "0.5,0.4,0.3", "0.4,0.5", "nan,0", "2,1"):
        assert "--spec-synth-rates: rates" in generate(*FEW, *flags, "--spec-synth-rates", rates).usage_error
    for length in ("0.5", "nan", "inf", "3.1", "-1"):
        assert "--spec-synth-len: length must be" in generate(*FEW, *flags, "--spec-synth-len", length).usage_error
    assert "--spec-type" in generate(*FEW, "--spec-type", "none", "--spec-synth-len", "2").usage_error
    marked = generate(*FEW, *flags, "--spec-synth-len", "2")
    assert (marked.code, "INVALID OUTPUT" in marked.err) == (0, True)


def test_options_that_a_drafter_refuses_are_wrong_usage(generate: Run, draft: tuple[object, ...]) -> None:
    simple = ("--spec-type", "draft-simple")
    assert "--spec-draft-n-max" in generate(*FEW, *draft, *simple, "--spec-draft-n-max", "0").usage_error
    assert "--spec-draft-p-min" in generate(*FEW, *draft, "--spec-draft-p-min", "2").usage_error


def failed(run: Run, *arguments: object) -> str:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    return ran.err


def test_work_that_fails(generate: Run, zoo: Path, tmp_path: Path) -> None:
    tokens, text = tmp_path / "tokens.json", tmp_path / "prompt.txt"
    tokens.write_text("[1, 99999]")
    text.write_bytes(b"\xff")
    assert "99999" in failed(generate, "--prompt-tokens", tokens)
    assert "not UTF-8" in failed(generate, "-f", text)
    assert "cannot be written" in failed(generate, *FEW, "--trace", tmp_path / "none" / "run.jsonl")
    assert "needs a draft model" in failed(generate, *FEW, "--spec-type", "draft-simple")
    assert "cannot draft for" in failed(generate, *FEW, "-md", zoo / "draft-llama-othervocab.gguf")
    assert "no such file" in failed(generate, *FEW, "-md", zoo / "missing.gguf")
    assert "the context has room for" in failed(generate, "-p", "word " * 3000)


def test_what_was_generated_before_an_error_stays(generate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspec.llama import Context

    flags = (*FEW, "--spec-type", "none")
    whole, decode, n_calls = generate(*flags).out, Context.decode, 0

    def fail_later(self: Context, batch: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls > 5:
            msg = "the computation failed"
            raise DecodeError(msg)
        return decode(self, batch)

    monkeypatch.setattr(Context, "decode", fail_later)
    ran = generate(*flags)
    assert ran.code == 1
    assert ran.out
    assert whole.startswith(ran.out)
    assert ran.err.endswith("finish error]\nerror: the computation failed\n")
    n_calls = 0
    broken = generate(*flags, "--json")
    assert broken.code == 1
    assert json.loads(broken.out)["finish"] == "error"
    assert json.loads(broken.out)["text"] == ran.out


def test_ctrl_c_keeps_the_text(start: Start, target_path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    flags = ("-t", "1", "-p", "the", "-c", "100000", "--trace", trace, "--log-level", "error")
    process = start("generate", "-m", target_path, *flags)
    assert process.stdout is not None
    first = process.stdout.read(10)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(b"finish cancelled]\n")
    text = (first + rest).decode()
    assert len(text) > 10
    assert read_trace(trace).end is not None


def test_switching_speculation_off_ignores_what_drafters_would_be_told(generate: Run) -> None:
    flags = ("--spec-type", "none", "--spec-ngram-simple-size-n", "3")
    assert generate(*FEW, *flags).out == generate(*FEW).out


def test_a_reader_that_leaves_early_is_no_error(start: Start, target_path: Path) -> None:
    flags = ("-t", "1", "-p", "the", "-c", "100000", "--log-level", "error")
    process = start("generate", "-m", target_path, *flags)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == b""


def test_a_terminal_that_cannot_show_a_character(start: Start, smollm2: Path) -> None:
    prompt = "<|im_start|>user\nSay hello in Japanese<|im_end|>\n<|im_start|>assistant\n"
    process = start("generate", "-m", smollm2, "-p", prompt, "-n", "8", PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert b"?" in out
    assert out.isascii()


def test_how_the_model_lies_in_memory_changes_nothing(generate: Run) -> None:
    usual = generate(*FEW, "--json")
    for flags in (("--no-mmap",), ("--mlock",), ("--no-mmap", "--mlock"), ("--mmap",)):
        assert json.loads(generate(*FEW, "--json", *flags).out)["tokens"] == json.loads(usual.out)["tokens"]
