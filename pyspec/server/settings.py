"""How a server behaves, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspec.config import MAX_INT32, SamplingConfig, as_list, require_bool, require_float, require_int, shown
from pyspec.engine.embedding import POOLINGS
from pyspec.errors import ConfigError

_MAX_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        aliases: Names of the model; the first one is given back in answers. Empty: the name of its file.
        api_keys: Keys of which a request must bring one. Empty: anybody may come in.
        allowed_hosts: Values of the ``Host`` header, without port, that are let in; None lets any in.
        cors_origins: Origins whose pages may use the server; "*" is any. Empty: none.
        sampling: How tokens are chosen where a request does not say.
        max_tokens: Most tokens to generate where a request does not say; None: until the model or the context ends.
        chat_template: A Jinja template in place of the model's own; "none" does without one.
        pooling: How embeddings are pooled: "mean", "cls" or "last"; None: as the model was made for.
        timeout: Seconds that a request may take, the time in the queue included.
        body_timeout: Seconds that a request's head may take to arrive, and then its body.
        shutdown_timeout: Seconds that running requests may still take when the server is asked to stop.
        max_body_bytes: Longest body of a request.
        max_prompt_tokens: Longest prompt; None: what the context holds.
        max_requests: Most requests under way at once, those that wait included; more are told to come back.
        max_choices: Most generations of one request.
        slots: Whether ``/slots`` answers.
        metrics: Whether ``/metrics`` answers.

    Raises:
        ConfigError: A value is not of this form.
    """

    aliases: Sequence[str] = ()
    api_keys: Sequence[str] = field(default=(), repr=False)
    allowed_hosts: Sequence[str] | None = None
    cors_origins: Sequence[str] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_tokens: int | None = None
    chat_template: str | None = None
    pooling: str | None = None
    timeout: float = 600.0
    body_timeout: float = 30.0
    shutdown_timeout: float = 30.0
    max_body_bytes: int = 8 << 20
    max_prompt_tokens: int | None = None
    max_requests: int = 256
    max_choices: int = 16
    slots: bool = True
    metrics: bool = True

    def __post_init__(self) -> None:
        for name in ("aliases", "api_keys", "cors_origins"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if self.allowed_hosts is not None:
            hosts = _texts("allowed_hosts", self.allowed_hosts)
            object.__setattr__(self, "allowed_hosts", tuple(host.lower() for host in hosts))
        for name in ("timeout", "body_timeout", "shutdown_timeout"):
            require_float(name, getattr(self, name), 0.0, _MAX_SECONDS)
        require_int("max_body_bytes", self.max_body_bytes, 1, MAX_INT32)
        require_int("max_requests", self.max_requests, 1, MAX_INT32)
        require_int("max_choices", self.max_choices, 1, 1 << 10)
        for name in ("max_tokens", "max_prompt_tokens"):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), 0, MAX_INT32)
        if self.pooling not in (None, *POOLINGS):
            msg = f"pooling must be one of {', '.join(POOLINGS)}, not {shown(self.pooling)}."
            raise ConfigError(msg)
        for name in ("slots", "metrics"):
            require_bool(name, getattr(self, name))


def _texts(name: str, values: object) -> tuple[str, ...]:
    texts = as_list(values)
    if texts is None or not all(isinstance(text, str) and text.isprintable() and text.strip() for text in texts):
        msg = f"{name} must be a list of texts that are not empty."  # without the values: some are secret
        raise ConfigError(msg)
    return tuple(texts)
