"""Which drafters propose, in one short text: ``draft-simple:n_max=7``, ``suffix,draft-simple:n_max=3:p_min=0.5``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspec.drafters.registry import names, option_names
from pyspec.errors import ConfigError
from pyspec.llama.model import Model
from pyspec.speculation.config import AUTO, Speculation

_N_MAX = "n_max"
_FORM = "NAME[:OPTION=VALUE]..., several separated by commas, such as draft-simple:n_max=7 or suffix,ngram-mod"


@dataclass(frozen=True, slots=True)
class Setting:
    """Which drafters propose, and how.

    Attributes:
        label: What the reports call it.
        types: Names of drafters, or "auto".
        options: Per drafter its options; those of "auto" are its own.
    """

    label: str
    types: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def wants_model(self) -> bool:
        """Whether a draft model is of use."""
        return any(name == AUTO or name.startswith("draft-") for name in self.types)

    @property
    def flags(self) -> list[str]:
        """The same for ``pyspec generate`` and ``serve``."""
        words = ["--spec-type", ",".join(self.types) or "none"]
        for name, options in self.options.items():
            for option, value in options.items():
                if option == _N_MAX and (name == AUTO or name.startswith("draft-")):
                    words += ["--spec-draft-n-max", str(value)]
                else:
                    words += ["--spec-set", f"{name}.{option}={_text(value)}"]
        return words

    def speculation(self, draft_model: Model | None) -> Speculation:
        """Return the argument of an engine.

        Args:
            draft_model: Used where the setting has a use for it.

        Raises:
            ConfigError: What only the library can find out.
        """
        arguments: dict[str, Any] = dict(self.options.get(AUTO, {}))
        return Speculation(
            self.types or "none",
            draft_model=draft_model if self.wants_model else None,
            options={name: options for name, options in self.options.items() if name != AUTO},
            **arguments,
        )


PLAIN = Setting("plain")


def parse_setting(text: str) -> Setting:
    """Read a setting.

    Raises:
        ConfigError: It is malformed, or there is no such drafter or option.

    Example:
        >>> parse_setting("draft-simple:n_max=7").flags
        ['--spec-type', 'draft-simple', '--spec-draft-n-max', '7']
    """
    options: dict[str, dict[str, Any]] = {}
    types = []
    for part in text.split(","):
        name, *assignments = (word.strip() for word in part.split(":"))
        _require_known(name, text)
        types.append(name)
        for assignment in assignments:
            option, equals, value = assignment.partition("=")
            if not equals or not option:
                msg = f"A setting is {_FORM}; found {text!r}."
                raise ConfigError(msg)
            _require_option(name, option)
            if option in options.get(name, {}):
                msg = f"{text!r} gives {option} of {name} twice."
                raise ConfigError(msg)
            options.setdefault(name, {})[option] = _value(value)
    plain = types == ["none"]
    return Setting("none" if plain else text, () if plain else tuple(types), options)


def _require_known(name: str, text: str) -> None:
    known = [*names(), AUTO]
    if not name:
        msg = f"A setting is {_FORM}; found {text!r}."
        raise ConfigError(msg)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        msg = f"There is no drafter {name!r}; there are {', '.join(known)}.{hint}"
        raise ConfigError(msg)


def _require_option(name: str, option: str) -> None:
    known = [_N_MAX] if name == AUTO else option_names(name)
    if option not in known:
        near = difflib.get_close_matches(option, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        msg = f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}.{hint}"
        raise ConfigError(msg)


def _value(text: str) -> Any:
    """Return the value of an option; what is not JSON is text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
