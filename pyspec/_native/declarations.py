"""csrc/pyspec_decl.h in ctypes: structures and signatures.

The ABI test reads the header with cffi and compares names, types, sizes and offsets with this file.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

ABI_VERSION = 7
UPSTREAM_TAG = "b11434"

ProgressFunction = CFUNCTYPE(c_int32, c_float, c_void_p)


class DeviceInfo(Structure):
    """``pys_device_info``."""

    _fields_ = [
        ("memory_free", c_uint64),
        ("memory_total", c_uint64),
        ("kind", c_int32),
        ("name", c_char * 128),
        ("description", c_char * 256),
        ("backend", c_char * 64),
    ]


class ModelParams(Structure):
    """``pys_model_params``."""

    _fields_ = [
        ("n_gpu_layers", c_int32),
        ("main_gpu", c_int32),
        ("use_mmap", c_int32),
        ("use_mlock", c_int32),
        ("check_tensors", c_int32),
        ("vocab_only", c_int32),
        ("repack", c_int32),
        ("next_n", c_int32),
        ("large_page_bytes", c_uint64),
        ("progress", ProgressFunction),
        ("progress_data", c_void_p),
    ]


class ModelInfo(Structure):
    """``pys_model_info``."""

    _fields_ = [
        ("size_bytes", c_uint64),
        ("n_params", c_uint64),
        ("n_ctx_train", c_int32),
        ("n_embd", c_int32),
        ("n_embd_inp", c_int32),
        ("n_embd_out", c_int32),
        ("n_layer", c_int32),
        ("n_layer_nextn", c_int32),
        ("n_head", c_int32),
        ("n_head_kv", c_int32),
        ("n_swa", c_int32),
        ("has_encoder", c_int32),
        ("has_decoder", c_int32),
        ("is_recurrent", c_int32),
        ("is_hybrid", c_int32),
        ("is_diffusion", c_int32),
        ("decoder_start_token", c_int32),
        ("selector_top_k", c_int32),
    ]


class VocabInfo(Structure):
    """``pys_vocab_info``."""

    _fields_ = [
        ("type", c_int32),
        ("n_tokens", c_int32),
        ("add_bos", c_int32),
        ("add_eos", c_int32),
        ("bos", c_int32),
        ("eos", c_int32),
        ("eot", c_int32),
        ("sep", c_int32),
        ("nl", c_int32),
        ("pad", c_int32),
        ("mask", c_int32),
        ("fim_pre", c_int32),
        ("fim_suf", c_int32),
        ("fim_mid", c_int32),
    ]


class ContextParams(Structure):
    """``pys_context_params``."""

    _fields_ = [
        ("n_ctx", c_int32),
        ("n_batch", c_int32),
        ("n_ubatch", c_int32),
        ("n_seq_max", c_int32),
        ("n_rs_seq", c_int32),
        ("n_outputs_max", c_int32),
        ("n_outputs_max_per_seq", c_int32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("flash_attn", c_int32),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("offload_kqv", c_int32),
        ("op_offload", c_int32),
        ("swa_full", c_int32),
        ("kv_unified", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("next_n", c_int32),
        ("other", c_void_p),
    ]


class ContextInfo(Structure):
    """``pys_context_info``."""

    _fields_ = [
        ("n_ctx", c_int32),
        ("n_ctx_seq", c_int32),
        ("n_batch", c_int32),
        ("n_ubatch", c_int32),
        ("n_seq_max", c_int32),
        ("n_rs_seq", c_int32),
        ("n_vocab", c_int32),
        ("has_memory", c_int32),
        ("borrows", c_int32),
    ]


class BatchArrays(Structure):
    """``pys_batch``. Pointers are plain addresses: whoever fills them keeps the buffers alive."""

    _fields_ = [
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("seq_offsets", c_void_p),
        ("seq_ids", c_void_p),
        ("outputs", c_void_p),
        ("best", c_void_p),
        ("rows", c_void_p),
        ("row_width", c_int32),
        ("n_tokens", c_int32),
    ]


class SamplerParams(Structure):
    """``pys_sampler_params``; fields that SamplingConfig has too bear its names."""

    _fields_ = [
        ("temperature", c_double),
        ("dynatemp_range", c_double),
        ("dynatemp_exponent", c_double),
        ("top_n_sigma", c_double),
        ("typical_p", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("xtc_probability", c_double),
        ("xtc_threshold", c_double),
        ("repeat_penalty", c_double),
        ("frequency_penalty", c_double),
        ("presence_penalty", c_double),
        ("dry_multiplier", c_double),
        ("dry_base", c_double),
        ("mirostat_ent", c_double),
        ("mirostat_lr", c_double),
        ("top_k", c_int32),
        ("repeat_last_n", c_int32),
        ("dry_allowed_length", c_int32),
        ("dry_penalty_last_n", c_int32),
        ("mirostat", c_int32),
        ("n_vocab", c_int32),
        ("seed", c_uint32),
    ]


STRUCTURES: dict[str, type[Structure]] = {
    "pys_device_info": DeviceInfo,
    "pys_model_params": ModelParams,
    "pys_model_info": ModelInfo,
    "pys_vocab_info": VocabInfo,
    "pys_context_params": ContextParams,
    "pys_context_info": ContextInfo,
    "pys_batch": BatchArrays,
    "pys_sampler_params": SamplerParams,
}

_i32 = c_int32
_i32p = POINTER(c_int32)
_u64p = POINTER(c_uint64)
_ptr = c_void_p  # an opaque handle, or an array given by its address
_out = POINTER(c_void_p)  # receives a handle or an address
_text = [c_void_p, c_int32, _i32p]  # buffer, capacity, length

# Right after a decode each conversion that ctypes tries costs, so what runs in every round converts nothing: it must be
# given objects of ctypes.
UNCONVERTED = ("pys_context_decode", "pys_context_encode")

# Name to result and arguments.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "pys_abi_version": (_i32, []),
    "pys_upstream_tag": (c_char_p, []),
    "pys_system_info": (c_char_p, []),
    "pys_last_error": (c_char_p, []),
    "pys_init": (_i32, [c_char_p]),
    "pys_struct_size": (_i32, [c_char_p]),
    "pys_leave": (_i32, [_i32]),
    "pys_device_count": (_i32, [_i32p]),
    "pys_device_get": (_i32, [_i32, POINTER(DeviceInfo)]),
    "pys_type_id": (_i32, [c_char_p, _i32p]),
    "pys_log_pending": (_i32p, []),
    "pys_log_pop": (_i32, [*_text, _i32p]),
    "pys_log_threshold": (None, [_i32]),
    "pys_model_load": (_i32, [c_char_p, POINTER(ModelParams), _out]),
    "pys_model_free": (None, [_ptr]),
    "pys_model_get_info": (_i32, [_ptr, POINTER(ModelInfo)]),
    "pys_model_target_layers": (_i32, [_ptr, _ptr, _i32, _i32p]),
    "pys_model_has_tensor": (_i32, [_ptr, c_char_p, _i32p]),
    "pys_model_file_type": (_i32, [_ptr, *_text]),
    "pys_model_chat_template": (_i32, [_ptr, c_char_p, *_text]),
    "pys_model_meta_count": (_i32, [_ptr, _i32p]),
    "pys_model_meta_key": (_i32, [_ptr, _i32, *_text]),
    "pys_model_meta_value": (_i32, [_ptr, _i32, *_text]),
    "pys_model_quantize": (_i32, [c_char_p, c_char_p, _i32, _i32, _i32, _i32, _ptr, _i32]),
    "pys_vocab_get_info": (_i32, [_ptr, POINTER(VocabInfo)]),
    "pys_vocab_eog": (_i32, [_ptr, _ptr]),
    "pys_vocab_attributes": (_i32, [_ptr, _ptr]),
    "pys_vocab_tokenize": (_i32, [_ptr, c_char_p, _i32, _ptr, _i32, _i32, _i32, _i32p]),
    "pys_vocab_pieces": (_i32, [_ptr, _ptr, _i32, _i32, _ptr, _i32, _ptr]),
    "pys_context_create": (_i32, [_ptr, POINTER(ContextParams), _out]),
    "pys_context_free": (None, [_ptr]),
    "pys_context_get_info": (_i32, [_ptr, POINTER(ContextInfo)]),
    "pys_context_set_threads": (_i32, [_ptr, _i32, _i32]),
    "pys_context_request_abort": (_i32, [_ptr, _i32]),
    "pys_context_decode": (_i32, [_ptr, POINTER(BatchArrays)]),
    "pys_context_encode": (_i32, [_ptr, POINTER(BatchArrays)]),
    "pys_context_logits": (_i32, [_ptr, _out, _i32p]),
    "pys_context_top_k": (_i32, [_ptr, _i32, _i32, _ptr, _ptr, _i32p]),
    "pys_context_logprobs": (_i32, [_ptr, _i32, _ptr, _i32, _ptr]),
    "pys_context_best_allowed": (_i32, [_ptr, _i32, _ptr, _i32p]),
    "pys_context_keep_layer_input": (_i32, [_ptr, _i32, _i32]),
    "pys_context_keep_next_n": (_i32, [_ptr, _i32]),
    "pys_context_keep_output_states": (_i32, [_ptr, _i32]),
    "pys_context_layer_input": (_i32, [_ptr, _i32, _out, _i32p]),
    "pys_context_next_n": (_i32, [_ptr, _out, _i32p]),
    "pys_context_output_states": (_i32, [_ptr, _out, _i32p]),
    "pys_context_fill_next_n": (_i32, [_ptr, c_float]),
    "pys_context_set_next_n_layer": (_i32, [_ptr, _i32]),
    "pys_context_set_causal": (_i32, [_ptr, _i32]),
    "pys_context_select_on_device": (_i32, [_ptr, _i32, _i32]),
    "pys_memory_clear": (_i32, [_ptr, _i32]),
    "pys_memory_remove": (_i32, [_ptr, _i32, _i32, _i32]),
    "pys_memory_copy": (_i32, [_ptr, _i32, _i32, _i32, _i32]),
    "pys_memory_keep": (_i32, [_ptr, _i32]),
    "pys_memory_shift": (_i32, [_ptr, _i32, _i32, _i32, _i32]),
    "pys_memory_range": (_i32, [_ptr, _i32, _i32p, _i32p]),
    "pys_memory_can_shift": (_i32, [_ptr, _i32p]),
    "pys_state_size": (_i32, [_ptr, _i32, c_uint32, _u64p]),
    "pys_state_save": (_i32, [_ptr, _i32, c_uint32, _ptr, c_uint64, _u64p]),
    "pys_state_load": (_i32, [_ptr, _i32, c_uint32, _ptr, c_uint64]),
    "pys_sampler_create": (_i32, [POINTER(SamplerParams), _out]),
    "pys_sampler_free": (None, [_ptr]),
    "pys_sampler_add_bias": (_i32, [_ptr, _i32, c_double]),
    "pys_sampler_add_breaker": (_i32, [_ptr, _ptr, _i32, _ptr, _i32]),
    "pys_sampler_sample": (_i32, [_ptr, _ptr, _i32, _ptr, _i32p]),
    "pys_sampler_distribution": (_i32, [_ptr, _ptr, _i32, _ptr, _out, _out, _i32p]),
    "pys_sampler_accept": (_i32, [_ptr, _i32]),
    "pys_sampler_progress": (_i32, [_ptr, POINTER(c_uint64), POINTER(c_double)]),
    "pys_sampler_resume": (_i32, [_ptr, c_uint64, c_double]),
    "pys_sampler_save": (_i32, [_ptr]),
    "pys_sampler_restore": (_i32, [_ptr]),
}
