"""Calls the public API with random arguments, many of them wrong: ``fuzzer.py ZOO SEED N_CALLS``.

Runs in a process of its own. It prints one JSON object: how many calls ended well, how many in exceptions of pyspec,
and every other exception with the call that raised it, assertions of llama.cpp included. The last line of standard
error names the call under way, so a crash tells its culprit.
"""

from __future__ import annotations

import inspect
import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pyspec
from pyspec.llama.quantize import quantize

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_MEMORY_LIMIT = 12 << 30  # sizes that the machine has and a test must not take
_SMALL = pyspec.ContextConfig(n_ctx=64, n_batch=32, n_ubatch=32, n_seq_max=2, n_threads=1)

GARBAGE: list[Any] = [
    *(None, True, False, Ellipsis, NotImplemented, int, object(), lambda *_a, **_k: 1, iter([1, 2])),
    *(0, 1, -1, 2, 3, 7, 63, 64, 255, 256, 383, 384, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, -(2**64), 10**30),
    *(0.0, -0.0, 0.5, 1.0, -1.5, 1e-300, 1e308, math.nan, math.inf, -math.inf, 2 + 3j),
    *("", "a", "none", "ngram-simple", "draft-simple", "draft-simple,ngram-simple", "q8_0", "Q8_0", "match", "auto"),
    *(
        "\0",
        "a\0b",
        "\ud800",
        "x" * 3000,
        "日本語 👩",
        "hf:a/b",
        "hf:a/b/c.gguf",
        "..",
        "/",
        "~",
        "%s%n",
        "nowhere.gguf",
    ),
    *(b"", b"\xff", b"abc", bytearray(b"abc"), memoryview(b"abc")),
    *(
        [],
        [1, 60, 75],
        [0] * 40,
        [-1],
        ["a"],
        [None],
        [[1]],
        [1.5],
        (1,),
        (),
        {},
        {"a": 1},
        {5: 1.0},
        {5: math.nan},
        {1, 2},
    ),
    *({"ngram-simple": {"size_n": 2}}, {"draft-simple": {"n_max": 0}}, {"ngram-simple": 3}, {-1: 1.0}, {10**9: 1.0}),
    *(range(5), slice(0, 2), slice(None, None, 2), slice("a"), Path(), Path("nowhere")),
    *(
        np.int64(5),
        np.int32(-1),
        np.float32(1.5),
        np.bool_(1),
        np.arange(3),
        np.zeros(0),
        np.zeros((2, 2)),
        np.array("x"),
    ),
]


