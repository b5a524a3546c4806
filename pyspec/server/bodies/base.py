"""What all bodies of requests have in common, and how one is checked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pyspec.config import MAX_INT32
from pyspec.server.errors import ApiError, invalid

TokenId = Annotated[int, Field(ge=0, le=MAX_INT32, strict=True)]
Item = TypeVar("Item")
ListOf = Annotated[list[Item], Field(fail_fast=True)]
"""A list of which only the first fault is told: to explain the millions that a body can have would take minutes."""


class Body(BaseModel):
    """A body; a field that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _with_one_unknown_field(cls, data: object) -> object:
        """Leave out the unknown fields but one, for the same reason as in ``ListOf``."""
        if not isinstance(data, dict):
            return data
        names = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in data if name not in names]
        return {name: value for name, value in data.items() if name in names or name == unknown[0]}


class OpenBody(BaseModel):
    """A part of a body whose other fields are passed on."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


AnyBody = TypeVar("AnyBody", bound=BaseModel)


def checked(kind: type[AnyBody], data: object) -> AnyBody:
    """Return parsed JSON as a body.

    Raises:
        ApiError: It is not of this form.
    """
    if not isinstance(data, dict):
        raise invalid("The body must be a JSON object.")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _explained(kind, data, error) from None


def _explained(kind: type[BaseModel], data: dict[str, Any], error: ValidationError) -> ApiError:
    """Tell about the first fault; of a choice between forms, the one that came furthest into the data."""
    faults = [
        (_path(data, fault["loc"], fault["type"]), fault)
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    path, fault = max(faults, key=lambda entry: len(entry[0]))
    name = ".".join(map(str, path))
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _names(kind), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return invalid(f"There is no field {name}.{hint}", param=name, code="unknown_parameter")
    if fault["type"] == "missing":
        return invalid(f"The field {name} is missing.", param=name, code="missing_parameter")
    return invalid(f"{name}: {fault['msg']}.", param=name, code="invalid_value")


def _path(data: object, location: Sequence[int | str], fault: str) -> tuple[int | str, ...]:
    """Return where in the data a fault is; pydantic also names the forms it has tried."""
    path: list[int | str] = []
    for part in location:
        if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
            data = data[part]  # type: ignore[index]
            path.append(part)
    return (*path, location[-1]) if fault == "missing" else tuple(path)


def _names(kind: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]
