"""Drafters by name. Built-in ones register through the same entry-point group as a stranger's package."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

from pyspec.config import shown
from pyspec.drafters.contract import said
from pyspec.errors import ConfigError, DrafterError, PyspecError

if TYPE_CHECKING:
    from pyspec.llama.context import Context
    from pyspec.llama.model import Model
    from pyspec.speculation.draft import Drafter

GROUP = "pyspec.drafters"

_USUAL_LENGTH = 16
_logger = logging.getLogger(__name__)

# Lookups first, because they cost nothing. A name that is not here comes before those with a model.
PRIORITY = (
    "suffix",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a drafter with a model gets from the engine.

    A drafter class gets it as the keyword ``resources``; one that cannot do without has the class attribute
    ``needs_resources = True``.

    Attributes:
        target_model: The target's model.
        target: The target's context.
        draft_model: The draft model, or None.
        n_sequences: Sequences that may draft at once.
    """

    target_model: Model
    target: Context
    draft_model: Model | None
    n_sequences: int


@functools.cache
def _registered() -> Mapping[str, EntryPoint]:
    """Return where each drafter is found; of one name the one of this package, or else the first by its place."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (not _is_built_in(point), point.value)):
        used = found.setdefault(point.name, point)
        if used.value != point.value:
            _logger.warning(
                'The drafter "%s" of %s is not used: %s has one of this name.', point.name, point.value, used.value
            )
    return found


def _is_built_in(point: EntryPoint) -> bool:
    return point.value.startswith("pyspec.drafters.")


def names() -> list[str]:
    """Return the names of all installed drafters, in the order a chain asks them."""
    return sorted_by_priority(_registered())


def sorted_by_priority(drafter_names: Iterable[str]) -> list[str]:
    """Return names in the order a chain asks them."""
    rank: dict[str, float] = {name: i for i, name in enumerate(PRIORITY)}
    other = rank["draft-simple"] - 0.5
    return sorted(drafter_names, key=lambda name: (rank.get(name, other), name))


def create(name: str, *, resources: Resources | None = None, **options: Any) -> Drafter:
    """Build a drafter.

    Args:
        name: Such as "ngram-simple"; see ``names()``.
        resources: For drafters with a model; the engine gives it.
        options: Named after the command line's flags, such as ``size_n``.

    Raises:
        ConfigError: There is no such drafter or option, or a value is wrong.
        UnsupportedError: The drafter cannot work with these models; the message says what is missing.
        DrafterError: It cannot be imported or built, or calls itself by another name than it is registered by.

    Example:
        >>> create("ngram-simple", size_n=4, size_m=8).name  # doctest: +SKIP
        'ngram-simple'
    """
    return build(name, options, resources)


def build(name: str, options: Mapping[str, Any], resources: Resources | None = None) -> Drafter:
    """Build a drafter from options in a mapping; see ``create``."""
    factory = _factory(name)
    accepted = _option_names(factory)
    for option in options:
        if option not in accepted:
            near = difflib.get_close_matches(str(option), accepted, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            msg = f"The drafter {name} has no option {option!r}; it has {', '.join(accepted) or 'none'}.{hint}"
            raise ConfigError(msg)
    if resources is None and getattr(factory, "needs_resources", False):
        msg = f"The drafter {name} works with models; build it through pyspec.Engine, which has them."
        raise ConfigError(msg)
    takes_resources = resources is not None and "resources" in inspect.signature(factory).parameters
    return _built(factory, name, {**options, "resources": resources} if takes_resources else dict(options))


def _built(factory: Callable[..., Any], name: str, options: dict[str, Any]) -> Drafter:
    """Build a drafter, whose exceptions are its own unless they are pyspec's."""
    try:
        drafter: Drafter = factory(**options)
        own_name = getattr(drafter, "name", name)
    except PyspecError:
        raise
    except Exception as error:
        msg = f"The drafter {name} cannot be built: {said(error)}"
        raise DrafterError(msg) from error
    if not isinstance(own_name, str) or own_name != name:
        msg = f"The drafter registered as {name} calls itself {shown(own_name)}; both must be the same."
        raise DrafterError(msg)
    return drafter


def is_available(name: str) -> bool:
    """Return whether a drafter is installed and can be imported."""
    try:
        _factory(name)
    except (ConfigError, DrafterError):
        return False
    return True


def option_names(name: str) -> list[str]:
    """Return the names of a drafter's options.

    Raises:
        ConfigError: There is no such drafter.
    """
    return _option_names(_factory(name))


def longest_draft(name: str, options: Mapping[str, Any]) -> int:
    """Return how many tokens a drafter may propose with these options, before it is built.

    Built-in drafters call their limit ``n_max`` or ``size_m``; for one that has neither a usual length is returned.

    Raises:
        ConfigError: There is no such drafter.
    """
    parameters = inspect.signature(_factory(name)).parameters
    for limit in ("n_max", "size_m"):
        if limit in parameters:
            value = options.get(limit, parameters[limit].default)
            return value if type(value) is int and value > 0 else _USUAL_LENGTH
    return _USUAL_LENGTH


def options_of(drafter: Drafter) -> dict[str, Any]:
    """Return the options in force, as far as the drafter keeps them as attributes of the same name."""
    return {name: getattr(drafter, name) for name in _option_names(type(drafter)) if hasattr(drafter, name)}


def _factory(name: str) -> Callable[..., Any]:
    point = _registered().get(name) if isinstance(name, str) else None
    if point is None:
        near = difflib.get_close_matches(str(name), _registered(), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        msg = f"There is no drafter {name!r}; installed are {', '.join(names()) or 'none'}.{hint}"
        raise ConfigError(msg)
    try:
        factory: Callable[..., Any] = point.load()
    except (Exception, SystemExit, GeneratorExit) as error:  # of a module that ends the program when it is imported
        msg = f"The drafter {name} of {point.value} cannot be imported: {said(error)}"
        raise DrafterError(msg) from error
    _require_signature(factory, name, point.value)
    return factory


def _require_signature(factory: object, name: str, place: str) -> None:
    """Refuse what builds nothing, or does not say which options it has."""
    try:
        inspect.signature(cast("Callable[..., Any]", factory))
    except Exception as error:
        msg = (
            f"The drafter {name} cannot be built from {place}, which is {shown(factory)}; an entry point must name a "
            f"class or function with named options: {said(error)}"
        )
        raise DrafterError(msg) from error


def _option_names(factory: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    return [parameter.name for parameter in parameters if parameter.name != "resources"]
