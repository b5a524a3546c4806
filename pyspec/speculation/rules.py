"""Rules by name."""

from __future__ import annotations

from collections.abc import Callable

from pyspec.config import MAX_INT32, require_int, shown
from pyspec.errors import ConfigError
from pyspec.speculation.accept import AcceptRule, MatchRule
from pyspec.speculation.coupled import CoupledRule
from pyspec.speculation.rejection import RejectionRule
from pyspec.speculation.synthetic import SyntheticRule, checked_rates, rates_of_length

_PLAIN: dict[str, Callable[[], AcceptRule]] = {"match": MatchRule, "rejection": RejectionRule, "coupled": CoupledRule}

RULES = (*_PLAIN, "synthetic")


def make_rule(name: object, *, n_max: int = 0, rates: object = None, length: object = None) -> AcceptRule:
    """Return a rule.

    Args:
        name: One of ``RULES``.
        n_max: Longest draft; only "synthetic" asks.
        rates: For "synthetic": acceptance rate per draft position; see ``checked_rates``.
        length: For "synthetic", instead of rates: tokens that a round emits on average; see ``rates_of_length``.

    Raises:
        ConfigError: There is no such rule, or what it needs is missing or wrong.
    """
    if not isinstance(name, str) or name not in RULES:
        msg = f"rule must be one of {', '.join(RULES)}, not {shown(name)}."
        raise ConfigError(msg)
    if name == "synthetic":
        return SyntheticRule(_synthetic_rates(n_max, rates, length))
    if rates is not None or length is not None:
        msg = f'rates and length belong to the rule "synthetic", not to "{name}".'
        raise ConfigError(msg)
    return _PLAIN[name]()


def _synthetic_rates(n_max: int, rates: object, length: object) -> tuple[float, ...]:
    if (rates is None) == (length is None):
        given = "neither was" if rates is None else "both were"
        msg = f'The rule "synthetic" needs rates or length, one of them; {given} given.'
        raise ConfigError(msg)
    if require_int("n_max", n_max, 0, MAX_INT32) == 0:
        msg = 'The rule "synthetic" accepts drafts, but no drafter is there to make them.'
        raise ConfigError(msg)
    return checked_rates(rates, n_max) if length is None else rates_of_length(length, n_max)
