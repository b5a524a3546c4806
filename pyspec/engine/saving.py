"""A slot in a file: what it holds, and where its request stands, so that another engine goes on with it.

::

    magic      12 bytes
    version    uint32, 1
    checksum   uint32, CRC-32 of all that follows
    n_bytes    uint64, length of all that follows
    n_header   uint32
    header     JSON: tokens, request, and names and lengths of the parts
    parts      the target's memory, then each drafter's state
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspec.config import MAX_INT32, SamplingConfig, require_bool, require_float, require_int
from pyspec.engine.request import Request
from pyspec.engine.slots import Slot
from pyspec.engine.text import n_complete
from pyspec.errors import StateError, UnsupportedError
from pyspec.files import read_whole, replace_file
from pyspec.llama.context import Context
from pyspec.llama.grammar.description import Grammar, GrammarKind
from pyspec.llama.state import State
from pyspec.speculation.draft import Drafting

VERSION = 1
_MAGIC = b"pyspec slot\n"
_HEADER = struct.Struct("<12sIIQ")
_LENGTH = struct.Struct("<I")
_TARGET = "target"
_MOST = 1e9


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """What is kept of a slot.

    Attributes:
        tokens: The committed tokens and, last, the pending one.
        fingerprint: Of the model and its memory; only the same may take it.
        state: The target's memory; None where it cannot be saved, and is read again.
        drafters: States of the drafters that have one.
        request: Where its request stands, for JSON; None for an idle slot.
    """

    tokens: list[int]
    fingerprint: str
    state: State | None
    drafters: Mapping[str, bytes]
    request: dict[str, Any] | None

    @property
    def n_emitted(self) -> int:
        """Tokens that its request had emitted."""
        return 0 if self.request is None else len(self.tokens) - int(self.request["n_prompt"])

    def write(self, path: Path) -> None:
        """Write it to a file, which takes the place of a former one at once.

        Raises:
            StateError: It cannot be written; a former file is as it was.
        """
        own = {} if self.state is None else {_TARGET: self.state.data}
        parts = {**own, **self.drafters}
        header = {
            "tokens": self.tokens,
            "fingerprint": self.fingerprint,
            "length": self.state.length if self.state is not None else 0,
            "request": self.request,
            "parts": [[name, len(data)] for name, data in parts.items()],
        }
        text = json.dumps(header).encode()
        body = [_LENGTH.pack(len(text)), text, *parts.values()]
        checksum = 0
        for part in body:
            checksum = zlib.crc32(part, checksum)
        try:
            replace_file(path, [_HEADER.pack(_MAGIC, VERSION, checksum, sum(map(len, body))), *body])
        except OSError as error:
            msg = f"The slot file {path} cannot be written: {error.strerror}."
            raise StateError(msg) from error


def read(path: Path) -> SavedSlot:
    """Read a file that ``SavedSlot.write`` wrote.

    Raises:
        StateError: It cannot be read, is of another version, or damaged.
    """
    try:
        with path.open("rb") as file:
            content = memoryview(read_whole(file))
    except OSError as error:
        msg = f"The slot file {path} cannot be read: {error.strerror}."
        raise StateError(msg) from error
    if len(content) < _HEADER.size or content[: len(_MAGIC)] != _MAGIC:
        msg = f"{path} is no slot file."
        raise StateError(msg)
    _, version, checksum, n_bytes = _HEADER.unpack_from(content)
    body = content[_HEADER.size :]
    if version != VERSION:
        msg = f"The slot file {path} has version {version}; readable is {VERSION}."
        raise StateError(msg)
    if len(body) != n_bytes or zlib.crc32(body) != checksum:
        msg = f"The slot file {path} is damaged: {len(body)} of {n_bytes} bytes are there, or some are wrong."
        raise StateError(msg)
    try:
        return _parsed(body)
    except (KeyError, TypeError, ValueError, struct.error) as error:  # a right checksum, and yet not ours
        msg = f"The slot file {path} cannot be understood: {error}."
        raise StateError(msg) from error


def _parsed(body: memoryview) -> SavedSlot:
    (n_header,) = _LENGTH.unpack_from(body)
    first = _LENGTH.size + n_header
    header = json.loads(bytes(body[_LENGTH.size : first]))
    parts: dict[str, bytes] = {}
    for name, length in header["parts"]:
        parts[name] = bytes(body[first : first + length])
        first += length
    if first != len(body):
        msg = "its parts do not fill it"
        raise ValueError(msg)
    _check(header)
    data = parts.pop(_TARGET, None)
    state = None if data is None else State(data, header["length"], header["fingerprint"], zlib.crc32(data))
    return SavedSlot(header["tokens"], header["fingerprint"], state, parts, header["request"])


def _check(header: dict[str, Any]) -> None:
    """Refuse numbers that cannot be, whatever the checksum says.

    Raises:
        ValueError: Something is wrong.
    """
    tokens, request = header["tokens"], header["request"]
    counts = [("length", header["length"], len(tokens))]
    if request is not None:
        settings_of(request)
        n_draws, mu = request["progress"]
        counts += [("n_prompt", request["n_prompt"], len(tokens) + 1), ("n_draws", n_draws, MAX_INT32)]
        counts += [("n_released", request["n_released"], MAX_INT32), ("n_prompt", request["n_prompt"] - 1, len(tokens))]
        require_float("mu", mu, -_MOST, _MOST)
        require_bool("reading", request["reading"])
    for token in tokens:
        require_int("a token", token, 0, MAX_INT32)
    for name, count, end in counts:
        require_int(name, count, 0, end - 1)


def save(slot: Slot, context: Context) -> SavedSlot:
    """Take down what a slot holds; called on the engine's thread, between two rounds.

    Raises:
        UnsupportedError: Its prompt has embeddings, which are not in the file; it has forgotten a part of its context;
            or memory cannot be saved, and nothing can be read again.
        StateError: It holds nothing.
    """
    request = slot.request
    if request is not None and request.sequence.rows:
        msg = "A request with embeddings in its prompt cannot be saved."
        raise UnsupportedError(msg)
    if request is not None and slot.has_shifted:
        msg = "A request that has forgotten a part of its context (n_keep) cannot be saved."
        raise UnsupportedError(msg)
    if request is None and slot.n_held == 0:
        msg = f"Slot {slot.seq_id} is empty; there is nothing to save."
        raise StateError(msg)
    state, drafters = None, {}
    try:
        if context.memory.length(slot.seq_id):
            state = State.save(context, slot.seq_id)
            drafters = slot.chain.save_state(slot.seq_id)
    except UnsupportedError:  # a sliding window has moved on; the tokens are read again
        state, drafters = None, {}
    if request is None and state is None:
        msg = f"Slot {slot.seq_id} has a sliding window that has moved on, and no request that could be read again."
        raise UnsupportedError(msg)
    tokens = slot.tokens if request is None else [*request.sequence.history, request.sequence.pending]
    described = None if request is None else describe(request)
    return SavedSlot(list(tokens), context.fingerprint, state, drafters, described)


def describe(request: Request) -> dict[str, Any]:
    """Return where a request stands, for JSON."""
    sequence, wanted = request.sequence, request.settings
    grammar: Grammar | None = wanted.get("grammar")
    n_draws, mu = _unconstrained(sequence.sampler).progress()
    drafting = dataclasses.asdict(sequence.drafting)
    return {
        "settings": {
            "max_tokens": wanted.get("max_tokens"),
            "min_tokens": wanted.get("min_tokens", 0),
            "stop": wanted.get("stop", []),
            "stop_tokens": wanted.get("stop_tokens", []),
            "rule": None if sequence.rule is None else sequence.rule.name,
            "n_top": sequence.n_top,
            "logprobs": sequence.wants_logprobs,
            "priority": request.priority,
        },
        "sampling": {**dataclasses.asdict(request.sampling), "seed": sequence.seed},
        "logit_bias": [[token, bias] for token, bias in request.sampling.logit_bias.items()],
        "drafting": {**drafting, "types": None if drafting["types"] is None else list(drafting["types"])},
        "grammar": None if grammar is None else [grammar.kind.name, grammar.text],
        "n_prompt": len(request.prompt),
        "n_released": n_complete(sequence.ending.text[: sequence.ending.n_released]),
        "progress": [n_draws, mu],
        "reading": sequence.reading,
    }


def settings_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a request that ``describe`` described."""
    grammar = described["grammar"]
    bias = {int(token): float(value) for token, value in described["logit_bias"]}
    return {
        **described["settings"],
        "sampling": SamplingConfig(**{**described["sampling"], "logit_bias": bias}),
        "drafting": Drafting(**described["drafting"]),
        "grammar": None if grammar is None else Grammar(GrammarKind[grammar[0]], grammar[1]),
    }