class Pool:
    """Objects to call methods on; closed ones are made again."""

    def __init__(self, zoo: Path, rng: random.Random) -> None:
        self.zoo = zoo
        self.rng = rng
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "text.gguf").write_text("not a model", encoding="utf-8")
        self.refresh()

    def refresh(self) -> None:
        """Make everything anew."""
        self.model = pyspec.Model(self.zoo / "target-llama.gguf")
        self.draft_model = pyspec.Model(self.zoo / "draft-llama.gguf")
        self.mamba = pyspec.Model(self.zoo / "target-mamba.gguf")
        others = ["target-swa", "target-lfm2", "target-mtp", "target-mtp-chain", "draft-eagle3", "draft-dflash"]
        self.other = pyspec.Model(self.zoo / f"{self.rng.choice(others)}.gguf")
        self.context = pyspec.Context(self.model, _SMALL)
        self.recurrent = pyspec.Context(self.mamba, _SMALL)
        self.speculation = pyspec.Speculation(
            "ngram-simple,draft-simple", self.draft_model, {"ngram-simple": {"size_n": 2, "size_m": 4}}
        )
        self.engine = pyspec.Engine(self.model, speculation=self.speculation, context=_SMALL)
        self.sampler = pyspec.SamplerChain(pyspec.SamplingConfig(temperature=1.0, repeat_penalty=1.1, seed=1), 384)
        self.batch = pyspec.Batch()
        self.generation = self.engine.stream([1, 60, 75], max_tokens=12)
        self.result = pyspec.Result()
        self.fill()

    def fill(self) -> None:
        """Put something into the memories, and take rows and a state from it."""
        for context in (self.context, self.recurrent):
            context.memory.clear()
            batch = pyspec.Batch()
            batch.extend([1, 60, 75, 80], 0, output=True)
            rows = context.decode(batch)
            if context is self.context:
                self.rows = rows
        self.state = pyspec.State.save(self.context)

    def renew(self, *, anyway: bool) -> None:
        """Make everything anew where something was closed, else fill the memories again."""
        closed = any(model.closed for model in (self.model, self.draft_model, self.mamba, self.other))
        if closed or anyway:
            self.refresh()
        try:
            self.fill()
        except pyspec.PyspecError:
            self.refresh()

    @property
    def instances(self) -> list[Any]:
        return [
            *(self.model, self.model.vocab, self.context, self.context.memory, self.recurrent, self.recurrent.memory),
            *(self.rows, self.state, self.sampler, self.batch, self.engine, self.generation, self.speculation),
            self.result,
        ]

    def plausible(self, name: str) -> Any:
        """Return a value that might be right for a parameter of this name."""
        rng = self.rng
        token = rng.randrange(384)
        if name in ("token", "pending", "n_top", "k"):
            return token
        if name in ("tokens", "prompt"):
            return rng.choice([[1, 60, token], "hello <|im_end|> é", [token] * rng.randrange(70)])
        if name in ("model", "target"):
            return rng.choice([self.model, self.draft_model, self.mamba, self.other])
        if name == "path" or name.startswith(("source", "name_or_path")):
            names = ["target-llama.gguf", "draft-llama.gguf", "nowhere.gguf", "."]
            return rng.choice([self.zoo / rng.choice(names), self.folder / "text.gguf"])
        values: dict[str, Callable[[], Any]] = {
            "destination": lambda: self.folder / "copy.gguf",
            "type_name": lambda: rng.choice(["Q8_0", "F16", "Q2_K", "nothing"]),
            "prune_layers": lambda: [rng.randrange(5)],
            "context": lambda: rng.choice([self.context, self.context_config(), self.recurrent]),
            "config": lambda: rng.choice([self.context_config(), self.sampling_config(), pyspec.ModelConfig()]),
            "sampling": self.sampling_config,
            "speculation": lambda: rng.choice([None, self.speculation]),
            "draft_model": lambda: rng.choice([self.draft_model, self.mamba]),
            "batch": lambda: self.batch,
            "rows": lambda: self.rows,
            "n_vocab": lambda: 384,
            "vocab": lambda: rng.choice([None, self.model.vocab, self.other.vocab]),
            "mask": lambda: rng.choice([None, np.full(12, rng.choice([0, 5, 2**32 - 1]), np.uint32), np.zeros(3)]),
            "max_tokens": lambda: rng.randrange(20),
            "n_threads": lambda: 1,
            "n_ctx": lambda: 64,
            "types": lambda: rng.choice(["none", "ngram-simple", ["draft-simple"], "draft-simple,ngram-simple"]),
            "options": lambda: {"ngram-simple": {"size_n": rng.randrange(-1, 4)}},
            "requests": list,
        }
        return values.get(name, lambda: rng.randrange(-1, 9))()

    def context_config(self) -> pyspec.ContextConfig:
        """Return settings that are allowed, odd combinations included."""
        rng = self.rng
        choices: dict[str, list[Any]] = {
            "n_ctx": [1, 2, 31, 64, 256, 1000],
            "n_batch": [1, 2, 7, 64],
            "n_seq_max": [1, 2, 3, 16, 256],
            "n_outputs_max": [0, 1, 2, 64],
            "n_threads": [1, 1, 2],
            "flash_attn": ["auto", "on", "off"],
            "type_k": ["f16", "f32", "bf16", "q8_0", "q4_0", "iq4_nl", "q5_1"],
            "type_v": ["f16", "f32", "bf16", "q8_0", "q4_1"],
            "kv_unified": [True, False],
            "swa_full": [True, False],
            "offload_kqv": [True, False],
            "rope_freq_base": [0.0, 1e-30, 10000.0, 1e30],
            "rope_freq_scale": [0.0, 1e-30, 0.5, 1e6],
        }
        settings = {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.3}
        settings.setdefault("n_ctx", 64)
        settings.setdefault("n_batch", 32)
        settings.setdefault("n_threads", 1)
        try:
            return pyspec.ContextConfig(**settings, n_ubatch=rng.randint(1, settings["n_batch"]))
        except pyspec.errors.ConfigError:
            return _SMALL

    def sampling_config(self) -> pyspec.SamplingConfig:
        """Return settings that are allowed, extreme ones included."""
        rng = self.rng
        choices: dict[str, list[Any]] = {
            "temperature": [0.0, 1e-6, 0.7, 1e6],
            "top_k": [0, 1, 2, 1000, 2**31 - 1],
            "top_p": [0.0, 1e-9, 0.5, 1.0],
            "min_p": [0.0, 0.5, 1.0],
            "typical_p": [0.0, 0.5, 1.0],
            "repeat_penalty": [1e-6, 1.0, 1.3, 1e6],
            "frequency_penalty": [-1e6, 0.0, 1e6],
            "presence_penalty": [-1e6, 0.0, 1.0],
            "repeat_last_n": [0, 1, 64, 1 << 20],
            "dynatemp_range": [0.0, 0.5, 1e6],
            "dynatemp_exponent": [0.0, 1.0, 100.0],
            "top_n_sigma": [-1.0, 0.0, 1e-3, 1.0, 1e6],
            "xtc_probability": [0.0, 0.5, 1.0],
            "xtc_threshold": [0.0, 0.1, 0.5, 1.0],
            "dry_multiplier": [0.0, 0.8, 1e6],
            "dry_base": [1.0, 1.75, 1e6],
            "dry_allowed_length": [0, 2, 2**31 - 1],
            "dry_penalty_last_n": [0, 1, 64, 1 << 20],
            "dry_sequence_breakers": [(), ("\n", ":"), ("the", "é", "x" * 40)],
            "mirostat": [0, 0, 1, 2],
            "mirostat_ent": [0.0, 5.0, 100.0],
            "mirostat_lr": [0.0, 0.1, 100.0],
            "logit_bias": [{}, {0: -math.inf}, {5: 1e9, 383: -1e9}, dict.fromkeys(range(384), -math.inf)],
            "seed": [None, 0, 2**32 - 1],
        }
        return pyspec.SamplingConfig(
            **{name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.4}
        )

    def argument(self, name: str) -> Any:
        """Return a plausible or a wrong value."""
        if name in ("observer", "resources"):  # objects with members; anything else is the caller's AttributeError
            return None
        if self.rng.random() < 0.6:
            return self.plausible(name)
        value = self.rng.choice(self.instances) if self.rng.random() < 0.1 else self.rng.choice(GARBAGE)
        if name.startswith("n_threads") and isinstance(value, int) and value > 2:
            return 1  # hundreds of threads are allowed, and slow
        return value


