// Contexts: creation and decode.

#include <algorithm>
#include <memory>
#include <string>

#include "llama-model.h"
#include "shim.hpp"

namespace {

bool on_abort_check(void * data) {
    return static_cast<pys_context *>(data)->abort_requested.load(std::memory_order_relaxed) != 0 || pys::leaving();
}

llama_context_params native_params(const pys_context_params & params) {
    llama_context_params native = llama_context_default_params();
    native.n_ctx = static_cast<uint32_t>(params.n_ctx);
    native.n_batch = static_cast<uint32_t>(params.n_batch);
    native.n_ubatch = static_cast<uint32_t>(params.n_ubatch);
    native.n_seq_max = static_cast<uint32_t>(params.n_seq_max);
    native.n_rs_seq = static_cast<uint32_t>(params.n_rs_seq);
    native.n_outputs_max = static_cast<uint32_t>(params.n_outputs_max);
    native.n_outputs_max_per_seq = static_cast<uint32_t>(params.n_outputs_max_per_seq);
    native.n_threads = params.n_threads;
    native.n_threads_batch = params.n_threads_batch;
    native.flash_attn_type = static_cast<llama_flash_attn_type>(params.flash_attn);
    native.type_k = static_cast<ggml_type>(params.type_k);
    native.type_v = static_cast<ggml_type>(params.type_v);
    native.offload_kqv = params.offload_kqv != 0;
    native.op_offload = params.op_offload != 0;
    native.swa_full = params.swa_full != 0;
    native.kv_unified = params.kv_unified != 0;
    native.rope_freq_base = params.rope_freq_base;
    native.rope_freq_scale = params.rope_freq_scale;
    native.ctx_type = params.next_n != 0 ? LLAMA_CONTEXT_TYPE_MTP : LLAMA_CONTEXT_TYPE_DEFAULT;
    native.ctx_other = params.other != nullptr ? params.other->ctx : nullptr;
    native.pooling_type = LLAMA_POOLING_TYPE_NONE; // a row for each token, also of models that pool theirs
    native.no_perf = true;
    return native;
}

// Adds a token, a row, or a token with its row.
int32_t add_entry(llama_batch_ext * out, const pys_batch & in, int32_t i, llama_seq_id seq) {
    const llama_token token = in.tokens[i];
    if (in.rows == nullptr) {
        return llama_batch_ext_add_token(out, seq, token);
    }
    const size_t width = static_cast<size_t>(in.row_width);
    const llama_embd row{in.rows + static_cast<size_t>(i) * width, 1, width};
    if (token < 0) {
        return llama_batch_ext_add_embd(out, seq, row);
    }
    const int32_t entry = llama_batch_ext_add_token(out, seq, token);
    return entry >= 0 && llama_batch_ext_set_embd_token(out, entry, row) ? entry : -1;
}

// Fills the context's own batch. False when upstream refuses an entry.
bool fill_batch(llama_batch_ext * out, const pys_batch & in) {
    llama_batch_ext_clear(out);
    for (int32_t i = 0; i < in.n_tokens; ++i) {
        const int32_t * seq = in.seq_ids + in.seq_offsets[i];
        const int32_t * seq_end = in.seq_ids + in.seq_offsets[i + 1];
        if (seq >= seq_end) {
            return false;
        }
        const int32_t entry = add_entry(out, in, i, *seq);
        if (entry < 0) {
            return false;
        }
        while (++seq < seq_end) {
            if (!llama_batch_ext_add_seq(out, entry, *seq)) {
                return false;
            }
        }
        // A lone row may have a position in several dimensions; text has the same in each but the last.
        const llama_pos position[4] = {in.positions[i], in.positions[i], in.positions[i], 0};
        llama_batch_ext_set_pos(out, entry, position);
        llama_batch_ext_set_output_logits(out, entry, in.outputs[i] != 0);
    }
    return true;
}

int32_t decode_status(int32_t code, const pys_context & context, int32_t n_entries) {
    switch (code) {
        case 0:
            return PYS_OK;
        case 1:
            return pys::fail(PYS_ERR_CONTEXT_FULL, "no free cells for a batch of " + std::to_string(n_entries) +
                                                       " entries in a memory of " +
                                                       std::to_string(llama_n_ctx(context.ctx)) +
                                                       "; remove some of what it holds, or use a larger n_ctx");
        case 2:
            return pys::fail(PYS_ERR_ABORTED, "the decode was aborted");
        case -1:
            return pys::fail(PYS_ERR_BATCH, "llama.cpp refused the batch");
        default:
            return pys::fail(PYS_ERR_DECODE, "the decode failed");
    }
}

// Finds the best token of each wanted row.
void find_best(pys_context * context, int32_t * best) {
    if (!context->selectors.empty()) {
        float logit;
        for (int32_t row = 0; row < context->n_rows; ++row) {
            best[row] = -1; // stays when the row is not of numbers
            pys::top_k(context, row, 1, best + row, &logit);
        }
        return;
    }
    const float * logits = context->n_rows > 0 ? llama_get_logits(context->ctx) : nullptr;
    for (int32_t row = 0; row < context->n_rows; ++row) {
        best[row] = pys::best_token(logits + static_cast<size_t>(row) * context->n_vocab, context->n_vocab);
    }
}

int32_t process(pys_context * context, const pys_batch & batch, llama_process_type type) {
    const int32_t status = pys::guarded([&]() -> int32_t {
        context->n_rows = 0;
        context->n_entries = 0;
        const auto n_wanted =
            std::count_if(batch.outputs, batch.outputs + batch.n_tokens, [](int8_t wanted) { return wanted != 0; });
        if (context->keeps_output_states && n_wanted != batch.n_tokens) {
            return pys::fail(PYS_ERR_BATCH, "every entry must want its logits row while output states are kept");
        }
        if (!fill_batch(context->batch, batch)) {
            return pys::fail(PYS_ERR_BATCH, "llama.cpp refused an entry of the batch");
        }
        const pys::workers::lease working(*context->workers, context->ctx);
        const int32_t status =
            decode_status(llama_process(context->ctx, type, context->batch), *context, batch.n_tokens);
        if (status != PYS_OK) {
            return status;
        }
        llama_synchronize(context->ctx);
        context->n_entries = batch.n_tokens;
        if (type == LLAMA_PROCESS_TYPE_DECODE) {
            context->n_rows = static_cast<int32_t>(n_wanted);
            find_best(context, batch.best);
        }
        return PYS_OK;
    });
    return status == PYS_OK && *pys_log_pending() != 0 ? static_cast<int32_t>(PYS_LOGGED) : status;
}

// Frees a context that may be half made.
struct destroy {
    void operator()(pys_context * context) const {
        llama_batch_ext_free(context->batch);
        llama_free(context->ctx);
        for (const auto & selector : context->selectors) {
            llama_sampler_free(selector.second);
        }
        delete context;
    }
};

} // namespace

