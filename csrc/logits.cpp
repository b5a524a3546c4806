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

int32_t pys_context_top_k(pys_context * context, int32_t row, int32_t k, int32_t * tokens, float * logits) {
    return pys::guarded([&]() -> int32_t {
        const float * values = row_of(context, row);
        // A heap of the k best so far: its top is the worst of them.
        const auto better = [values](int32_t a, int32_t b) {
            return values[a] > values[b] || (values[a] == values[b] && a < b);
        };
        std::vector<int32_t> best(static_cast<size_t>(std::min(k, context->n_vocab)));
        for (size_t i = 0; i < best.size(); ++i) {
            best[i] = static_cast<int32_t>(i);
        }
        std::make_heap(best.begin(), best.end(), better);
        for (auto id = static_cast<int32_t>(best.size()); id < context->n_vocab; ++id) {
            if (better(id, best.front())) {
                std::pop_heap(best.begin(), best.end(), better);
                best.back() = id;
                std::push_heap(best.begin(), best.end(), better);
            }
        }
        std::sort_heap(best.begin(), best.end(), better);
        for (size_t i = 0; i < best.size(); ++i) {
            tokens[i] = best[i];
            logits[i] = values[best[i]];
        }
        return PYS_OK;
    });
}
