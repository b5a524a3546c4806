"""``/openapi.json``, made from the table of endpoints."""

from __future__ import annotations

import functools
import re
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

import pyspec
from pyspec.server.answers import ErrorAnswer
from pyspec.server.endpoints import ENDPOINTS, Endpoint

_REF = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request is wrong.",
    "401": "A key is needed, or it is wrong.",
    "403": "The Host header names another server.",
    "404": "There is no such thing.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "415": "The body is no JSON.",
    "429": "Too many requests.",
    "500": "The server failed.",
    "501": "This server, with this model, does not do that.",
    "503": "The server is shutting down.",
    "504": "The request took too long.",
}


@functools.cache
def document() -> dict[str, Any]:
    """Return the description of the server, OpenAPI 3.1; the same each time, so leave it as it is."""
    answers = [kind for endpoint in ENDPOINTS for kind in (endpoint.answer, endpoint.chunk) if kind is not None]
    adapters = {repr(kind): TypeAdapter(kind) for kind in (*answers, ErrorAnswer)}
    found, definitions = TypeAdapter.json_schemas(
        [(name, "serialization", adapter) for name, adapter in adapters.items()], ref_template=_REF
    )
    schemas = {name: schema for (name, _mode), schema in found.items()}
    bodies = [endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None]
    _, body_definitions = models_json_schema([(body, "validation") for body in bodies], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        for path in map(_plain, endpoint.paths):
            paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, schemas)
    components = {**definitions.get("$defs", {}), **body_definitions.get("$defs", {})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyspec", "version": pyspec.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, path: str, schemas: dict[Any, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": schemas[repr(ErrorAnswer)]}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": "_".join([endpoint.method.lower(), *re.findall(r"\w+", path)]),
        "responses": {
            "200": {"description": "The answer.", "content": _content(endpoint, schemas)},
            **{status: {"description": text, "content": error} for status, text in _ERRORS.items()},
        },
    }
    if not endpoint.public:
        operation["security"] = [{}, {"key": []}]
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _body(endpoint.body)}}}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    return operation


def _plain(path: str) -> str:
    """Return a path without Starlette's types of parameters."""
    return re.sub(r":\w+}", "}", path)


def _body(body: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=body.__name__)}


def _content(endpoint: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    if endpoint.answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    content = {"application/json": {"schema": schemas[repr(endpoint.answer)]}}
    if endpoint.chunk is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content
