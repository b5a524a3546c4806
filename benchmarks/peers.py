"""pyspec against other Python packages around llama.cpp: the same prompts, model file, threads, lengths; temperature 0.

    python benchmarks/peers.py MODEL [--md DRAFT] [-t N] [--slots 1 4 8] [--quick] [--save]

Needs ``pip install xllamacpp``, which has llama.cpp's own server; ``llama-cpp-python`` is compared where it is
installed. MODEL and DRAFT are files or names of ``pyspec models list``; ``benchmarks/copies.py`` makes an F16 and a
Q4_0 copy.

Each package has a process of its own, and one of them computes at a time. For each case both answer the same prompts
in turns, some pairs, after a run that warms up; printed are medians of tokens per second, median and quartiles of the
ratios, the acceptance of both, and how many texts are equal. A pair has prompts of its own (a number stands in front),
so that nothing of an earlier answer can help. With one slot reading the prompt does not count, with several it does.
At the end ``auto`` meets the package's fastest setting. ``--save`` writes benchmarks/results/peers-MODEL.json and .md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyspec
from pyspec.bench import load_workload, spread_of, workload_names
from pyspec.llama.devices import devices, library_info

HERE = Path(__file__).parent
WARM_UP_TOKENS = 8
MARGIN = 72  # tokens of context beside prompt and answer
HEADER = (
    "engine",
    "slots",
    "pyspec",
    "peer",
    "pyspec t/s",
    "peer t/s",
    "ratio",
    "quartiles",
    "whole",
    "accepted",
    "texts",
)


@dataclass(frozen=True)
class Case:
    """One setting of each.

    Attributes:
        name: What the table calls it.
        pyspec: As for ``pyspec bench --spec-type``.
        peer: "type" is llama.cpp's; "n_max" is for its draft model.
        needs_draft: Whether a draft model is used.
        fresh: Whether the peer drafts what former requests said, so that both need a new engine for each run.
        slow: Left out with several slots when there is no time.
    """

    name: str
    pyspec: str
    peer: dict[str, Any] = field(default_factory=dict)
    needs_draft: bool = False
    fresh: bool = False
    slow: bool = False


PLAIN = Case("plain", "none")
CASES = (
    PLAIN,
    Case("draft-simple 3", "draft-simple:n_max=3", {"type": "DRAFT_SIMPLE", "n_max": 3}, needs_draft=True),
    Case("draft-simple 7", "draft-simple:n_max=7", {"type": "DRAFT_SIMPLE", "n_max": 7}, needs_draft=True, slow=True),
    Case("ngram-simple", "ngram-simple", {"type": "NGRAM_SIMPLE"}, slow=True),
    Case("ngram-mod", "ngram-mod", {"type": "NGRAM_MOD"}, fresh=True, slow=True),
)
LOOKUP = Case("prompt lookup", "suffix", {"type": "PROMPT_LOOKUP"})


class Worker:
    """An engine in a process of its own; it computes only while it is waited for."""

    def __init__(self, name: str, n_threads: int) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads)}
        command = [sys.executable, str(HERE / "peer_engines.py"), name]
        self._process = subprocess.Popen(  # noqa: S603 - a script of ours
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        about = self.ask("version", None)
        self.version: str = about["version"]
        self.system = " ".join(re.findall(r"(\w+) = 1", about["system"]))

    def ask(self, order: str, given: Any) -> dict[str, Any]:
        """Give an order and wait for the answer.

        Raises:
            RuntimeError: It failed.
        """
        assert self._process.stdin is not None  # noqa: S101 - they are pipes
        assert self._process.stdout is not None  # noqa: S101
        print(json.dumps({order: given}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"exit code {self._process.wait()}"}
        if "error" in answer:
            msg = f"{self.name} failed at {order}: {answer['error']}"
            raise RuntimeError(msg)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


@dataclass
class Match:
    """A case played by pyspec and a peer.

    Attributes:
        engine: The peer.
        case: The case.
        n_slots: Prompts at once.
        pairs: Per pair the runs of pyspec and those of the peer.
    """

    engine: str
    case: Case
    n_slots: int
    pairs: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = field(default_factory=list)

    def speeds(self, side: int, prefix: str = "") -> list[float]:
        """Return tokens per second of each pair; with the prefix "all_" the reading of prompts counts too."""
        return [
            sum(run[f"{prefix}tokens"] for run in pair[side]) / sum(run[f"{prefix}seconds"] for run in pair[side])
            for pair in self.pairs
        ]

    def ratios(self, prefix: str = "") -> list[float]:
        """Return pyspec's speed by the peer's, of each pair."""
        return [ours / theirs for ours, theirs in zip(self.speeds(0, prefix), self.speeds(1, prefix), strict=True)]

    def texts(self) -> tuple[int, int]:
        """Return how many answers are equal, of all."""
        pairs = [
            (text, other)
            for ours, theirs in self.pairs
            for run, peer_run in zip(ours, theirs, strict=True)
            for text, other in zip(run["texts"], peer_run["texts"], strict=True)
        ]
        return sum(text == other for text, other in pairs), len(pairs)

    def acceptance(self, side: int) -> float | None:
        """Return the accepted share of the drafted tokens; None without drafts, or where nothing is told of them."""
        runs = [run for pair in self.pairs for run in pair[side]]
        drafted = sum(run["drafted"] for run in runs)
        return sum(run["accepted"] for run in runs) / drafted if drafted else None

    def row(self) -> tuple[str, ...]:
        """Return the cells for ``HEADER``."""
        spread, whole = spread_of(self.ratios()), spread_of(self.ratios("all_"))
        if spread is None or whole is None:
            return (self.engine, str(self.n_slots), self.case.pyspec, self.case.name, *["-"] * 7)
        accepted = ["-" if rate is None else f"{rate:.0%}" for rate in map(self.acceptance, (0, 1))]
        equal, total = self.texts()
        return (
            self.engine,
            str(self.n_slots),
            self.case.pyspec,
            self.case.name,
            f"{statistics.median(self.speeds(0)):.1f}",
            f"{statistics.median(self.speeds(1)):.1f}",
            f"{spread.median:.2f}",
            f"{spread.low:.2f} to {spread.high:.2f}",
            f"{whole.median:.2f}",
            "/".join(accepted),
            f"{equal} of {total}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the texts for JSON."""
        equal, total = self.texts()
        return {
            "engine": self.engine,
            "case": asdict(self.case),
            "n_slots": self.n_slots,
            "ratios": self.ratios(),
            "ratios_with_prompts": self.ratios("all_"),
            "speeds": self.speeds(0),
            "peer_speeds": self.speeds(1),
            "acceptance": self.acceptance(0),
            "peer_acceptance": self.acceptance(1),
            "texts_equal": [equal, total],
        }


