"""Where files of pyspec's own live."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspec.errors import HubError

__all__ = ["cache_dir", "costs_dir"]


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that everything fetched or measured lives under; it need not exist yet.

    ``PYSPEC_CACHE`` if set, else ``pyspec`` in the platform's cache folder for this user.

    Args:
        environ: Environment variables to read; the process's own by default.

    Raises:
        HubError: There is no home folder, and nothing else says where to go.
    """
    env = os.environ if environ is None else environ
    try:
        if env.get("PYSPEC_CACHE"):
            return Path(env["PYSPEC_CACHE"]).expanduser().absolute()
        return _user_cache_dir(env) / "pyspec"
    except RuntimeError as error:  # from pathlib, when no home folder is known
        msg = f"no folder for fetched models: {error}; set PYSPEC_CACHE to one"
        raise HubError(msg) from error


def costs_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder for what decodes cost on this machine, or None when nothing shall be kept.

    ``PYSPEC_COSTS`` if set, where "off" keeps nothing; else ``costs`` in the cache folder.

    Args:
        environ: Environment variables to read; the process's own by default.
    """
    env = os.environ if environ is None else environ
    wanted = env.get("PYSPEC_COSTS")
    try:
        if wanted:
            return None if wanted.lower() == "off" else Path(wanted).expanduser().absolute()
        return cache_dir(env) / "costs"
    except (HubError, RuntimeError, OSError):  # no home folder; a relative path where the current folder is gone
        return None


def _user_cache_dir(env: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        local = env.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    xdg = env.get("XDG_CACHE_HOME", "")
    # The XDG specification tells programs to ignore a relative path.
    return Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"
