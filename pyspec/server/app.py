"""The server as an ASGI application."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pyspec.server import openapi
from pyspec.server.about import fingerprint
from pyspec.server.endpoints import ENDPOINTS, EndpointApp
from pyspec.server.errors import ApiError
from pyspec.server.metrics import Metrics
from pyspec.server.prompts import Speech
from pyspec.server.reply import to_json
from pyspec.server.security import Gate
from pyspec.server.service import ServedEngine, Service
from pyspec.server.settings import ServerSettings
from pyspec.server.templates import template_of
from pyspec.server.tracking import Tracking

_DESCRIPTION = "/openapi.json"


def make_service(engine: ServedEngine, settings: ServerSettings | None = None) -> Service:
    """Return what a server of this engine shares.

    Raises:
        ConfigError: The model's chat template is broken.
    """
    chosen = settings if settings is not None else ServerSettings()
    model = engine.model
    return Service(
        engine=engine,
        settings=chosen,
        template=template_of(model, chosen.chat_template),
        speech=Speech(model.vocab),
        metrics=Metrics(engine),
        fingerprint=fingerprint(model),
    )


def create_app(service: Service) -> Starlette:
    """Return the server as an ASGI application, for any ASGI server or as part of another application.

    The engine stays the caller's, to be closed after the application has ended.

    Example:
        >>> app = create_app(make_service(engine, ServerSettings(api_keys=["secret"])))  # doctest: +SKIP
    """
    routes = [
        Route(path, EndpointApp(service, endpoint), methods=[endpoint.method])
        for endpoint in ENDPOINTS
        for path in endpoint.paths
    ]
    described = to_json(openapi.document())
    routes.append(Route(_DESCRIPTION, _Described(described), methods=["GET"]))
    settings = service.settings
    public = [path for endpoint in ENDPOINTS if endpoint.public for path in endpoint.paths]
    layers = [Middleware(Tracking, service.metrics)]
    if settings.cors_origins:
        layers.append(_cors(settings))
    layers.append(Middleware(Gate, service, public))
    app = Starlette(routes=routes, middleware=layers, exception_handlers={404: _nowhere, 405: _wrong_method})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


class _Described:
    """``/openapi.json``."""

    def __init__(self, described: bytes) -> None:
        self._response = Response(described, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(scope, receive, send)


def _cors(settings: ServerSettings) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
        expose_headers=["x-request-id", "retry-after"],
    )


def _nowhere(request: Request, error: Exception) -> Response:
    del request, error
    return _response(ApiError(404, "There is nothing at this path.", kind="not_found_error", code="not_found"))


def _wrong_method(request: Request, error: Exception) -> Response:
    del request
    allowed = getattr(error, "headers", None) or {}
    return _response(
        ApiError(405, "This path does not take this method.", code="method_not_allowed", headers=dict(allowed))
    )


def _response(error: ApiError) -> Response:
    return Response(to_json(error.to_dict()), error.status, error.headers, media_type="application/json")
