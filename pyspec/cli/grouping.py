"""Flags in groups: a command takes a few dataclasses instead of forty parameters.

::

    @dataclass(frozen=True, kw_only=True)
    class SizeOptions:
        panel: ClassVar[str] = "Sizes"
        width: Annotated[int, typer.Option("--width")] = 80


    @app.command()
    @command
    def draw(*, size: SizeOptions) -> None: ...

Typer sees ``draw(*, width: Annotated[int, typer.Option("--width")] = 80, debug, verbose, log_level)``.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_type_hints

from pyspec.cli.logs import DebugFlag, LogLevelFlag, VerboseFlag

_Parameter = inspect.Parameter
_EVERYWHERE = (
    _Parameter("debug", _Parameter.KEYWORD_ONLY, default=False, annotation=DebugFlag),
    _Parameter("verbose", _Parameter.KEYWORD_ONLY, default=0, annotation=VerboseFlag),
    _Parameter("log_level", _Parameter.KEYWORD_ONLY, default=None, annotation=LogLevelFlag),
)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Spread the groups among a command's parameters, and add the flags that every command takes."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in own if dataclasses.is_dataclass(parameter.annotation)
    }
    single = [parameter for parameter in own if parameter.name not in groups]
    spread = [parameter for group in groups.values() for parameter in _parameters(group)]

    @functools.wraps(function)
    def run(**values: object) -> None:
        for parameter in _EVERYWHERE:
            del values[parameter.name]  # its callback has done the work
        made = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        function(**values, **made)

    parameters = [parameter.replace(kind=_Parameter.KEYWORD_ONLY) for parameter in (*single, *spread, *_EVERYWHERE)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(group: type[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        kind, option = get_args(hints[field.name])[:2]
        shown = copy.copy(option)
        shown.rich_help_panel = group.panel
        default = _Parameter.empty if field.default is dataclasses.MISSING else field.default
        yield _Parameter(field.name, _Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])
