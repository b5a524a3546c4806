// Logits rows of the last decode.

#include <algorithm>
#include <limits>
#include <vector>

#include "shim.hpp"

namespace {

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
    std::fill(best, best + lanes, -std::numeric_limits<float>::infinity());
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

int32_t best_token(const float * logits, int32_t n_vocab) {
    const float * end = logits + n_vocab;
    const float * found = std::find(logits, end, largest(logits, n_vocab));
    return found == end ? -1 : static_cast<int32_t>(found - logits);
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
