// What the files about samplers share.
//
// How a token is chosen from a row of logits:
//   1. the row is copied and changed where something asks for it     sampler.cpp, sampler_penalties.cpp
//   2. the tokens that are likely enough become candidates           sampler_candidates.cpp, sampler_filters.cpp
//   3. each candidate gets its probability                           sampler_filters.cpp
//   4. one number decides among them                                 sampler.cpp
// Steps 1 to 3 change nothing but scratch memory; pys_sampler_distribution stops there.

#pragma once

#include <limits>
#include <random>

#include "shim.hpp"

namespace pys {

struct candidate {
    int32_t token;
    float logit;
    double prob;
};
using candidates = std::vector<candidate>;

// Sequences of tokens that DRY does not look across: one of the heads, then the tail.
struct breaker {
    std::vector<bool> heads; // [n_vocab]
    std::vector<int32_t> tail;
};

struct sampler_state {
    std::mt19937 numbers;
    uint64_t n_draws = 0; // how many tokens they decided about
    double mu = 0.0;      // mirostat's bound on surprise, in bits
    size_t n_history = 0; // history only grows between two restores, so that a state is its length
};

} // namespace pys

struct pys_sampler {
    pys_sampler_params params;
    std::vector<std::pair<int32_t, float>> biases;
    std::vector<pys::breaker> breakers;
    std::vector<int32_t> history; // tokens taken in; empty when nothing looks back
    pys::sampler_state state;
    pys::sampler_state saved;

    // scratch
    std::vector<float> row;      // [n_vocab]
    std::vector<int32_t> counts; // [n_vocab], all 0 between two uses
    pys::candidates found;
    std::vector<int32_t> tokens; // what pys_sampler_distribution hands out
    std::vector<double> probs;
};

namespace pys {

// ---- sampler_penalties.cpp ----

bool has_penalties(const pys_sampler_params & params);
bool has_dry(const pys_sampler_params & params);
inline bool looks_back(const pys_sampler_params & params) { return has_penalties(params) || has_dry(params); }

// Lower the logits of recent tokens, and of those that would go on with a repetition; row is [n_vocab].
void apply_penalties(pys_sampler & sampler, float * row);
void apply_dry(pys_sampler & sampler, float * row);

// ---- sampler_candidates.cpp ----

constexpr float no_chance = -std::numeric_limits<float>::infinity();

// Sets the logits of the tokens that a mask does not allow to -inf; row is [n_vocab], mask as in pyspec_decl.h.
void ban_all_but(const uint32_t * mask, float * row, int32_t n_vocab);

// The larger logit, the lower id among equals.
bool better(const candidate & a, const candidate & b);
float best_logit(const candidates & list);

// Below this logit a token is further than n standard deviations from the best one (Tang et al., 2024).
double sigma_cutoff(const float * row, int32_t n_vocab, double n);

// Lists the tokens of a row with a logit of at least cutoff; only the k best, best first, when k > 0.
void collect(const float * row, int32_t n_vocab, double cutoff, int32_t k, candidates & list);

// Moves the k best to the front, best first.
void sort_best(candidates & list, size_t k);

// Gives each candidate its probability.
void weigh(candidates & list, double temperature);
double entropy_of(const candidates & list); // in nats, after weigh()

// ---- sampler_filters.cpp ----

// Lists the candidates of a row, [n_vocab], as params ask: with top-n-sigma, top-k, typical, top-p and min-p, and their
// probabilities with XTC and temperature. None when no logit is above -inf.
void list_candidates(const pys_sampler_params & params, const float * row, candidates & list);

// The same with mirostat's truncation; nothing but the temperature counts beside it.
void list_unsurprising(const pys_sampler_params & params, double mu, const float * row, candidates & list);

} // namespace pys
