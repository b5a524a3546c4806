// Sampler chains: llama.cpp's own samplers, in the order Python adds them.

#include <memory>
#include <vector>

#include "shim.hpp"

namespace {

int32_t add(pys_sampler * sampler, llama_sampler * link) {
    if (link == nullptr) {
        return pys::fail(PYS_ERR_ARGUMENT, "llama.cpp refused the sampler's parameters");
    }
    llama_sampler_chain_add(sampler->chain, link); // owns it from here on
    return PYS_OK;
}

template <typename Make> int32_t add_link(pys_sampler * sampler, Make && make) {
    return pys::guarded([&]() -> int32_t { return add(sampler, make()); });
}

} // namespace

int32_t pys_sampler_create(pys_sampler ** sampler) {
    return pys::guarded([&]() -> int32_t {
        llama_sampler_chain_params params = llama_sampler_chain_default_params();
        params.no_perf = true;
        auto handle = std::make_unique<pys_sampler>();
        handle->chain = llama_sampler_chain_init(params);
        *sampler = handle.release();
        return PYS_OK;
    });
}

void pys_sampler_free(pys_sampler * sampler) {
    pys::guarded([&]() -> int32_t {
        llama_sampler_free(sampler->chain);
        delete sampler;
        return PYS_OK;
    });
}

int32_t pys_sampler_add_penalties(pys_sampler * sampler, int32_t n_vocab, int32_t last_n, float repeat, float frequency,
                                  float presence) {
    return add_link(sampler,
                    [&] { return llama_sampler_init_penalties(n_vocab, last_n, repeat, frequency, presence); });
}

int32_t pys_sampler_add_logit_bias(pys_sampler * sampler, int32_t n_vocab, const int32_t * tokens, const float * biases,
                                   int32_t n) {
    return add_link(sampler, [&] {
        std::vector<llama_logit_bias> list;
        for (int32_t i = 0; i < n; ++i) {
            list.push_back({tokens[i], biases[i]});
        }
        return llama_sampler_init_logit_bias(n_vocab, n, list.data());
    });
}

int32_t pys_sampler_add_top_k(pys_sampler * sampler, int32_t k) {
    return add_link(sampler, [&] { return llama_sampler_init_top_k(k); });
}

int32_t pys_sampler_add_top_p(pys_sampler * sampler, float p) {
    return add_link(sampler, [&] { return llama_sampler_init_top_p(p, 1); });
}

int32_t pys_sampler_add_min_p(pys_sampler * sampler, float p) {
    return add_link(sampler, [&] { return llama_sampler_init_min_p(p, 1); });
}

int32_t pys_sampler_add_typical(pys_sampler * sampler, float p) {
    return add_link(sampler, [&] { return llama_sampler_init_typical(p, 1); });
}

int32_t pys_sampler_add_temperature(pys_sampler * sampler, float temperature) {
    return add_link(sampler, [&] { return llama_sampler_init_temp(temperature); });
}

int32_t pys_sampler_add_greedy(pys_sampler * sampler) {
    return add_link(sampler, [] { return llama_sampler_init_greedy(); });
}

int32_t pys_sampler_add_distribution(pys_sampler * sampler, uint32_t seed) {
    return add_link(sampler, [&] { return llama_sampler_init_dist(seed); });
}

int32_t pys_sampler_sample(pys_sampler * sampler, pys_context * context, int32_t row, int32_t * token) {
    return pys::guarded([&]() -> int32_t {
        if (row < 0 || row >= context->n_rows) {
            return pys::fail(PYS_ERR_ARGUMENT, "no such logits row");
        }
        // Counted from the end, an output row is found whatever entries of the batch asked for none.
        *token = llama_sampler_sample(sampler->chain, context->ctx, row - context->n_rows);
        return PYS_OK;
    });
}

int32_t pys_sampler_accept(pys_sampler * sampler, int32_t token) {
    return pys::guarded([&]() -> int32_t {
        llama_sampler_accept(sampler->chain, token);
        return PYS_OK;
    });
}

int32_t pys_sampler_reset(pys_sampler * sampler) {
    return pys::guarded([&]() -> int32_t {
        llama_sampler_reset(sampler->chain);
        return PYS_OK;
    });
}

int32_t pys_sampler_clone(const pys_sampler * sampler, pys_sampler ** copy) {
    return pys::guarded([&]() -> int32_t {
        auto handle = std::make_unique<pys_sampler>();
        handle->chain = llama_sampler_clone(sampler->chain);
        *copy = handle.release();
        return PYS_OK;
    });
}

int32_t pys_sampler_assign(pys_sampler * sampler, const pys_sampler * source) {
    return pys::guarded([&]() -> int32_t {
        llama_sampler_copy(source->chain, sampler->chain);
        return PYS_OK;
    });
}