def functions() -> list[tuple[str, Callable[..., Any]]]:
    """Return what can be called by its name alone: classes and functions."""
    found: list[tuple[str, Callable[..., Any]]] = [("quantize", quantize)]
    for module in (pyspec, pyspec.hub, pyspec.drafters):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and not (isinstance(thing, type) and issubclass(thing, BaseException)):
                found.append((name, thing))
    # Not for calling, needing the network, or for drafters, whose arguments come from the engine.
    skipped = {
        "Chain",
        "Draft",
        "DraftRequest",
        "Drafter",
        "EvaluatedBatch",
        "ModelFreeDrafter",
        "Needs",
        "sorted_by_priority",
        "cache_dir",
        "fetch",
        "Finish",
        "RollbackKind",
        "Progress",
        "CatalogueModel",
        "WheelSource",
        "Memory",
        "Vocab",
        "Rows",
    }
    return [(name, thing) for name, thing in found if name not in skipped]


def methods(instance: Any) -> list[str]:
    left_out = ("handle", "register", "call")  # what a function raises that was handed to call() is its own affair
    return [name for name in dir(type(instance)) if not name.startswith("_") and name not in left_out]


def parameters(thing: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(thing).parameters.values())
    except (TypeError, ValueError):
        return []


def random_call(pool: Pool, known: list[tuple[str, Callable[..., Any]]]) -> tuple[str, Callable[[], Any]]:
    """Choose something to call, and arguments for it."""
    rng = pool.rng
    if rng.random() < 0.4:
        name, thing = rng.choice(known)
    else:
        instance = rng.choice(pool.instances)
        attribute = rng.choice(
            [*methods(instance), "__getitem__"] if isinstance(instance, pyspec.Rows) else methods(instance)
        )
        name = f"{type(instance).__name__}.{attribute}"
        if not inspect.isroutine(inspect.getattr_static(type(instance), attribute)):
            return name, lambda: getattr(instance, attribute)
        if attribute == "close" and rng.random() < 0.8:
            return name, lambda: None
        thing = getattr(instance, attribute)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters(thing):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty and rng.random() < 0.5:
            continue
        value = pool.argument(parameter.name)
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            named[parameter.name] = value
        else:
            positional.append(value)
    described = (
        f"{name}({', '.join([*map(short, positional), *(f'{key}={short(value)}' for key, value in named.items())])})"
    )
    return described, lambda: thing(*positional, **named)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else text[:397] + "..."


