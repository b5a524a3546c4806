"""Try a grammar in a process of its own, so that none can hang, crash or fill this one.

llguidance bounds most of its work, but not all: long chains of rules overflow the stack, and an intersection of a
few dozen patterns takes minutes and gigabytes. So the first use of a grammar is in a child process with little
stack, bounded memory and a time limit. It compiles the grammar and takes some steps with it. Only what survives is
compiled here, where there is more stack and as much time. That costs some 40 milliseconds for each new grammar.

The child's vocabulary is all single bytes, and the control tokens that a grammar can name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pyspec.llama.grammar import trial_process
from pyspec.llama.grammar.library import limits, llguidance
from pyspec.llama.grammar.vocabulary import GrammarVocab

SECONDS = 10
MEGABYTES = 2048


def trial(lark: str, vocab: GrammarVocab) -> str | None:
    """Try a grammar.

    Args:
        lark: The grammar in Lark's syntax.
        vocab: The vocabulary that it is for.

    Returns:
        What is wrong with it, None where nothing is.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return None  # inside another program there is no interpreter to start
    task = {
        "library": llguidance()._lib.__file__,  # noqa: SLF001 - alone it loads in a fifth of the time
        "lark": lark,
        "n_vocab": vocab.n_vocab,
        "specials": {token: name.decode("utf-8", "replace") for token, name in vocab.specials.items()},
        "limits": limits(),
        "megabytes": MEGABYTES,
    }
    command = [sys.executable, "-I", "-S", str(Path(trial_process.__file__))]
    try:
        done = subprocess.run(  # noqa: S603 - our own file
            command, input=json.dumps(task).encode(), capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it was not compiled after {SECONDS} seconds"
    except OSError as error:
        return f"it cannot be tried in a process of its own ({error})"
    try:
        answer: str | None = json.loads(done.stdout)["error"]
    except (ValueError, KeyError, TypeError):
        return f"it is nested too deeply, or needs more than {MEGABYTES} MB"
    return answer
