"""Native calls about samplers."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pyspec._native.buffers import Int32Out, address_of
from pyspec._native.declarations import SamplerParams
from pyspec._native.handles import Handle, array_interface
from pyspec._native.library import lib
from pyspec._native.status import check
from pyspec.config import SamplingConfig

Mask = npt.NDArray[np.uint32]
Breakers = Iterable[tuple[npt.NDArray[np.int32], Sequence[int]]]  # heads and tail, see pys_sampler_add_breaker


def create(config: SamplingConfig, n_vocab: int, seed: int, breakers: Breakers) -> Handle:
    library = lib()
    settings = {name: getattr(config, name) for name, *_ in SamplerParams._fields_ if hasattr(config, name)}
    params = SamplerParams(**{**settings, "n_vocab": n_vocab, "seed": seed})
    address = ctypes.c_void_p()
    check(library.pys_sampler_create(ctypes.byref(params), ctypes.byref(address)))
    handle = Handle(address.value or 0, library.pys_sampler_free, what="sampler", thread_bound=True)
    for token, bias in config.logit_bias.items():
        check(library.pys_sampler_add_bias(handle.pointer, token, bias))
    for heads, tail in breakers:
        numbers = array("i", tail)
        arrays = (address_of(heads), len(heads), address_of(numbers), len(numbers))
        check(library.pys_sampler_add_breaker(handle.pointer, *arrays))
    return handle


def sample(sampler: Handle, context: Handle, row: int, mask: Mask | None) -> int:
    """Draw from a row of the last decode; the sampler's state takes the token in."""
    out = Int32Out()
    status = lib().pys_sampler_sample(sampler.pointer, context.pointer, row, _mask_address(mask), out.ref)
    sampler.check(status, "sample a token")
    return out.value


def distribution(
    sampler: Handle, context: Handle, row: int, mask: Mask | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return what ``sample`` would draw from, tokens and probabilities, both [k]."""
    tokens, probs, count = ctypes.c_void_p(), ctypes.c_void_p(), Int32Out()
    outs = (ctypes.byref(tokens), ctypes.byref(probs), count.ref)
    native = (
        sampler.pointer
    )  # another thread may close the sampler meanwhile; this keeps it until its arrays are copied
    status = lib().pys_sampler_distribution(native, context.pointer, row, _mask_address(mask), *outs)
    sampler.check(status, "weigh the tokens of a row")
    shape = (count.value,)
    return (
        np.array(array_interface(native, tokens.value or 0, shape, "<i4")),
        np.array(array_interface(native, probs.value or 0, shape, "<f8")),
    )


def accept(sampler: Handle, token: int) -> None:
    sampler.check(lib().pys_sampler_accept(sampler.pointer, token))


def progress(sampler: Handle) -> tuple[int, float]:
    """Return how many tokens were drawn, and mirostat's bound."""
    n_draws, mu = ctypes.c_uint64(), ctypes.c_double()
    sampler.check(lib().pys_sampler_progress(sampler.pointer, ctypes.byref(n_draws), ctypes.byref(mu)))
    return n_draws.value, mu.value


def resume(sampler: Handle, n_draws: int, mu: float) -> None:
    """Set what ``progress`` returned."""
    sampler.check(lib().pys_sampler_resume(sampler.pointer, n_draws, mu))


def save(sampler: Handle) -> None:
    sampler.check(lib().pys_sampler_save(sampler.pointer))


def restore(sampler: Handle) -> None:
    """Return to the state that was saved last."""
    sampler.check(lib().pys_sampler_restore(sampler.pointer))


def _mask_address(mask: Mask | None) -> int | None:
    return None if mask is None else address_of(mask)
