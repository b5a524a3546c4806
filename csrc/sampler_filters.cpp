// Filters: which candidates stay, and with what probability.

#include <algorithm>
#include <cmath>
#include <utility>

#include "sampler.hpp"

namespace {

using namespace pys; // candidates and what is done with them

// Locally typical sampling (Meister et al., 2022): the tokens whose surprise is closest to the expected one, as many
// as have more than p of the probability together.
void keep_typical(candidates & list, double p) {
    sort_best(list, list.size());
    weigh(list, 1.0);
    const double entropy = entropy_of(list);
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < list.size(); ++i) {
        order.emplace_back(std::abs(-std::log(list[i].prob) - entropy), i);
    }
    std::sort(order.begin(), order.end());
    candidates kept;
    double sum = 0.0;
    for (size_t i = 0; i < order.size() && sum <= p; ++i) {
        kept.push_back(list[order[i].second]);
        sum += kept.back().prob;
    }
    list = std::move(kept);
}

// Nucleus sampling (Holtzman et al., 2020): the most likely tokens that have p of the probability together.
void keep_top_p(candidates & list, double p) {
    weigh(list, 1.0);
    size_t n_sorted = std::min<size_t>(list.size(), 256); // hardly ever are more needed
    sort_best(list, n_sorted);
    double sum = 0.0;
    for (size_t i = 0; i < list.size(); ++i) {
        if (i == n_sorted) {
            n_sorted = list.size();
            std::sort(list.begin() + static_cast<std::ptrdiff_t>(i), list.end(), better);
        }
        sum += list[i].prob;
        if (sum >= p) {
            list.resize(i + 1);
        }
    }
}

void keep_min_p(candidates & list, double p) {
    const double limit = best_logit(list) + std::log(p);
    list.erase(std::remove_if(list.begin(), list.end(), [&](const candidate & each) { return each.logit < limit; }),
               list.end());
}

// The temperature follows the entropy, from temperature - range to temperature + range.
double temperature_for(candidates & list, const pys_sampler_params & params) {
    if (params.dynatemp_range == 0.0 || list.size() < 2) {
        return params.temperature;
    }
    weigh(list, 1.0);
    const double share = entropy_of(list) / std::log(static_cast<double>(list.size()));
    const double low = std::max(0.0, params.temperature - params.dynatemp_range);
    const double high = params.temperature + params.dynatemp_range;
    return low + (high - low) * std::pow(share, params.dynatemp_exponent);
}

// "Exclude top choices", by p-e-w, 2024: of the tokens with at least the threshold's probability only the least likely
// stays. Returns what is left, in the order of the list; it is empty when there are fewer than two such tokens.
candidates without_top_choices(candidates & list, double threshold) {
    weigh(list, 1.0);
    const candidate * last = nullptr;
    candidates rest;
    for (const candidate & each : list) {
        const bool is_choice = each.prob >= threshold;
        last = is_choice && (last == nullptr || better(*last, each)) ? &each : last;
    }
    for (const candidate & each : list) {
        if (each.prob < threshold || &each == last) {
            rest.push_back(each);
        }
    }
    return rest.size() < list.size() ? rest : candidates();
}

void apply_temperature_and_xtc(candidates & list, const pys_sampler_params & params) {
    candidates rest;
    if (params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5) {
        rest = without_top_choices(list, params.xtc_threshold);
    }
    weigh(list, temperature_for(list, params));
    if (rest.empty()) {
        return;
    }
    // Tossing a coin for XTC, then drawing, is the same as drawing from the mixture of the two distributions.
    weigh(rest, temperature_for(rest, params));
    auto left = rest.begin();
    for (candidate & each : list) {
        each.prob *= 1.0 - params.xtc_probability;
        if (left != rest.end() && left->token == each.token) {
            each.prob += params.xtc_probability * (left++)->prob;
        }
    }
}

// Mirostat 1 (Basu et al., 2021): as many tokens as, if probabilities fall as in Zipf's law, have the surprise mu.
size_t zipf_count(candidates & list, double mu, int32_t n_vocab) {
    const size_t n_fitted = std::min<size_t>(list.size(), 100);
    sort_best(list, n_fitted);
    double products = 0.0;
    double squares = 0.0;
    for (size_t i = 0; i + 1 < n_fitted && list[i + 1].prob > 0.0; ++i) {
        const double step = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
        products += step * std::log(list[i].prob / list[i + 1].prob);
        squares += step * step;
    }
    const double exponent = products / squares;
    const double above = exponent - 1.0;
    const double k = std::pow(above * std::exp2(mu) / -std::expm1(-above * std::log(n_vocab)), 1.0 / exponent);
    if (!(k >= 1.0)) { // also where too few tokens, or equal ones, give no exponent
        return 1;
    }
    return k < static_cast<double>(list.size()) ? static_cast<size_t>(k) : list.size();
}

} // namespace

void pys::list_candidates(const pys_sampler_params & params, const float * row, candidates & list) {
    const double cutoff = params.top_n_sigma > 0.0 ? sigma_cutoff(row, params.n_vocab, params.top_n_sigma) : no_chance;
    collect(row, params.n_vocab, cutoff, params.top_k, list);
    if (list.empty()) {
        return;
    }
    if (params.typical_p < 1.0) {
        keep_typical(list, params.typical_p);
    }
    if (params.top_p < 1.0) {
        keep_top_p(list, params.top_p);
    }
    if (params.min_p > 0.0) {
        keep_min_p(list, params.min_p);
    }
    apply_temperature_and_xtc(list, params);
}

void pys::list_unsurprising(const pys_sampler_params & params, double mu, const float * row, candidates & list) {
    collect(row, params.n_vocab, no_chance, 0, list);
    if (list.empty()) {
        return;
    }
    weigh(list, params.temperature);
    size_t n_kept = 0;
    if (params.mirostat == 1) {
        n_kept = zipf_count(list, mu, params.n_vocab);
    } else {
        const double least = std::exp2(-mu);
        const auto expected = [&](const candidate & each) { return each.prob >= least; };
        n_kept = static_cast<size_t>(std::count_if(list.begin(), list.end(), expected));
    }
    n_kept = std::max<size_t>(n_kept, 1);
    sort_best(list, n_kept);
    list.resize(n_kept);
    weigh(list, params.temperature);
}
