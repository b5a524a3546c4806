// Models: loading, facts, metadata, quantising.

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gguf.h"
#include "llama-model.h"
#include "shim.hpp"

namespace {

// Names a weight that no kernel can read, or "". Upstream loads a matrix of integers without a word and dies at
// the first decode; only a damaged file has one. deepseek4's table of experts is meant to hold integers.
std::string unusable_weight(const llama_model * model) {
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        const bool computable = ggml_is_quantized(tensor->type) && tensor->type != GGML_TYPE_Q8_1 &&
                                tensor->type != GGML_TYPE_Q8_K; // these two hold activations only
        const bool number = computable || tensor->type == GGML_TYPE_F32 || tensor->type == GGML_TYPE_F16 ||
                            tensor->type == GGML_TYPE_BF16;
        const bool weight = name.size() > 7 && name.compare(name.size() - 7, 7, ".weight") == 0;
        if (weight && !number && name.find("tid2eid") == std::string::npos) {
            return name + " has the invalid type " + ggml_type_name(tensor->type);
        }
    }
    return "";
}

struct progress_relay {
    pys_progress_fn function;
    void * data;
    bool stopped;
};

constexpr int32_t go_on = 42; // see pys_progress_fn

bool on_progress(float progress, void * user_data) {
    auto * relay = static_cast<progress_relay *>(user_data);
    relay->stopped = pys::leaving() || relay->function(progress, relay->data) != go_on;
    return !relay->stopped;
}

// ggml lays F16 weights out again for AMX too, and then computes few rows of them with slower code than before
// (docs/decisions/0009). Other layouts are for quantised weights only.
bool slower_when_repacked(const char * path) {
    if (std::strstr(llama_print_system_info(), "AMX_INT8 = 1") == nullptr) {
        return false;
    }
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> header(gguf_init_from_file(path, {true, nullptr}),
                                                                     gguf_free);
    const int64_t key = header != nullptr ? gguf_find_key(header.get(), "general.file_type") : -1;
    return key >= 0 && gguf_get_kv_type(header.get(), key) == GGUF_TYPE_UINT32 &&
           gguf_get_val_u32(header.get(), key) == LLAMA_FTYPE_MOSTLY_F16;
}

// Runs an upstream function of the snprintf kind (returns the size needed, writes a terminator).
template <typename Function>
int32_t text_from(Function && function, char * buffer, int32_t capacity, int32_t * length) {
    std::vector<char> text(256);
    int32_t size = function(text.data(), text.size());
    if (size >= static_cast<int32_t>(text.size())) {
        text.resize(static_cast<size_t>(size) + 1);
        size = function(text.data(), text.size());
    }
    if (size < 0) {
        return pys::fail(PYS_ERR_ARGUMENT, "no such entry");
    }
    return pys::copy_text(text.data(), static_cast<size_t>(size), buffer, capacity, length);
}

} // namespace

int32_t pys_model_load(const char * path, const pys_model_params * params, pys_model ** model) {
    return pys::guarded([&]() -> int32_t {
        progress_relay relay{params->progress, params->progress_data, false};
        llama_model_params native = llama_model_default_params();
        native.n_gpu_layers = params->n_gpu_layers;
        native.main_gpu = params->main_gpu;
        native.load_mode = params->use_mmap != 0
                               ? (params->use_mlock != 0 ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP)
                               : (params->use_mlock != 0 ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE);
        native.check_tensors = params->check_tensors != 0;
        native.vocab_only = params->vocab_only != 0;
        native.use_extra_bufts = params->repack != 0 && !slower_when_repacked(path);
        native.load_mtp = params->next_n != 0;
        if (params->progress != nullptr) {
            native.progress_callback = on_progress;
            native.progress_callback_user_data = &relay;
        }
        llama_model * loaded = llama_model_load_from_file(path, native);
        if (loaded == nullptr) {
            return relay.stopped ? pys::fail(PYS_ERR_CANCELLED, "loading was cancelled")
                                 : pys::fail(PYS_ERR_MODEL_LOAD, "");
        }
        const std::string unusable = unusable_weight(loaded);
        if (!unusable.empty()) {
            llama_model_free(loaded);
            return pys::fail(PYS_ERR_MODEL_LOAD, unusable);
        }
        const auto goes_on = [&] { return params->progress == nullptr || on_progress(1.0F, &relay); };
        if (!pys::use_large_pages(loaded, params->large_page_bytes, goes_on)) {
            llama_model_free(loaded);
            return pys::fail(PYS_ERR_CANCELLED, "loading was cancelled");
        }
        const llama_vocab * vocab = llama_model_get_vocab(loaded);
        *model = new pys_model{loaded, vocab, llama_vocab_n_tokens(vocab)};
        return PYS_OK;
    });
}

void pys_model_free(pys_model * model) {
    pys::guarded([&]() -> int32_t {
        llama_model_free(model->model);
        delete model;
        return PYS_OK;
    });
}

