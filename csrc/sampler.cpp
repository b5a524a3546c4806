// Samplers: how a token is chosen from a row.

#include <algorithm>
#include <cmath>
#include <memory>

#include "sampler.hpp"

namespace {

constexpr const char * not_numbers = "the logits of this row are not numbers; the model or its quantisation is broken";
constexpr const char * all_banned =
    "every token of this row is banned; let logit_bias and the grammar or mask leave at least one";

constexpr unsigned long long numbers_per_draw = 2;

// In [0, 1), from two numbers of 32 bits: the same on every platform, and the same as llama.cpp draws.
double next_number(std::mt19937 & numbers) {
    const auto low = static_cast<double>(numbers());
    const auto high = static_cast<double>(numbers());
    return std::min((high * 0x1p32 + low) * 0x1p-64, std::nextafter(1.0, 0.0));
}

// The row with everything that changes logits; the row itself where nothing does.
const float * changed_row(pys_sampler & sampler, const float * row, const uint32_t * mask) {
    if (mask == nullptr && sampler.biases.empty() && !pys::looks_back(sampler.params)) {
        return row;
    }
    sampler.row.assign(row, row + sampler.params.n_vocab);
    float * changed = sampler.row.data();
    if (mask != nullptr) {
        pys::ban_all_but(mask, changed, sampler.params.n_vocab);
    }
    for (const auto & [token, bias] : sampler.biases) {
        changed[token] += bias;
    }
    if (pys::has_penalties(sampler.params)) {
        pys::apply_penalties(sampler, changed);
    }
    if (pys::has_dry(sampler.params)) {
        pys::apply_dry(sampler, changed);
    }
    return changed;
}

// Fills sampler.found with what the token is drawn from.
int32_t find_candidates(pys_sampler & sampler, pys_context * context, int32_t number, const uint32_t * mask) {
    const pys_sampler_params & params = sampler.params;
    const float * row = pys::logits_row(context, number);
    if (row == nullptr || params.n_vocab != context->n_vocab) {
        return pys::fail(PYS_ERR_ARGUMENT, row == nullptr ? "there is no such logits row"
                                                          : "the sampler was made for another size of vocabulary");
    }
    const float * changed = changed_row(sampler, row, mask);
    if (params.temperature == 0.0) {
        const int32_t best = pys::best_token(changed, params.n_vocab);
        sampler.found.assign(best < 0 ? 0 : 1, {best, 0.0F, 1.0});
    } else if (params.mirostat != 0) {
        pys::list_unsurprising(params, sampler.state.mu, changed, sampler.found);
    } else {
        pys::list_candidates(params, changed, sampler.found);
    }
    if (sampler.found.empty()) {
        return pys::fail(PYS_ERR_DECODE, pys::best_token(row, params.n_vocab) < 0 ? not_numbers : all_banned);
    }
    return PYS_OK;
}

// Spends one number of the sampler's, whatever there is to choose from.
const pys::candidate & draw(pys_sampler & sampler) {
    const double number = next_number(sampler.state.numbers);
    sampler.state.n_draws++;
    const pys::candidate * last = nullptr;
    double sum = 0.0;
    for (const pys::candidate & each : sampler.found) {
        sum += each.prob;
        last = each.prob > 0.0 ? &each : last;
        if (sum > number) {
            break;
        }
    }
    return *last;
}

void take_in(pys_sampler & sampler, int32_t token) {
    if (pys::looks_back(sampler.params)) {
        sampler.history.push_back(token);
    }
}

bool outside(const pys_sampler * sampler, const int32_t * tokens, int32_t n) {
    return std::any_of(tokens, tokens + n,
                       [&](int32_t token) { return token < 0 || token >= sampler->params.n_vocab; });
}

} // namespace

int32_t pys_sampler_create(const pys_sampler_params * params, pys_sampler ** sampler) {
    return pys::guarded([&]() -> int32_t {
        auto handle = std::make_unique<pys_sampler>();
        handle->params = *params;
        handle->counts.resize(pys::looks_back(*params) ? static_cast<size_t>(params->n_vocab) : 0);
        handle->state.numbers.seed(params->seed);
        handle->state.mu = 2.0 * params->mirostat_ent;
        *sampler = handle.release();
        return PYS_OK;
    });
}

void pys_sampler_free(pys_sampler * sampler) {
    pys::guarded([&]() -> int32_t {
        delete sampler;
        return PYS_OK;
    });
}

