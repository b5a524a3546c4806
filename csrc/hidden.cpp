// Hidden states of the last decode: layer inputs, next-n rows, and what comes out of the output norm.

#include <algorithm>

#include "shim.hpp"

int32_t pys_context_keep_layer_input(pys_context * context, int32_t layer, int32_t value) {
    return pys::guarded([&]() -> int32_t {
        if (layer < 0 || static_cast<size_t>(layer) >= context->keeps_layer.size()) {
            return pys::fail(PYS_ERR_ARGUMENT, "the model has no such layer");
        }
        llama_set_embeddings_layer_inp(context->ctx, static_cast<uint32_t>(layer), value != 0);
        context->keeps_layer[static_cast<size_t>(layer)] = value != 0;
        context->n_entries = 0; // what was kept before is laid out anew
        return PYS_OK;
    });
}

int32_t pys_context_keep_next_n(pys_context * context, int32_t which) {
    return pys::guarded([&]() -> int32_t {
        llama_set_embeddings_nextn(context->ctx, which != 0, which == 1);
        context->keeps_next_n = which;
        context->n_entries = 0;
        return PYS_OK;
    });
}

int32_t pys_context_keep_output_states(pys_context * context, int32_t value) {
    return pys::guarded([&]() -> int32_t {
        llama_set_embeddings(context->ctx, value != 0);
        context->keeps_output_states = value != 0;
        context->n_entries = 0;
        return PYS_OK;
    });
}

int32_t pys_context_output_states(pys_context * context, const float ** rows, int32_t * n_rows) {
    return pys::guarded([&]() -> int32_t {
        if (!context->keeps_output_states || context->n_entries == 0) {
            return pys::fail(PYS_ERR_ARGUMENT, "the last decode did not keep the states after the output norm");
        }
        *rows = llama_get_embeddings(context->ctx);
        *n_rows = context->n_entries;
        return PYS_OK;
    });
}

int32_t pys_context_layer_input(pys_context * context, int32_t layer, const float ** rows, int32_t * n_rows) {
    return pys::guarded([&]() -> int32_t {
        const bool kept = layer >= 0 && static_cast<size_t>(layer) < context->keeps_layer.size() &&
                          context->keeps_layer[static_cast<size_t>(layer)];
        if (!kept || context->n_entries == 0) {
            return pys::fail(PYS_ERR_ARGUMENT, "the last decode did not keep the input of this layer");
        }
        *rows = llama_get_embeddings_layer_inp(context->ctx, static_cast<uint32_t>(layer));
        *n_rows = context->n_entries;
        return PYS_OK;
    });
}

int32_t pys_context_next_n(pys_context * context, const float ** rows, int32_t * n_rows) {
    return pys::guarded([&]() -> int32_t {
        if (context->keeps_next_n == 0 || context->n_entries == 0) {
            return pys::fail(PYS_ERR_ARGUMENT, "the last decode did not keep next-n rows");
        }
        // An encoder wants all rows.
        const bool wanted_only = context->keeps_next_n == 1 && context->n_rows > 0;
        *rows = llama_get_embeddings_nextn(context->ctx);
        *n_rows = wanted_only ? context->n_rows : context->n_entries;
        return PYS_OK;
    });
}

int32_t pys_context_fill_next_n(pys_context * context, float value) {
    return pys::guarded([&]() -> int32_t {
        if (context->keeps_next_n != 2 || context->n_entries == 0) {
            return pys::fail(PYS_ERR_ARGUMENT, "the last decode did not keep next-n rows");
        }
        const int32_t width = llama_model_n_embd_out(llama_get_model(context->ctx));
        std::fill_n(llama_get_embeddings_nextn(context->ctx),
                    static_cast<size_t>(context->n_entries) * static_cast<size_t>(width), value);
        return PYS_OK;
    });
}

int32_t pys_context_set_next_n_layer(pys_context * context, int32_t offset) {
    return pys::guarded([&]() -> int32_t {
        llama_set_nextn_layer_offset(context->ctx, offset);
        return PYS_OK;
    });
}

int32_t pys_context_set_causal(pys_context * context, int32_t value) {
    return pys::guarded([&]() -> int32_t {
        llama_set_causal_attn(context->ctx, value != 0);
        return PYS_OK;
    });
}

int32_t pys_context_select_on_device(pys_context * context, int32_t seq_id, int32_t k) {
    return pys::guarded([&]() -> int32_t {
        llama_set_sampler(context->ctx, seq_id, nullptr);
        const auto former = context->selectors.find(seq_id);
        if (former != context->selectors.end()) {
            llama_sampler_free(former->second);
            context->selectors.erase(former);
        }
        if (k == 0) {
            return PYS_OK;
        }
        llama_sampler_chain_params params = llama_sampler_chain_default_params();
        params.no_perf = true;
        llama_sampler * chain = llama_sampler_chain_init(params);
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(k));
        if (!llama_set_sampler(context->ctx, seq_id, chain)) {
            llama_sampler_free(chain);
            return pys::fail(PYS_ERR_REFUSED, "the device cannot select tokens");
        }
        context->selectors[seq_id] = chain;
        return PYS_OK;
    });
}
