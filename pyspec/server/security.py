"""Who may come in: the right host, the right key, and not too many at once."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pyspec.server.errors import INVALID, ApiError, busy, stopping
from pyspec.server.reply import Reply
from pyspec.server.service import Service
from pyspec.server.tracking import notes_of

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Gate:
    """Lets requests in, or tells them why not.

    Args:
        app: What is behind it.
        service: Its settings and its load.
        public: Paths that need no key.
    """

    def __init__(self, app: ASGIApp, service: Service, public: Collection[str]) -> None:
        self._app = app
        self._service = service
        self._public = frozenset(public)
        self._keys = Keys(service.settings.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            notes_of(scope)["error"] = error.code
            await Reply(send).error(error)
            return
        works = is_work(scope)
        self._service.n_requests += works
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.n_requests -= works

    def _check(self, scope: Scope) -> None:
        headers, settings = Headers(scope=scope), self._service.settings
        check_host(headers.get("host", ""), settings.allowed_hosts)
        if scope["path"] in self._public:
            return
        self._keys.check(headers)
        if not is_work(scope):
            return  # whoever watches the server wants to know most when it is busy
        if self._service.stopping:
            raise stopping()
        if self._service.n_requests >= settings.max_requests:
            raise busy(f"{settings.max_requests} requests are under way; try again later.")


def is_work(scope: Scope) -> bool:
    """Return whether a request asks for work, and not only how things are."""
    return bool(scope["method"] == "POST")


class Keys:
    """The keys that open.

    Args:
        keys: None: everything is open.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def check(self, headers: Headers) -> None:
        """Let in who brings a key, as ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``.

        Raises:
            ApiError: There is none, or it is wrong.
        """
        if not self._digests:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not self._opens(given):
            what = "The API key is wrong." if given else "An API key is needed: Authorization: Bearer KEY."
            kind, headers_back = "authentication_error", {"www-authenticate": "Bearer"}
            raise ApiError(401, what, kind=kind, code="invalid_api_key", headers=headers_back)

    def _opens(self, given: str) -> bool:
        """Compare with every key, in the same time whether and where one fits."""
        digest = _digest(given)
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_host(header: str, allowed: Sequence[str] | None) -> None:
    """Refuse names that this server does not have.

    A page of any site can have its own name point here once it is loaded; the browser then takes this server for that
    site. The name in the ``Host`` header gives it away.

    Raises:
        ApiError: The name is not allowed.
    """
    if allowed is not None and host_name(header) not in allowed:
        msg = "The Host header names another server; --allow-host lets it in."
        raise ApiError(403, msg, kind=INVALID, code="wrong_host")


def host_name(header: str) -> str:
    """Return the name in a ``Host`` header, without port, brackets and capitals."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_hosts(host: str, *, has_keys: bool, more: Sequence[str]) -> list[str] | None:
    """Return the names that are let in: on a loopback address those of this machine, as long as there is no key."""
    if has_keys or not is_loopback(host):
        return list(more) or None
    return [*LOOPBACK_NAMES, host, *more]