int32_t pys_sampler_add_bias(pys_sampler * sampler, int32_t token, double bias) {
    return pys::guarded([&]() -> int32_t {
        if (outside(sampler, &token, 1)) {
            return pys::fail(PYS_ERR_ARGUMENT, "a bias is outside the vocabulary");
        }
        sampler->biases.emplace_back(token, static_cast<float>(bias));
        return PYS_OK;
    });
}

int32_t pys_sampler_add_breaker(pys_sampler * sampler, const int32_t * heads, int32_t n_heads, const int32_t * tail,
                                int32_t n_tail) {
    return pys::guarded([&]() -> int32_t {
        if (outside(sampler, heads, n_heads) || outside(sampler, tail, n_tail)) {
            return pys::fail(PYS_ERR_ARGUMENT, "a sequence breaker is outside the vocabulary");
        }
        std::vector<bool> is_head(static_cast<size_t>(sampler->params.n_vocab));
        std::for_each(heads, heads + n_heads, [&](int32_t token) { is_head[static_cast<size_t>(token)] = true; });
        sampler->breakers.push_back({std::move(is_head), std::vector<int32_t>(tail, tail + n_tail)});
        return PYS_OK;
    });
}

int32_t pys_sampler_sample(pys_sampler * sampler, pys_context * context, int32_t row, const uint32_t * mask,
                           int32_t * token) {
    return pys::guarded([&]() -> int32_t {
        const int32_t status = find_candidates(*sampler, context, row, mask);
        if (status != PYS_OK) {
            return status;
        }
        const pys_sampler_params & params = sampler->params;
        const pys::candidate & chosen = params.temperature == 0.0 ? sampler->found.front() : draw(*sampler);
        if (params.mirostat != 0) {
            sampler->state.mu -= params.mirostat_lr * (-std::log2(chosen.prob) - params.mirostat_ent);
        }
        take_in(*sampler, chosen.token);
        *token = chosen.token;
        return PYS_OK;
    });
}

int32_t pys_sampler_distribution(pys_sampler * sampler, pys_context * context, int32_t row, const uint32_t * mask,
                                 const int32_t ** tokens, const double ** probs, int32_t * n) {
    return pys::guarded([&]() -> int32_t {
        const int32_t status = find_candidates(*sampler, context, row, mask);
        if (status != PYS_OK) {
            return status;
        }
        sampler->tokens.clear();
        sampler->probs.clear();
        for (const pys::candidate & each : sampler->found) {
            if (each.prob > 0.0) {
                sampler->tokens.push_back(each.token);
                sampler->probs.push_back(each.prob);
            }
        }
        *tokens = sampler->tokens.data();
        *probs = sampler->probs.data();
        *n = static_cast<int32_t>(sampler->tokens.size());
        return PYS_OK;
    });
}

int32_t pys_sampler_accept(pys_sampler * sampler, int32_t token) {
    return pys::guarded([&]() -> int32_t {
        if (outside(sampler, &token, 1)) {
            return pys::fail(PYS_ERR_ARGUMENT, "a token is outside the vocabulary");
        }
        take_in(*sampler, token);
        return PYS_OK;
    });
}

int32_t pys_sampler_progress(const pys_sampler * sampler, uint64_t * n_draws, double * mu) {
    *n_draws = sampler->state.n_draws;
    *mu = sampler->state.mu;
    return PYS_OK;
}

int32_t pys_sampler_resume(pys_sampler * sampler, uint64_t n_draws, double mu) {
    return pys::guarded([&]() -> int32_t {
        sampler->state.numbers.seed(sampler->params.seed);
        sampler->state.numbers.discard(numbers_per_draw * n_draws);
        sampler->state.n_draws = n_draws;
        sampler->state.mu = mu;
        return PYS_OK;
    });
}

int32_t pys_sampler_save(pys_sampler * sampler) {
    return pys::guarded([&]() -> int32_t {
        sampler->state.n_history = sampler->history.size();
        sampler->saved = sampler->state;
        return PYS_OK;
    });
}

int32_t pys_sampler_restore(pys_sampler * sampler) {
    return pys::guarded([&]() -> int32_t {
        sampler->state = sampler->saved;
        sampler->history.resize(sampler->saved.n_history);
        return PYS_OK;
    });
}
