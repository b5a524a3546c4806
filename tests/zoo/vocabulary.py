"""The one vocabulary of the zoo: byte-level BPE with 8 special tokens, 256 bytes and 120 merges.

216 of the tokens are *ordinary* and sit on a ring: newline, printable ASCII and the merges.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import gguf

from tests.zoo.arithmetic import permutation

SPECIALS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<mask>", "<extra_0>", "<extra_1>"]
PAD, BOS, EOS, _IM_START, EOT, MASK = range(6)
N_RING = 216
_N_MERGES = 120
_CORPUS = """
the small boat left the harbour in the morning and the sea was calm and the wind was light
we were there when the old man told the story of the stone and the river and the forest
she said that this is the best way to learn how to write a program and to test it with care
when you change a function you should read the other functions and check that the result is the same
there are many things in the world that we do not know and there is not enough time to learn them all
he went to the market to get bread and cheese and some fruit for the children in the house
the model takes the last tokens and returns the next token and then the loop starts again from there
a good test is short and clear and it fails when the code is wrong and it passes when the code is right
in the end the answer was on the first page of the book that he had on the table near the window
the train to the north stops at each station and the people on it talk about the weather and the news
"""


def _byte_symbols() -> dict[int, str]:
    """The usual byte-level BPE alphabet: printable bytes map to themselves, others to U+0100 and on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    symbols = {byte: chr(256 + k) for k, byte in enumerate(others)}
    return {byte: symbols.get(byte, chr(byte)) for byte in range(256)}


SYMBOLS = _byte_symbols()


def _train_merges() -> list[tuple[str, str]]:
    """Plain BPE training on the corpus, ties broken alphabetically."""
    words = Counter(tuple(SYMBOLS[ord(char)] for char in word) for word in re.findall(r" ?[a-z]+", _CORPUS))
    merges: list[tuple[str, str]] = []
    while len(merges) < _N_MERGES:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            merged[_merge(word, best)] += count
        words = merged
    return merges


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    i = 0
    while i < len(word):
        found = word[i : i + 2] == pair
        out.append(pair[0] + pair[1] if found else word[i])
        i += 1 + found
    return tuple(out)


MERGES = _train_merges()
TOKENS = [*SPECIALS, *(SYMBOLS[byte] for byte in range(256)), *(a + b for a, b in MERGES)]
N_VOCAB = len(TOKENS)
_RING_TOKENS = [8 + 10, *(8 + byte for byte in range(32, 127)), *range(8 + 256, N_VOCAB)]
# token id -> position on the ring
RING_POSITION = {_RING_TOKENS[int(k)]: position for position, k in enumerate(permutation("ring order", N_RING))}
assert len(RING_POSITION) == N_RING
assert len(set(TOKENS)) == N_VOCAB


def add_tokenizer(writer: gguf.GGUFWriter, tokens: Sequence[str] | None = None, n_pad: int = 0) -> None:
    """Write the vocabulary, or another list of tokens, with ``n_pad`` unused ones behind it."""
    texts = list(tokens or TOKENS)
    types = [gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * (len(texts) - len(SPECIALS))
    for k in range(n_pad):
        texts.append(f"[PAD{len(TOKENS) + k}]")
        types.append(gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges([f"{a} {b}" for a, b in MERGES])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(EOT)
    writer.add_pad_token_id(PAD)
    writer.add_mask_token_id(MASK)
    writer.add_add_bos_token(True)  # noqa: FBT003 - gguf's signature
    writer.add_add_eos_token(False)  # noqa: FBT003 - gguf's signature
