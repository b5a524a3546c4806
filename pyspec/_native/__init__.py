"""The one door to C: the only folder that imports ctypes.

Every other module calls ``check(lib().pys_something(...))`` and handles Python objects only.
"""

from __future__ import annotations

from pyspec._native.buffers import Int32Out, TextBuffer, address_of
from pyspec._native.handles import Handle
from pyspec._native.library import lib, library_info
from pyspec._native.status import Status, check

__all__ = ["Handle", "Int32Out", "Status", "TextBuffer", "address_of", "check", "lib", "library_info"]