class Arena:
    """Plays matches."""

    def __init__(self, given: argparse.Namespace, prompts: Sequence[str], longest: int) -> None:
        self._given = given
        self._prompts = prompts
        self._longest = longest
        self.ours = Worker("pyspec", given.threads)

    def play(self, peer: Worker, case: Case, n_slots: int) -> Match:
        """Play a case."""
        match = Match(peer.name, case, n_slots)
        self._open(peer, case, n_slots)
        for number in range(-1, self._given.pairs):
            pair: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
            for prompts in self._batches(number, n_slots):
                if case.fresh and number >= 0:
                    self._open(peer, case, n_slots)
                order = {"prompts": prompts, "n_tokens": self._given.tokens if number >= 0 else WARM_UP_TOKENS}
                for worker, runs in zip((self.ours, peer), pair, strict=True):
                    runs.append(worker.ask("run", order))
            if number >= 0:
                match.pairs.append(pair)
        return match

    def _open(self, peer: Worker, case: Case, n_slots: int) -> None:
        sizes = {"n_slots": n_slots, "n_threads": self._given.threads}
        n_ctx = n_slots * (self._longest + self._given.tokens + MARGIN)
        models = {"model": str(self._given.model), "draft": str(self._given.md) if self._given.md else None}
        for worker in (self.ours, peer):
            worker.ask("open", {**models, **sizes, "n_ctx": n_ctx, "pyspec": case.pyspec, "peer": case.peer})

    def _batches(self, number: int, n_slots: int) -> list[list[str]]:
        """Return the prompts of a pair; the warm-up, number -1, has one batch."""
        if n_slots > 1:
            return [[f"{number}.{i} {self._prompts[i % len(self._prompts)]}" for i in range(n_slots)]]
        batches = [[f"{number}. {prompt}"] for prompt in self._prompts]
        return batches[:1] if number < 0 else batches


def peers_here(n_threads: int) -> list[Worker]:
    """Return the packages that are installed; says which are not."""
    modules = {"xllamacpp": "xllamacpp", "llama-cpp-python": "llama_cpp"}
    found = [name for name, module in modules.items() if importlib.util.find_spec(module) is not None]
    for name in modules:
        if name not in found:
            print(f"{name} is not installed, and is left out.", file=sys.stderr)
    return [Worker(name, n_threads) for name in found]


