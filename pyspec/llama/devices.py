"""What the native library is, and what it can compute on."""

from __future__ import annotations

from pyspec._native.declarations import UPSTREAM_TAG
from pyspec._native.devices import Device, devices
from pyspec._native.library import candidates as library_candidates
from pyspec._native.library import library_info

__all__ = ["UPSTREAM_TAG", "Device", "devices", "library_candidates", "library_info"]
