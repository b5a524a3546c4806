// Logits rows of the last decode.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shim.hpp"

namespace {

constexpr float no_chance = -std::numeric_limits<float>::infinity();

const float * row_of(pys_context * context, int32_t row) {
    if (row < 0 || row >= context->n_rows) {
        throw std::out_of_range("no such logits row");
    }
    return llama_get_logits(context->ctx) + static_cast<size_t>(row) * static_cast<size_t>(context->n_vocab);
}

// The largest value. Sixteen running maxima keep the compiler's vector registers busy; std::max_element is
// ten times slower, because each step waits for the one before.
float largest(const float * values, int32_t n) {
    constexpr int32_t lanes = 16;
    float best[lanes];
    std::fill(best, best + lanes, no_chance);
    int32_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        for (int32_t lane = 0; lane < lanes; ++lane) {
            best[lane] = values[i + lane] > best[lane] ? values[i + lane] : best[lane];
        }
    }
    for (; i < n; ++i) {
        best[0] = values[i] > best[0] ? values[i] : best[0];
    }
    return *std::max_element(best, best + lanes);
}

} // namespace

namespace pys {

const float * logits_row(pys_context * context, int32_t row) {
    // Where the device selects tokens there are no rows.
    const bool exists = row >= 0 && row < context->n_rows && context->selectors.empty();
    return exists ? row_of(context, row) : nullptr;
}

int32_t best_token(const float * logits, int32_t n_vocab) {
    const float best = largest(logits, n_vocab);
    return best > no_chance ? static_cast<int32_t>(std::find(logits, logits + n_vocab, best) - logits) : -1;
}

} // namespace pys

int32_t pys_context_logits(pys_context * context, const float ** rows, int32_t * n_rows) {
    return pys::guarded([&]() -> int32_t {
        *n_rows = context->n_rows;
        *rows = context->n_rows > 0 ? llama_get_logits(context->ctx) : nullptr;
        return PYS_OK;
    });
}

namespace {

// A heap of the k best so far: its top is the worst of them. Values by number, [n].
template <typename Better> std::vector<int32_t> best_numbers(int32_t n, int32_t k, Better && better) {
    std::vector<int32_t> best(static_cast<size_t>(std::min(k, n)));
    for (size_t i = 0; i < best.size(); ++i) {
        best[i] = static_cast<int32_t>(i);
    }
    std::make_heap(best.begin(), best.end(), better);
    for (auto number = static_cast<int32_t>(best.size()); number < n; ++number) {
        if (better(number, best.front())) {
            std::pop_heap(best.begin(), best.end(), better);
            best.back() = number;
            std::push_heap(best.begin(), best.end(), better);
        }
    }
    std::sort_heap(best.begin(), best.end(), better);
    return best;
}

} // namespace

int32_t pys::top_k(pys_context * context, int32_t row, int32_t k, int32_t * tokens, float * logits) {
    const int32_t from_end = row - context->n_rows; // counted from the end, whatever entries asked for none
    const uint32_t n_selected =
        context->selectors.empty() ? 0 : llama_get_sampled_candidates_count_ith(context->ctx, from_end);
    const llama_token * ids = n_selected > 0 ? llama_get_sampled_candidates_ith(context->ctx, from_end) : nullptr;
    const float * values = n_selected > 0 ? llama_get_sampled_logits_ith(context->ctx, from_end) : row_of(context, row);
    const int32_t n = n_selected > 0 ? static_cast<int32_t>(n_selected) : context->n_vocab;
    const auto better = [&](int32_t a, int32_t b) {
        const bool first = ids == nullptr ? a < b : ids[a] < ids[b];
        return values[a] > values[b] || (values[a] == values[b] && first);
    };
    const std::vector<int32_t> best = best_numbers(n, k, better);
    for (size_t i = 0; i < best.size(); ++i) {
        tokens[i] = ids == nullptr ? best[i] : ids[best[i]];
        logits[i] = values[best[i]];
    }
    return static_cast<int32_t>(best.size());
}

int32_t pys_context_top_k(pys_context * context, int32_t row, int32_t k, int32_t * tokens, float * logits,
                          int32_t * n_found) {
    return pys::guarded([&]() -> int32_t {
        if (row < 0 || row >= context->n_rows) {
            return pys::fail(PYS_ERR_ARGUMENT, "no such logits row");
        }
        *n_found = pys::top_k(context, row, k, tokens, logits);
        return PYS_OK;
    });
}

int32_t pys_context_logprobs(pys_context * context, int32_t row, const int32_t * tokens, int32_t n, double * logprobs) {
    return pys::guarded([&]() -> int32_t {
        const float * logits = pys::logits_row(context, row);
        if (logits == nullptr) {
            return pys::fail(PYS_ERR_ARGUMENT, "no such logits row");
        }
        const float best = largest(logits, context->n_vocab);
        if (!(best > no_chance)) {
            return pys::fail(PYS_ERR_DECODE, "its logits are not numbers; the model or its quantisation is broken");
        }
        // Equal to the best even where it is +inf; what is not a number has no probability.
        const auto below = [&](float logit) -> double {
            return logit == best ? 0.0 : logit > no_chance ? static_cast<double>(logit) - best : no_chance;
        };
        double sum = 0.0;
        for (int32_t token = 0; token < context->n_vocab; ++token) {
            sum += std::exp(static_cast<float>(below(logits[token])));
        }
        for (int32_t i = 0; i < n; ++i) {
            const bool known = tokens[i] >= 0 && tokens[i] < context->n_vocab;
            logprobs[i] = (known ? below(logits[tokens[i]]) : no_chance) - std::log(sum);
        }
        return PYS_OK;
    });
}

int32_t pys_context_best_allowed(pys_context * context, int32_t row, const uint32_t * mask, int32_t * token) {
    return pys::guarded([&]() -> int32_t {
        const float * logits = pys::logits_row(context, row);
        if (logits == nullptr) {
            return pys::fail(PYS_ERR_ARGUMENT, "no such logits row");
        }
        float best = no_chance;
        *token = -1;
        for (int32_t i = 0; i < context->n_vocab; ++i) {
            if (logits[i] > best && (mask[i / 32] >> (i % 32) & 1U) != 0) {
                best = logits[i];
                *token = i;
            }
        }
        return PYS_OK;
    });
}
