"""What a round of each model-free drafter costs, with a short and with a long history.

    python benchmarks/lookup_cost.py [--short N] [--long N] [--rounds N]

A round is a look-up and the news of how much of the draft stood. The text is made up: words of very different
frequency, and passages of the last 900 words that come again, so that a short and a long history find the same. The
drafters play it in turns, each with a short and a long history, in one process. Prints medians, because machines are
shared. A ratio that grows with N means that a round searches the history; longer drafts cost more, too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from pyspec.drafters import Drafter, DraftRequest, create

# drafter: options that let it find something in the text
DRAFTERS: dict[str, dict[str, Any]] = {
    "suffix": {},
    "ngram-simple": {"size_n": 4},
    "ngram-map-k": {"size_n": 4, "size_m": 16},
    "ngram-map-k4v": {"size_n": 4, "size_m": 16},
    "ngram-mod": {"n_match": 16, "n_min": 4},
    "ngram-cache": {},
}
N_WORDS = 5_000
PASSAGE = 100  # longest one that comes again
BUDGET = 1 << 10


def make_text(n_tokens: int, seed: int) -> list[int]:
    """Return a text that repeats itself."""
    chance = random.Random(seed)  # noqa: S311 - a text, not a secret
    text = [0]
    while len(text) < n_tokens:
        if len(text) > PASSAGE and chance.random() < 0.03:  # noqa: PLR2004 - so that half of the text is new
            begin = len(text) - chance.randrange(100, min(len(text), 900))
            text += text[begin : begin + chance.randrange(10, PASSAGE)]
        else:
            text.append(int(N_WORDS * chance.random() ** 3))
    return text[:n_tokens]


@dataclass
class Player:
    """A drafter at work on a text.

    Attributes:
        drafter: Who drafts.
        text: What the target says.
        n_history: Tokens before the pending one.
        begin_seconds: For reading the history.
        seconds: Per round.
        n_drafted: Tokens proposed in all rounds.
    """

    drafter: Drafter
    text: list[int]
    n_history: int
    begin_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    n_drafted: int = 0

    def __post_init__(self) -> None:
        self.history = self.text[: self.n_history]
        began = time.perf_counter()
        self.drafter.begin(0, self.history)
        self.begin_seconds = time.perf_counter() - began

    def play(self) -> None:
        """Play one round, which adds one token, so that all players see the same text."""
        n, text = len(self.history), self.text
        request = DraftRequest(0, self.history, text[n], n, BUDGET)
        began = time.perf_counter()
        draft = self.drafter.draft([request])[0].tokens
        drafted = time.perf_counter()
        n_accepted = 0
        for drafted_token, said in zip(draft, text[n + 1 : n + 1 + len(draft)], strict=False):
            if drafted_token != said:
                break
            n_accepted += 1
        told = time.perf_counter()
        if draft:
            self.drafter.accept(0, n_accepted, own=True)
        self.seconds.append(drafted - began + time.perf_counter() - told)
        self.n_drafted += len(draft)
        self.history.append(text[n])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", type=int, default=1_000, help="tokens of history")
    parser.add_argument("--long", type=int, default=100_000, help="tokens of history")
    parser.add_argument("--rounds", type=int, default=1_000)
    arguments = parser.parse_args()
    text = make_text(arguments.long + arguments.rounds + BUDGET, seed=1)
    players: dict[tuple[str, int], Player] = {}
    for name, options in DRAFTERS.items():
        for n_history in (arguments.short, arguments.long):  # both end with the same text
            own_text = text[arguments.long - n_history :]
            players[name, n_history] = Player(create(name, **options), own_text, n_history)
    for _ in range(arguments.rounds):
        for player in players.values():
            player.play()
    sizes = (arguments.short, arguments.long)
    print(f"{'':14} {'microseconds a round':>20} {'':7} {'tokens drafted a round':>23}  to begin,")
    print("history        {:10,} {:9,}   ratio {:12,} {:10,}  us a token".format(*sizes, *sizes))
    for name in DRAFTERS:
        short, long = players[name, arguments.short], players[name, arguments.long]
        low, high = (1e6 * statistics.median(player.seconds) for player in (short, long))
        begin = 1e6 * long.begin_seconds / arguments.long
        few, many = (player.n_drafted / arguments.rounds for player in (short, long))
        print(f"{name:14} {low:10.1f} {high:9.1f}  {high / low:6.2f} {few:12.1f} {many:10.1f} {begin:11.1f}")


if __name__ == "__main__":
    main()
