// Candidates: the tokens of a row that may be drawn. Logits of -inf and NaN never may; +inf, which only a broken model
// gives, takes everything.

#include <algorithm>
#include <cmath>

#include "sampler.hpp"

bool pys::better(const candidate & a, const candidate & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

void pys::ban_all_but(const uint32_t * mask, float * row, int32_t n_vocab) {
    for (int32_t first = 0; first < n_vocab; first += 32) {
        const uint32_t word = mask[first / 32];
        const int32_t end = word == ~0U ? first : std::min(first + 32, n_vocab);
        for (int32_t token = first; token < end; ++token) {
            row[token] = (word >> (token - first) & 1U) != 0 ? row[token] : no_chance;
        }
    }
}

double pys::sigma_cutoff(const float * row, int32_t n_vocab, double n) {
    double best = no_chance;
    double sum = 0.0;
    int32_t count = 0;
    for (int32_t token = 0; token < n_vocab; ++token) {
        if (row[token] > no_chance) {
            best = std::max(best, static_cast<double>(row[token]));
            sum += row[token];
            ++count;
        }
    }
    const double mean = sum / std::max(count, 1);
    double squares = 0.0;
    for (int32_t token = 0; token < n_vocab; ++token) {
        if (row[token] > no_chance) {
            squares += (row[token] - mean) * (row[token] - mean);
        }
    }
    return best - n * std::sqrt(squares / std::max(count, 1));
}

void pys::collect(const float * row, int32_t n_vocab, double cutoff, int32_t k, candidates & list) {
    list.clear();
    const auto room = static_cast<size_t>(k > 0 ? std::min(k, n_vocab) : n_vocab);
    const bool chosen = k > 0 && k < n_vocab;
    float floor = no_chance; // once the list is full: the worst logit in it, which a later token must exceed
    for (int32_t token = 0; token < n_vocab; ++token) {
        const float logit = row[token];
        if (!(logit > floor) || logit < cutoff) {
            continue;
        }
        if (list.size() == room) {
            std::pop_heap(list.begin(), list.end(), better);
            list.back() = {token, logit, 0.0};
            std::push_heap(list.begin(), list.end(), better);
        } else {
            list.push_back({token, logit, 0.0});
            if (!chosen || list.size() < room) {
                continue;
            }
            std::make_heap(list.begin(), list.end(), better);
        }
        floor = list.front().logit;
    }
    if (k > 0) {
        std::sort(list.begin(), list.end(), better);
    }
}

float pys::best_logit(const candidates & list) {
    float best = no_chance;
    for (const candidate & each : list) {
        best = std::max(best, each.logit);
    }
    return best;
}

void pys::weigh(candidates & list, double temperature) {
    const float best = best_logit(list);
    double sum = 0.0;
    for (candidate & each : list) {
        // Equal to the best even where it is +inf, and where the temperature is 0.
        each.prob = each.logit == best ? 1.0 : std::exp((static_cast<double>(each.logit) - best) / temperature);
        sum += each.prob;
    }
    for (candidate & each : list) {
        each.prob *= 1.0 / sum;
    }
}

double pys::entropy_of(const candidates & list) {
    double entropy = 0.0;
    for (const candidate & each : list) {
        entropy -= each.prob > 0.0 ? each.prob * std::log(each.prob) : 0.0;
    }
    return entropy;
}

void pys::sort_best(candidates & list, size_t k) {
    if (k * 16 < list.size()) {
        std::partial_sort(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(k), list.end(), better);
    } else {
        std::sort(list.begin(), list.end(), better);
    }
}
