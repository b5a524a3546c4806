// Penalties: logits that depend on the tokens taken in.

#include <algorithm>
#include <cmath>
#include <utility>

#include "sampler.hpp"

namespace {

// Large enough to be last, small enough that a token which alone is allowed stays possible.
constexpr double largest_penalty = 1e30;

// The newest tokens, read backwards: back(0) is the last one.
struct window {
    const std::vector<int32_t> & history;
    int32_t length;

    window(const std::vector<int32_t> & taken, int32_t longest)
        : history(taken), length(static_cast<int32_t>(std::min(taken.size(), static_cast<size_t>(longest)))) {}

    int32_t back(int32_t i) const { return history[history.size() - 1 - static_cast<size_t>(i)]; }
};

// Whether a breaker ends right before the newest n tokens.
bool ends_before(const window & recent, int32_t n, const pys::breaker & breaker) {
    const auto n_tail = static_cast<int32_t>(breaker.tail.size());
    if (n + n_tail >= recent.length) {
        return false;
    }
    for (int32_t i = 0; i < n_tail; ++i) {
        if (recent.back(n + i) != breaker.tail[static_cast<size_t>(n_tail - 1 - i)]) {
            return false;
        }
    }
    return breaker.heads[static_cast<size_t>(recent.back(n + n_tail))];
}

int32_t length_since_breaker(const window & recent, const std::vector<pys::breaker> & breakers) {
    for (int32_t n = 0; n < recent.length; ++n) {
        for (const pys::breaker & breaker : breakers) {
            if (ends_before(recent, n, breaker)) {
                return n;
            }
        }
    }
    return recent.length;
}

// For each k: how many tokens, back from the k-th newest, equal the newest ones. It is the Z function of the window
// read backwards, in linear time. Example: for a b c a b it is - 0 0 2 0 ... at k = 3 the two tokens "a b" stand again.
std::vector<int32_t> repeated_lengths(const window & recent) {
    std::vector<int32_t> lengths(static_cast<size_t>(recent.length));
    int32_t begin = 0;
    int32_t end =
        0; // [begin, end) is the stretch, among those that equal the newest tokens, that reaches furthest back
    for (int32_t k = 1; k < recent.length; ++k) {
        int32_t length = k < end ? std::min(end - k, lengths[static_cast<size_t>(k - begin)]) : 0;
        while (k + length < recent.length && recent.back(length) == recent.back(k + length)) {
            ++length;
        }
        if (k + length > end) {
            begin = k;
            end = k + length;
        }
        lengths[static_cast<size_t>(k)] = length;
    }
    return lengths;
}

bool breaks_alone(const std::vector<pys::breaker> & breakers, int32_t token) {
    return std::any_of(breakers.begin(), breakers.end(), [&](const pys::breaker & breaker) {
        return breaker.tail.empty() && breaker.heads[static_cast<size_t>(token)];
    });
}

} // namespace

bool pys::has_penalties(const pys_sampler_params & params) {
    const bool off = params.repeat_penalty == 1.0 && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0;
    return !off && params.repeat_last_n > 0;
}

bool pys::has_dry(const pys_sampler_params & params) {
    return params.dry_multiplier > 0.0 && params.dry_penalty_last_n > 0;
}

void pys::apply_penalties(pys_sampler & sampler, float * row) {
    const pys_sampler_params & params = sampler.params;
    const window recent(sampler.history, params.repeat_last_n);
    for (int32_t i = 0; i < recent.length; ++i) {
        ++sampler.counts[static_cast<size_t>(recent.back(i))];
    }
    for (int32_t i = 0; i < recent.length; ++i) {
        const int32_t token = recent.back(i);
        const int32_t count = std::exchange(sampler.counts[static_cast<size_t>(token)], 0);
        if (count > 0) {
            // Dividing a negative logit would make the token more likely.
            const double scaled =
                row[token] > 0.0F ? row[token] / params.repeat_penalty : row[token] * params.repeat_penalty;
            row[token] = static_cast<float>(scaled - count * params.frequency_penalty - params.presence_penalty);
        }
    }
}

// "Don't repeat yourself", by p-e-w, 2024: a token that would make the newest n tokens stand there a second time, now
// one token longer, loses multiplier * base ^ (n - allowed length).
void pys::apply_dry(pys_sampler & sampler, float * row) {
    const pys_sampler_params & params = sampler.params;
    const window recent(sampler.history, params.dry_penalty_last_n);
    const int32_t limit = length_since_breaker(recent, sampler.breakers);
    if (recent.length <= params.dry_allowed_length || limit < params.dry_allowed_length) {
        return;
    }
    std::vector<int32_t> & longest = sampler.counts; // one more than the length, 0 where nothing repeats
    const std::vector<int32_t> lengths = repeated_lengths(recent);
    for (int32_t k = 1; k < recent.length; ++k) {
        const int32_t length = std::min(lengths[static_cast<size_t>(k)], limit);
        if (length >= params.dry_allowed_length) {
            int32_t & known = longest[static_cast<size_t>(recent.back(k - 1))];
            known = std::max(known, length + 1);
        }
    }
    for (int32_t k = 1; k < recent.length; ++k) {
        const int32_t token = recent.back(k - 1);
        const int32_t length = std::exchange(longest[static_cast<size_t>(token)], 0) - 1;
        if (length >= 0 && !breaks_alone(sampler.breakers, token)) {
            const double penalty =
                params.dry_multiplier * std::pow(params.dry_base, length - params.dry_allowed_length);
            row[token] -= static_cast<float>(std::min(penalty, largest_penalty));
        }
    }
}