def advance(request: Request, tokens: Sequence[int], described: Mapping[str, Any]) -> None:
    """Bring a fresh request to where it was saved; what looks at its tokens hears of them again.

    Args:
        request: Made from the same prompt and settings.
        tokens: The committed tokens and, last, the pending one.
        described: See ``describe``.
    """
    sequence = request.sequence
    sequence.history[:], sequence.pending = tokens[:-1], tokens[-1]
    emitted = tokens[len(request.prompt) :]
    for token in emitted:
        sequence.ending.push(token)
    sequence.ending.n_released = request.n_skipped = described["n_released"]
    request.n_told = len(emitted)
    sequence.reading = described["reading"]


def catch_up(request: Request, saved: SavedSlot) -> None:
    """Let the sampler take in what was emitted, after the prompt."""
    sequence, described = request.sequence, saved.request or {}
    for token in [*sequence.history, sequence.pending][len(request.prompt) :]:
        sequence.sampler.accept(token)
    _unconstrained(sequence.sampler).resume(*described["progress"])


def put(saved: SavedSlot, slot: Slot) -> None:
    """Let an idle slot hold what was saved of another one.

    Raises:
        StateError: It does not fit, or nothing is in it.
    """
    if saved.state is None:
        msg = "The slot's memory could not be saved, so that there is nothing to put back."
        raise StateError(msg)
    slot.take(saved.tokens, saved.state, saved.drafters)


def _unconstrained(sampler: Any) -> Any:
    return getattr(sampler, "unconstrained", sampler)
