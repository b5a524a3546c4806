// Memory and state of sequences.

#include "shim.hpp"

namespace {

// Runs body when the context has a memory.
template <typename Body> int32_t with_memory(pys_context * context, Body && body) {
    return pys::guarded([&]() -> int32_t {
        if (context->memory == nullptr) {
            return pys::fail(PYS_ERR_NO_MEMORY, "this context has no memory");
        }
        return body();
    });
}

} // namespace

int32_t pys_memory_clear(pys_context * context, int32_t clear_data) {
    return with_memory(context, [&]() -> int32_t {
        llama_memory_clear(context->memory, clear_data != 0);
        return PYS_OK;
    });
}

int32_t pys_memory_remove(pys_context * context, int32_t seq_id, int32_t begin, int32_t end) {
    return with_memory(context, [&]() -> int32_t {
        if (!llama_memory_seq_rm(context->memory, seq_id, begin, end)) {
            return pys::fail(PYS_ERR_REFUSED, "the memory cannot remove these positions");
        }
        return PYS_OK;
    });
}

int32_t pys_memory_copy(pys_context * context, int32_t source, int32_t destination, int32_t begin, int32_t end) {
    return with_memory(context, [&]() -> int32_t {
        llama_memory_seq_cp(context->memory, source, destination, begin, end);
        return PYS_OK;
    });
}

int32_t pys_memory_keep(pys_context * context, int32_t seq_id) {
    return with_memory(context, [&]() -> int32_t {
        llama_memory_seq_keep(context->memory, seq_id);
        return PYS_OK;
    });
}

int32_t pys_memory_shift(pys_context * context, int32_t seq_id, int32_t begin, int32_t end, int32_t delta) {
    return with_memory(context, [&]() -> int32_t {
        if (!llama_memory_can_shift(context->memory)) {
            return pys::fail(PYS_ERR_REFUSED, "the memory cannot shift positions");
        }
        llama_memory_seq_add(context->memory, seq_id, begin, end, delta);
        return PYS_OK;
    });
}

int32_t pys_memory_range(pys_context * context, int32_t seq_id, int32_t * first, int32_t * last) {
    return with_memory(context, [&]() -> int32_t {
        *first = llama_memory_seq_pos_min(context->memory, seq_id);
        *last = llama_memory_seq_pos_max(context->memory, seq_id);
        return PYS_OK;
    });
}

int32_t pys_memory_can_shift(pys_context * context, int32_t * result) {
    return with_memory(context, [&]() -> int32_t {
        *result = llama_memory_can_shift(context->memory) ? 1 : 0;
        return PYS_OK;
    });
}

int32_t pys_state_size(pys_context * context, int32_t seq_id, uint32_t flags, uint64_t * n_bytes) {
    return with_memory(context, [&]() -> int32_t {
        *n_bytes = llama_state_seq_get_size_ext(context->ctx, seq_id, flags);
        return PYS_OK;
    });
}

int32_t pys_state_save(pys_context * context, int32_t seq_id, uint32_t flags, uint8_t * buffer, uint64_t capacity,
                       uint64_t * n_bytes) {
    return with_memory(context, [&]() -> int32_t {
        *n_bytes = llama_state_seq_get_data_ext(context->ctx, buffer, capacity, seq_id, flags);
        return *n_bytes > 0 ? static_cast<int32_t>(PYS_OK) : pys::fail(PYS_ERR_STATE, "the state could not be saved");
    });
}

int32_t pys_state_load(pys_context * context, int32_t seq_id, uint32_t flags, const uint8_t * buffer,
                       uint64_t n_bytes) {
    return with_memory(context, [&]() -> int32_t {
        if (llama_state_seq_set_data_ext(context->ctx, buffer, n_bytes, seq_id, flags) == 0) {
            return pys::fail(PYS_ERR_STATE, "the state does not fit this context");
        }
        return PYS_OK;
    });
}