def use(pool: Pool, returned: Any) -> None:
    """Go a little way with what a call returned."""
    if isinstance(returned, pyspec.Rows):
        pool.rows = returned
        returned.argmax(0)
    elif isinstance(returned, pyspec.Context):
        batch = pyspec.Batch()
        batch.add(5, 0, output=True)
        returned.decode(batch).top_k(0, 5)
        returned.memory.clear()
        _ = returned.memory.rollback
    elif isinstance(returned, pyspec.Engine):
        returned.generate([1, 60] * 15, max_tokens=30, sampling=pool.sampling_config())
        returned.close()
    elif isinstance(returned, pyspec.engine.Generation):
        pool.generation = returned
        for _ in range(3):
            next(returned, None)
    elif isinstance(returned, pyspec.Model):
        returned.vocab.tokenize("hello")
    elif isinstance(returned, pyspec.SamplerChain):
        saved = returned.save()
        returned.sample(pool.rows, 0)
        returned.distribution(pool.rows, 0)
        returned.restore(saved)


def outcome(pool: Pool, call: Callable[[], Any]) -> tuple[str, str]:
    """Call, and return how it ended and, where it should not have ended so, the reason."""
    try:
        use(pool, call())
    except pyspec.errors.NativeError as error:  # an assertion of llama.cpp: Python should have refused before
        return "NativeError", f"NativeError: {error}"
    except pyspec.PyspecError as error:
        return type(error).__name__, ""
    except StopIteration:
        return "ok", ""
    except Exception as error:  # noqa: BLE001 - listed for the test
        return "other", f"{type(error).__name__}: {error}"
    return "ok", ""


def main() -> None:
    zoo, seed, n_calls = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    pool = Pool(zoo, random.Random(seed))  # noqa: S311 - a seeded fuzzer
    known = functions()
    ended: Counter[str] = Counter()
    others: dict[str, str] = {}
    for i in range(n_calls):
        if i % 25 == 0:
            pool.renew(anyway=i % 200 == 0)
        name, call = random_call(pool, known)
        sys.stderr.write(f"{i} {name}\n".encode("ascii", "backslashreplace").decode())
        sys.stderr.flush()
        kind, reason = outcome(pool, call)
        ended[kind] += 1
        if reason:
            others[f"{i} {name}"] = reason
    sys.stdout.write(json.dumps({"ended": ended, "others": others}) + "\n")


if __name__ == "__main__":
    main()