int32_t pys_context_create(pys_model * model, const pys_context_params * params, pys_context ** context) {
    return pys::guarded([&]() -> int32_t {
        std::unique_ptr<pys_context, destroy> handle(new pys_context);
        llama_context_params native = native_params(*params);
        native.abort_callback = on_abort_check;
        native.abort_callback_data = handle.get();
        handle->ctx = llama_init_from_model(model->model, native);
        if (handle->ctx == nullptr) {
            return pys::fail(PYS_ERR_CONTEXT_CREATE, "");
        }
        handle->workers = params->other != nullptr ? params->other->workers : std::make_shared<pys::workers>();
        handle->workers->reach(std::max(params->n_threads, params->n_threads_batch));
        handle->batch = llama_batch_ext_init(handle->ctx);
        handle->memory = llama_get_memory(handle->ctx);
        handle->n_vocab = model->n_vocab;
        handle->keeps_layer.resize(static_cast<size_t>(llama_model_n_layer(model->model)) + 1);
        *context = handle.release();
        return PYS_OK;
    });
}

void pys_context_free(pys_context * context) {
    pys::guarded([&]() -> int32_t {
        destroy()(context);
        return PYS_OK;
    });
}

int32_t pys_context_get_info(const pys_context * context, pys_context_info * info) {
    return pys::guarded([&]() -> int32_t {
        const llama_context * native = context->ctx;
        info->n_ctx = static_cast<int32_t>(llama_n_ctx(native));
        info->n_ctx_seq = static_cast<int32_t>(llama_n_ctx_seq(native));
        info->n_batch = static_cast<int32_t>(llama_n_batch(native));
        info->n_ubatch = static_cast<int32_t>(llama_n_ubatch(native));
        info->n_seq_max = static_cast<int32_t>(llama_n_seq_max(native));
        info->n_rs_seq = static_cast<int32_t>(llama_n_rs_seq(native));
        info->n_vocab = context->n_vocab;
        info->has_memory = context->memory != nullptr ? 1 : 0;
        const bool shares_memory = llama_get_model(native)->arch == LLM_ARCH_GEMMA4_ASSISTANT;
        info->borrows = llama_get_ctx_other(context->ctx) == nullptr ? 0 : shares_memory ? 2 : 1;
        return PYS_OK;
    });
}

int32_t pys_context_set_threads(pys_context * context, int32_t n_threads, int32_t n_threads_batch) {
    return pys::guarded([&]() -> int32_t {
        context->workers->reach(std::max(n_threads, n_threads_batch));
        llama_set_n_threads(context->ctx, n_threads, n_threads_batch);
        return PYS_OK;
    });
}

int32_t pys_context_request_abort(pys_context * context, int32_t value) {
    context->abort_requested.store(value, std::memory_order_relaxed);
    return PYS_OK;
}

int32_t pys_context_decode(pys_context * context, const pys_batch * batch) {
    return process(context, *batch, LLAMA_PROCESS_TYPE_DECODE);
}

int32_t pys_context_encode(pys_context * context, const pys_batch * batch) {
    return process(context, *batch, LLAMA_PROCESS_TYPE_ENCODE);
}
