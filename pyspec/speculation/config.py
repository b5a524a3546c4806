"""What the user asks of speculation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspec.config import require_bool, require_int, shown
from pyspec.errors import ConfigError
from pyspec.llama.model import Model
from pyspec.speculation.accept import AcceptRule
from pyspec.speculation.draft import parsed_types
from pyspec.speculation.rules import RULES, make_rule

AUTO = "auto"
"""Among drafter names: choose among them round by round."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """Which drafters propose, and how.

    Attributes:
        types: Drafter names, as one string separated by commas or as a list. "none" switches speculation off. "auto"
            takes the lookups, the drafter that the draft model is made for, and any others named beside it, and chooses
            among them round by round, no draft at all included; so does None.
        draft_model: The draft model, for drafters that have one.
        options: Per drafter name its options, such as ``{"ngram-simple": {"size_n": 4}}``.
        rule: How drafts are accepted, unless a request says otherwise: "match" (what plain decoding with the same
            seed would say), "rejection" or "coupled" (the same distribution, more accepted drafts, see
            ``accept.py``), or "synthetic" (benchmarks only; the output is not the target's).
        synthetic_rates: For "synthetic": the acceptance rate per draft position.
        synthetic_length: For "synthetic", instead of rates: tokens that a round emits on average.
        n_max: For "auto": the longest draft to verify; None leaves each drafter its own.
        n_snapshots: Snapshots of a recurrent or hybrid target's state, for dropping as many rejected tokens. None
            takes as many as the longest draft, as far as memory allows; longer drafts then cost a checkpoint.
        self_check: Try drafters that are fed by the target's hidden states on a short text when the engine is made,
            some 24 decodes, and warn when they draft implausibly badly or well.

    Raises:
        ConfigError: Something is not of this form.

    Example:
        >>> Speculation("ngram-simple", options={"ngram-simple": {"size_n": 4}}).types
        ('ngram-simple',)
    """

    types: str | Iterable[str] | None = AUTO
    draft_model: Model | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rule: str = "match"
    synthetic_rates: Sequence[float] | None = None
    synthetic_length: float | None = None
    n_max: int | None = None
    n_snapshots: int | None = None
    self_check: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", parsed_types(AUTO if self.types is None else self.types))
        if not isinstance(self.rule, str) or self.rule not in RULES:
            msg = f"rule must be one of {', '.join(RULES)}, not {shown(self.rule)}."
            raise ConfigError(msg)
        if not isinstance(self.options, Mapping) or not all(
            isinstance(name, str) and isinstance(entry, Mapping) for name, entry in self.options.items()
        ):
            msg = f"options must map drafter names to their options, not {shown(self.options)}."
            raise ConfigError(msg)
        if self.n_max is not None:
            require_int("n_max", self.n_max, 0, 1 << 16)
            if not self.auto:
                msg = 'n_max is for "auto"; with drafters by name give their own in options.'
                raise ConfigError(msg)
        if self.n_snapshots is not None:
            require_int("n_snapshots", self.n_snapshots, 0, 1 << 16)
        require_bool("self_check", self.self_check)
        unused = [name for name in self.options if name not in self.names and not self.auto]
        if unused:
            msg = f"options are given for {', '.join(unused)}, but the drafters are {', '.join(self.names) or 'none'}."
            raise ConfigError(msg)

    def make_rule(self, name: str | None, n_max: int) -> AcceptRule:
        """Return the rule of this name, or the one chosen here.

        Args:
            name: None takes ``rule``.
            n_max: Longest draft.

        Raises:
            ConfigError: There is no such rule, or what it needs is missing or wrong.
        """
        chosen = self.rule if name is None else name
        synthetic = isinstance(chosen, str) and chosen == "synthetic"
        return make_rule(
            chosen,
            n_max=n_max,
            rates=self.synthetic_rates if synthetic else None,
            length=self.synthetic_length if synthetic else None,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The drafter names, without "none" and "auto"."""
        return tuple(name for name in self.types or () if name not in ("none", AUTO))

    @property
    def auto(self) -> bool:
        """Whether drafters and lengths are chosen round by round."""
        return AUTO in (self.types or ())
