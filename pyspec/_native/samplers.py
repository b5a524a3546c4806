"""Native calls about sampler chains."""

from __future__ import annotations

import ctypes
from array import array

from pyspec._native.buffers import Int32Out, address_of
from pyspec._native.handles import Handle
from pyspec._native.library import lib
from pyspec._native.status import check
from pyspec.config import SamplingConfig


def create(config: SamplingConfig, n_vocab: int, seed: int) -> Handle:
    """Build the chain in llama.cpp's default order; it ends with a draw, or the best token at temperature 0."""
    library = lib()
    address = ctypes.c_void_p()
    check(library.pys_sampler_create(ctypes.byref(address)))
    handle = Handle(address.value or 0, library.pys_sampler_free, what="sampler", thread_bound=True)
    chain = handle.pointer
    if config.logit_bias:
        tokens, biases = array("i", config.logit_bias.keys()), array("f", config.logit_bias.values())
        check(library.pys_sampler_add_logit_bias(chain, n_vocab, address_of(tokens), address_of(biases), len(tokens)))
    if config.has_penalties:
        penalties = (config.repeat_penalty, config.frequency_penalty, config.presence_penalty)
        check(library.pys_sampler_add_penalties(chain, n_vocab, config.repeat_last_n, *penalties))
    if config.temperature == 0.0:
        check(library.pys_sampler_add_greedy(chain))
        return handle
    if config.top_k > 0:
        check(library.pys_sampler_add_top_k(chain, config.top_k))
    if config.typical_p < 1.0:
        check(library.pys_sampler_add_typical(chain, config.typical_p))
    if config.top_p < 1.0:
        check(library.pys_sampler_add_top_p(chain, config.top_p))
    if config.min_p > 0.0:
        check(library.pys_sampler_add_min_p(chain, config.min_p))
    check(library.pys_sampler_add_temperature(chain, config.temperature))
    check(library.pys_sampler_add_distribution(chain, seed))
    return handle


def sample(sampler: Handle, context: Handle, row: int) -> int:
    """Draw from a row of the last decode; the sampler's state takes the token in."""
    out = Int32Out()
    status = lib().pys_sampler_sample(sampler.pointer, context.pointer, row, out.ref)
    sampler.check(status, "sample a token")
    return out.value


def accept(sampler: Handle, token: int) -> None:
    sampler.check(lib().pys_sampler_accept(sampler.pointer, token))


def reset(sampler: Handle) -> None:
    sampler.check(lib().pys_sampler_reset(sampler.pointer))


def clone(sampler: Handle) -> Handle:
    address = ctypes.c_void_p()
    sampler.check(lib().pys_sampler_clone(sampler.pointer, ctypes.byref(address)))
    return Handle(address.value or 0, lib().pys_sampler_free, what="sampler", thread_bound=True)


def assign(sampler: Handle, source: Handle) -> None:
    """Give ``sampler`` the state of ``source``, a clone of the same chain."""
    sampler.check(lib().pys_sampler_assign(sampler.pointer, source.pointer))