int32_t pys_model_get_info(const pys_model * model, pys_model_info * info) {
    return pys::guarded([&]() -> int32_t {
        const llama_model * native = model->model;
        info->size_bytes = llama_model_size(native);
        info->n_params = llama_model_n_params(native);
        info->n_ctx_train = llama_model_n_ctx_train(native);
        info->n_embd = llama_model_n_embd(native);
        info->n_embd_inp = llama_model_n_embd_inp(native);
        info->n_embd_out = llama_model_n_embd_out(native);
        info->n_layer = llama_model_n_layer(native);
        info->n_layer_nextn = llama_model_n_layer_nextn(native);
        const bool has_layers = info->n_layer > 0; // not with vocab_only
        info->n_head = has_layers ? llama_model_n_head(native) : 0;
        info->n_head_kv = has_layers ? llama_model_n_head_kv(native) : 0;
        info->n_swa = llama_model_n_swa(native);
        info->has_encoder = llama_model_has_encoder(native) ? 1 : 0;
        info->has_decoder = llama_model_has_decoder(native) ? 1 : 0;
        info->is_recurrent = llama_model_is_recurrent(native) ? 1 : 0;
        info->is_hybrid = llama_model_is_hybrid(native) ? 1 : 0;
        info->is_diffusion = llama_model_is_diffusion(native) ? 1 : 0;
        info->selector_top_k = llama_model_dflash_selector_top_k(native);
        info->decoder_start_token = llama_model_decoder_start_token(native);
        return PYS_OK;
    });
}

int32_t pys_model_target_layers(const pys_model * model, int32_t * layers, int32_t capacity, int32_t * n_layers) {
    return pys::guarded([&]() -> int32_t {
        *n_layers = static_cast<int32_t>(llama_model_target_layer_ids_n(model->model));
        if (*n_layers > capacity) {
            return PYS_ERR_BUFFER;
        }
        std::copy_n(llama_model_target_layer_ids(model->model), *n_layers, layers);
        return PYS_OK;
    });
}

int32_t pys_model_has_tensor(const pys_model * model, const char * name, int32_t * result) {
    return pys::guarded([&]() -> int32_t {
        *result = model->model->get_tensor(name) != nullptr ? 1 : 0;
        return PYS_OK;
    });
}

int32_t pys_model_file_type(const pys_model * model, char * buffer, int32_t capacity, int32_t * length) {
    return pys::guarded([&]() -> int32_t {
        const char * name = llama_ftype_name(llama_model_ftype(model->model));
        return pys::copy_text(name, std::strlen(name), buffer, capacity, length);
    });
}

int32_t pys_model_chat_template(const pys_model * model, const char * name, char * buffer, int32_t capacity,
                                int32_t * length) {
    return pys::guarded([&]() -> int32_t {
        const char * text = llama_model_chat_template(model->model, name);
        if (text == nullptr) {
            *length = -1;
            return PYS_OK;
        }
        return pys::copy_text(text, std::strlen(text), buffer, capacity, length);
    });
}

int32_t pys_model_meta_count(const pys_model * model, int32_t * count) {
    return pys::guarded([&]() -> int32_t {
        *count = llama_model_meta_count(model->model);
        return PYS_OK;
    });
}

int32_t pys_model_meta_key(const pys_model * model, int32_t index, char * buffer, int32_t capacity, int32_t * length) {
    return pys::guarded([&]() -> int32_t {
        const auto read = [&](char * text, size_t size) {
            return llama_model_meta_key_by_index(model->model, index, text, size);
        };
        return text_from(read, buffer, capacity, length);
    });
}

int32_t pys_model_meta_value(const pys_model * model, int32_t index, char * buffer, int32_t capacity,
                             int32_t * length) {
    return pys::guarded([&]() -> int32_t {
        const auto read = [&](char * text, size_t size) {
            return llama_model_meta_val_str_by_index(model->model, index, text, size);
        };
        return text_from(read, buffer, capacity, length);
    });
}

int32_t pys_model_quantize(const char * source, const char * destination, int32_t file_type, int32_t n_threads,
                           int32_t allow_requantize, int32_t pure, const int32_t * prune_layers, int32_t n_prune) {
    return pys::guarded([&]() -> int32_t {
        std::vector<int32_t> layers(prune_layers, prune_layers + n_prune);
        layers.push_back(-1); // upstream's end mark
        llama_model_quantize_params params = llama_model_quantize_default_params();
        params.ftype = static_cast<llama_ftype>(file_type);
        params.nthread = n_threads;
        params.allow_requantize = allow_requantize != 0;
        params.pure = pure != 0;
        params.prune_layers = n_prune > 0 ? layers.data() : nullptr;
        if (llama_model_quantize(source, destination, &params) != 0) {
            return pys::fail(PYS_ERR_QUANTIZE, "");
        }
        return PYS_OK;
    });
}
