"""The child process of ``trial``: reads a task from stdin, writes an answer to stdout. Imports nothing of pyspec."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from typing import Any

STACK = 2**20
"""Bytes. Every thread that compiles a grammar later has more."""
STEPS = 16


class _Bytes:
    """A vocabulary of control tokens, single bytes, and the end."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, n_vocab: int, specials: dict[str, str]) -> None:
        self.tokens = [b""] * n_vocab + [bytes([byte]) for byte in range(255)] + [b"\xffend"]
        for token, name in specials.items():
            self.tokens[int(token)] = b"\xff" + name.encode()
        self.eos_token_id = len(self.tokens) - 1

    def __call__(self, text: str) -> list[int]:
        first = len(self.tokens) - 256
        return [first + byte for byte in text.encode()]


def attempt(task: dict[str, Any]) -> str | None:
    """Compile a grammar and take some steps with it; return what went wrong."""
    library = _load(task["library"])
    vocab = _Bytes(task["n_vocab"], task["specials"])
    grammar = json.dumps({"grammars": [{"lark_grammar": task["lark"]}]})
    limits = library.LLParserLimits(**task["limits"])
    matcher = library.LLMatcher(library.LLTokenizer(vocab, slices=[]), grammar, log_level=0, limits=limits)
    _walk(matcher, range(task["n_vocab"], vocab.eos_token_id))
    error = str(matcher.get_error())
    return (
        None if "NoExtension" in error else error or None
    )  # a vocabulary of bytes has no dead ends but those of tokens


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("_lib", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    return library


def _walk(matcher: Any, letters: range) -> None:
    """Take steps through the grammar until there is nothing left, or an error."""
    for step in range(STEPS):
        matcher.compute_ff_bytes()
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in letters if mask >> token & 1]
        if matcher.is_error() or not allowed:
            break
        matcher.try_consume_tokens([allowed[step * 7 % len(allowed)]])


def _limit_memory(megabytes: int) -> None:
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    wanted = megabytes * 2**20
    try:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):  # not on macOS; the time limit is left
        return


def main() -> None:
    """Answer one task."""
    task = json.load(sys.stdin)
    _limit_memory(task["megabytes"])
    threading.stack_size(STACK)
    answer: list[str | None] = []
    thread = threading.Thread(target=lambda: answer.append(attempt(task)))
    thread.start()
    thread.join()
    json.dump({"error": answer[0]}, sys.stdout)


if __name__ == "__main__":
    main()
