"""``/props`` and ``/version``: what this server is. No path of this machine is told."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pyspec
from pyspec.config import SamplingConfig
from pyspec.llama.devices import UPSTREAM_TAG
from pyspec.llama.model import Model
from pyspec.server.bodies.sampling import ORDER, RENAMED
from pyspec.server.calling import Call
from pyspec.server.llama_answers import Bias, GenerationSettings
from pyspec.server.service import Service

BUILD = f"pyspec {pyspec.__version__}, llama.cpp {UPSTREAM_TAG}"


def fingerprint(model: Model) -> str:
    """Return OpenAI's ``system_fingerprint``: the same as long as model and version are."""
    return f"fp_{hashlib.sha256(f'{model.identity}, {BUILD}'.encode()).hexdigest()[:12]}"


async def version(call: Call) -> None:
    """Tell which version this is."""
    await call.reply.json({"version": pyspec.__version__, "llama_cpp": UPSTREAM_TAG})


async def props(call: Call) -> None:
    """Describe the server."""
    service = call.service
    vocab, template, settings = service.engine.model.vocab, service.template, service.settings
    bos, eos = ("" if token is None else call.piece(token).decode(errors="replace") for token in (vocab.bos, vocab.eos))
    answer = {
        "default_generation_settings": {
            "n_ctx": service.engine.n_ctx_seq,
            "params": generation_settings(settings.sampling, settings.max_tokens),
        },
        "total_slots": service.engine.n_slots,
        "model_alias": service.model,
        "model_path": service.engine.model.path.name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": "" if template is None else template.source,
        "bos_token": bos,
        "eos_token": eos,
        "build_info": BUILD,
        "drafters": drafters(service),
        "auto": is_auto(service),
    }
    await call.reply.json(answer)


def drafters(service: Service) -> list[str]:
    """Return the names of the drafters."""
    return list(service.engine.status().drafters)


def is_auto(service: Service) -> bool:
    """Return whether drafters and lengths are chosen round by round; some memories leave no choice."""
    return service.engine.speculation.auto and bool(drafters(service))


def generation_settings(
    sampling: SamplingConfig,
    max_tokens: int | None,
    *,
    seed: int | None = None,
    stop: Sequence[str] = (),
    n_probs: int = 0,
    stream: bool = False,
) -> GenerationSettings:
    """Return settings as llama.cpp tells them.

    Args:
        sampling: How tokens are chosen.
        max_tokens: Most tokens; None: no limit.
        seed: The seed that was drawn where ``sampling`` has none.
        stop: Texts to stop before.
        n_probs: Alternatives that are reported.
        stream: Whether the answer comes in pieces.
    """
    limit = -1 if max_tokens is None else max_tokens
    used = sampling.seed if seed is None else seed
    theirs = {ours: name for name, ours in RENAMED.items()}
    told: Any = {theirs.get(field.name, field.name): getattr(sampling, field.name) for field in fields(sampling)}
    told.update(
        seed=-1 if used is None else used,
        dry_sequence_breakers=list(sampling.dry_sequence_breakers),
        logit_bias=[_bias(token, bias) for token, bias in sampling.logit_bias.items()],
        samplers=list(ORDER),
        n_predict=limit,
        max_tokens=limit,
        stop=list(stop),
        n_probs=n_probs,
        stream=stream,
    )
    return told  # type: ignore[no-any-return]


def _bias(token: int, bias: float) -> Bias:
    return {"token": token, "bias": bias if math.isfinite(bias) else None}