def tournament(arena: Arena, peers: Sequence[Worker], given: argparse.Namespace, matches: list[Match]) -> None:
    """Play all cases; prints a line for each, and adds it to the matches."""

    def play(peer: Worker, case: Case, n_slots: int) -> None:
        matches.append(arena.play(peer, case, n_slots))
        print("  ".join(matches[-1].row()), flush=True)

    cases = [case for case in CASES if given.md or not case.needs_draft]
    for peer in peers:
        if peer.name != "xllamacpp":
            play(peer, PLAIN, 1)
            play(peer, LOOKUP, 1)
            continue
        for n_slots in given.slots:
            for case in cases:
                if not (given.quick and n_slots > 1 and case.slow):
                    play(peer, case, n_slots)
            mine = [match for match in matches if (match.engine, match.n_slots) == (peer.name, n_slots)]
            best = max(mine, key=lambda match: statistics.median(match.speeds(1))).case
            play(peer, Case(f"best: {best.name}", "auto", best.peer, best.needs_draft, best.fresh), n_slots)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(HEADER)}", *lines[1:]])


def save(facts: dict[str, Any], matches: Sequence[Match], stem: str) -> None:
    """Write benchmarks/results."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    whole = {"about": facts, "matches": [match.to_dict() for match in matches]}
    (folder / f"{stem}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    lines = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    page = f"# pyspec against its peers\n\n{table([match.row() for match in matches])}\n\n{NOTES}\n\n{lines}\n"
    (folder / f"{stem}.md").write_text(page, encoding="utf-8")


NOTES = """Tokens per second; the ratio is pyspec's speed by the peer's, median and quartiles over the pairs. With one
slot the reading of the prompt does not count, with several it does; "whole" always counts it. "accepted": pyspec's and
the peer's share of the drafted tokens. "texts": equal answers, of all. Rows that are computed in other batches or by
another version of llama.cpp are rounded otherwise, so texts of quantized models may differ
([why](../../docs/explanation/losslessness.md))."""


def about(given: argparse.Namespace, n_prompts: int, workers: Sequence[Worker]) -> dict[str, Any]:
    """Return what the figures depend on."""
    machine = [*(device.description for device in devices()), f"{os.cpu_count()} CPUs", platform.system()]
    versions = [*(worker.version for worker in workers), f"llama.cpp {library_info()['llama_cpp']} in pyspec"]
    return {
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "command": " ".join(["python", "benchmarks/peers.py", *sys.argv[1:]]).replace(f"{Path.home()}", "~"),
        "model": given.model.name,
        "draft model": given.md.name if given.md else "none",
        "machine": ", ".join(machine),
        "threads": given.threads,
        "tokens": given.tokens,
        "pairs": given.pairs,
        "prompts": f"{n_prompts} of {', '.join(given.workload)}",
        "versions": ", ".join(versions),
        **{f"{worker.name} is compiled with": worker.system for worker in workers},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pyspec.hub.resolve)
    parser.add_argument("--md", type=pyspec.hub.resolve, help="a draft model")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--slots", type=int, nargs="+", help="prompts at once; 1 4 8, quick: 1 4")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each workload")
    parser.add_argument("--workload", nargs="+", metavar="NAME|FILE", help="all that have names")
    parser.add_argument("--quick", action="store_true", help="2 pairs of 32 tokens, 2 workloads, fewer cases: minutes")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    given = parser.parse_args()
    if given.quick:
        given.tokens, given.pairs, given.prompts = 32, 2, 1
    given.slots = given.slots or ([1, 4] if given.quick else [1, 4, 8])
    given.workload = given.workload or (["chat", "code-editing"] if given.quick else workload_names())
    prompts = [prompt for name in given.workload for prompt in load_workload(name).prompts[: given.prompts]]
    with pyspec.Model(given.model, pyspec.ModelConfig(vocab_only=True)) as model:
        longest = max(len(model.vocab.tokenize(f"00.00 {prompt}", add_special=True)) for prompt in prompts)
    peers = peers_here(given.threads)
    if not peers:
        sys.exit("There is nothing to compare with; pip install xllamacpp.")
    arena = Arena(given, prompts, longest)
    workers = [arena.ours, *peers]
    facts = about(given, len(prompts), workers)
    print("  ".join(HEADER))
    matches: list[Match] = []
    try:
        tournament(arena, peers, given, matches)
    finally:  # what was measured before Ctrl-C or a failure is worth keeping
        for worker in workers:
            worker.close()
        if given.save and matches:
            save(facts, matches, f"peers-{given.model.stem}")


if __name__ == "__main__":
    main()
