"""An OpenAI-compatible server. Open ``app.py`` first; ``pyspec serve`` and ``docs/how-to/serve.md`` are the ways in.

Beyond the package itself it takes the extra ``server``: starlette, uvicorn, pydantic, jinja2, prometheus-client.

A request's way::

    tracking    gets an id, is logged and counted, whatever happens to it
    security    host, key, load: may it come in?
    endpoint    its body is read and checked (bodies/), its handler is chosen; watched for a client that leaves
    handler     completions, chat, native, status
    jobs        what was asked, as a prompt and settings for the engine
    generating  the engine works; chunks come back
    reply       JSON or server-sent events
"""

from __future__ import annotations

from pyspec.server.settings import ServerSettings

__all__ = ["ServerSettings"]
