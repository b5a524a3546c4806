"""The mutations: for every part of what decides about drafts, the faults that are easiest to make there.

A mutation is chosen because it leaves a program that runs, and mostly one whose output looks right. Where a rule may
be wrong in both directions, the mutation is the one that keeps the output plausible.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault.

    Attributes:
        name: What it is called in the list of tests.
        file: Under ``pyspec``.
        old: Text that stands there exactly once.
        new: What takes its place.
        fault: What is wrong then.
        caught_by: Tests under ``tests``, as pytest names them; each must fail.
    """

    name: str
    file: str
    old: str
    new: str
    fault: str
    caught_by: tuple[str, ...]

    @property
    def module(self) -> str:
        """Name of the mutated module."""
        return "pyspec." + self.file.removesuffix(".py").replace("/", ".")


MUTATIONS = (
    # What all rules share, and the rule match
    Mutation(
        "draft-not-compared",
        "speculation/accept.py",
        " or token != drafted[i]:",
        ":",
        "a draft token stands whatever the target chose",
        ("speculation/test_round.py::test_a_round_as_its_docstring_shows_it",),
    ),
    Mutation(
        "end-not-the-end",
        "speculation/accept.py",
        " or finish is not None or token",
        " or token",
        "tokens behind an end token are decided too",
        ("speculation/test_round.py::test_nothing_after_an_end_token_is_accepted_or_kept",),
    ),
    Mutation(
        "no-bonus",
        "speculation/accept.py",
        "i == len(drafted)",
        "i + 1 >= len(drafted)",
        "no token is drawn from the last row",
        ("speculation/test_round.py::test_sources_and_rollback_of_every_sort_of_round",),
    ),
    Mutation(
        "always-first-row",
        "speculation/accept.py",
        "token = choose(i)",
        "token = choose(0)",
        "every token is drawn from the first row",
        ("speculation/test_round.py::test_a_verdict_holds_what_the_target_chose",),
    ),
    Mutation(
        "choice-not-taken-in",
        "speculation/accept.py",
        "        sampler.accept(token)\n",
        "",
        "the sampler does not hear what a rule chose",
        ("speculation/test_rules.py::test_nothing_behind_an_end_token_is_decided",),
    ),
    Mutation(
        "impossible-tokens-kept",
        "speculation/accept.py",
        "candidates.probs > 0.0",
        "candidates.probs >= 0.0",
        "rules are given tokens of probability 0",
        ("speculation/test_rules.py::test_a_token_that_the_target_forbids_never_stands",),
    ),
    # The rule rejection
    Mutation(
        "accepts-by-target-alone",
        "speculation/rejection.py",
        "min(1.0, _prob(target, token) / draft_prob)",
        "_prob(target, token)",
        "a drawn token stands as if the target had to draw it too",
        ("speculation/test_exactness.py::test_acceptance_and_residual_are_those_of_the_papers",),
    ),
    Mutation(
        "recovers-from-target",
        "speculation/rejection.py",
        "target.probs - by_token[target.tokens]",
        "target.probs",
        "a rejected token's place is taken by a draw from the whole target",
        ("speculation/test_exactness.py::test_acceptance_and_residual_are_those_of_the_papers",),
    ),
    Mutation(
        "one-number-decides-twice",
        "speculation/rejection.py",
        "Stream.RESIDUAL",
        "Stream.ACCEPT",
        "the number that rejected also recovers",
        ("speculation/test_rules.py::test_every_random_number_is_used_for_one_decision",),
    ),
    Mutation(
        "rejection-position-stands",
        "speculation/rejection.py",
        "draft, i, seed, first + i)",
        "draft, i, seed, first)",
        "all tokens of a round share their numbers",
        ("speculation/test_rules.py::test_every_random_number_is_used_for_one_decision",),
    ),
    # The rule coupled
    Mutation(
        "noise-on-probabilities",
        "speculation/coupled.py",
        "np.log(possible.probs)",
        "possible.probs",
        "noise is added to probabilities, not to their logarithms",
        ("speculation/test_exactness.py::test_coupled_draws_between_two_tokens_are_exact",),
    ),
    Mutation(
        "coupled-position-stands",
        "speculation/coupled.py",
        "seed, first + i, self._noise",
        "seed, first, self._noise",
        "all tokens of a round share their noise",
        ("speculation/test_exactness.py::test_coupled_output_depends_on_seed_position_and_row_only",),
    ),
    Mutation(
        "coupled-without-seed",
        "speculation/coupled.py",
        "sequence.seed or 0",
        "0",
        "every request has the same noise",
        ("speculation/test_rules.py::test_a_draft_model_that_is_the_target_is_accepted_whole_when_coupled",),
    ),
    # The rule synthetic
    Mutation(
        "rates-of-those-that-stood",
        "speculation/synthetic.py",
        "rate / last if last > 0.0 else 0.0",
        "rate",
        "rates are applied to what the rates before them let through",
        ("speculation/test_rules.py::test_synthetic_rates_are_those_of_all_drafts",),
    ),
    Mutation(
        "synthetic-end-accepted",
        "speculation/synthetic.py",
        "refused or sequence.ending.is_end(token)",
        "refused",
        "a drafted end token ends the sequence",
        ("speculation/test_rules.py::test_synthetic_never_accepts_an_end_token",),
    ),
    Mutation(
        "synthetic-passes-as-valid",
        "speculation/synthetic.py",
        "valid = False",
        "valid = True",
        "output of a benchmark is not marked",
        ("speculation/test_rules.py::test_rules_by_name",),
    ),
    # Random numbers
    Mutation(
        "half-the-range",
        "speculation/noise.py",
        ">> 11) * 2.0**-53",
        ">> 11) * 2.0**-54",
        "numbers end at 1/2",
        ("speculation/test_noise.py::test_numbers_are_uniform_over_positions[0-1]",),
    ),
    Mutation(
        "one-stream",
        "speculation/noise.py",
        " ^ stream)",
        ")",
        "a draft token and its acceptance share a number",
        ("speculation/test_noise.py::test_streams_seeds_and_positions_are_independent",),
    ),
    Mutation(
        "neighbours-alike",
        "speculation/noise.py",
        "+ position * _STEP",
        "+ (position >> 1) * _STEP",
        "two neighbouring positions share a number",
        ("speculation/test_noise.py::test_each_bit_of_seed_and_position_changes_half_of_the_number",),
    ),
    Mutation(
        "exponential-noise",
        "speculation/noise.py",
        "-np.log(-np.log(numbers))",
        "-np.log(numbers)",
        "noise is exponential instead of Gumbel",
        ("speculation/test_noise.py::test_the_vectorised_noise_is_the_scalar_definition",),
    ),
    Mutation(
        "other-noise-in-arrays",
        "speculation/noise.py",
        "values >> np.uint64(27)",
        "values >> np.uint64(28)",
        "noise is random, but not the defined one",
        ("speculation/test_noise.py::test_the_vectorised_noise_is_the_scalar_definition",),
    ),
    # When a generation ends
    Mutation(
        "end-token-passed-over",
        "speculation/ending.py",
        "        if token in self._eog:\n            return Finish.EOG\n",
        "",
        "an end token ends nothing",
        ("speculation/test_ending.py::test_an_end_token_has_no_text_and_wins_over_the_length",),
    ),
    Mutation(
        "stop-across-tokens-missed",
        "speculation/ending.py",
        "max(0, before - len(stop) + 1)",
        "before",
        "a stop string that spans tokens is not seen",
        ("speculation/test_round.py::test_a_stop_string_may_span_rounds",),
    ),
    Mutation(
        "one-token-too-many",
        "speculation/ending.py",
        "len(self._marks) >= self._max_tokens",
        "len(self._marks) > self._max_tokens",
        "max_tokens is passed by one",
        ("speculation/test_ending.py::test_counts_to_the_last_token",),
    ),
    Mutation(
        "cut-at-a-later-stop",
        "speculation/ending.py",
        "self.cut = min(found)",
        "self.cut = max(found)",
        "text is cut at the last stop string, not the first",
        ("speculation/test_ending.py::test_the_text_is_cut_before_the_first_stop_string",),
    ),
    Mutation(
        "stop-outlives-undoing",
        "speculation/ending.py",
        "            self.cut = None\n",
        "",
        "text stays cut by a stop string of an undone round",
        ("speculation/test_ending.py::test_rewinding_forgets_tokens_text_and_cut",),
    ),
    # How a draft model's tokens are drawn
    Mutation(
        "drawn-at-another-temperature",
        "drafters/choosing.py",
        "shares(logits[legal], request.temperature)",
        "shares(logits[legal])",
        "drafts are drawn at temperature 1, whatever the target's",
        ("drafters/test_choosing.py::test_coupled_takes_the_best_of_log_probability_and_the_rules_noise",),
    ),
    Mutation(
        "draft-takes-the-targets-number",
        "drafters/choosing.py",
        "Stream.DRAFT",
        "Stream.CHOICE",
        "the number that draws a draft token also decides about it",
        ("drafters/test_choosing.py::test_probabilistic_takes_the_token_that_the_drafts_number_falls_on",),
    ),
    Mutation(
        "draw-decides-about-the-draft",
        "drafters/choosing.py",
        "float(shares(logits)[best])",
        "float(shares(logits)[position % len(logits)])",
        "whether a token is drafted depends on more than its row",
        ("drafters/test_choosing.py::test_drawing_goes_through_the_candidates_and_stops_at_a_low_share",),
    ),
    # What is counted
    Mutation(
        "rejected-counts-as-accepted",
        "speculation/stats.py",
        "+= i < n_accepted",
        "+= i <= n_accepted",
        "rates per position count the token that was rejected",
        ("speculation/test_stats.py::test_per_position_counts_have_the_drafts_that_were_that_long_as_denominator",),
    ),
    Mutation(
        "every-accepted-token-forced",
        "speculation/round.py",
        "self.n_accepted if self.proposal.drafter == GRAMMAR else 0",
        "self.n_accepted",
        "what drafters proposed counts as forced by a grammar",
        ("speculation/test_stats.py::test_what_a_grammar_forces_is_told_from_what_drafters_propose",),
    ),
    # How much may be drafted, and what of it a grammar lets through
    Mutation(
        "drafts-behind-max-tokens",
        "speculation/propose.py",
        "sequence.ending.remaining - 1",
        "sequence.ending.remaining",
        "a draft is longer than what may still be emitted",
        ("speculation/test_round.py::test_the_budget_is_the_smallest_limit",),
    ),
    Mutation(
        "draft-not-cut",
        "speculation/propose.py",
        "if n_tokens >= len(tokens):",
        "if n_tokens >= 0:",
        "an illegal draft token is verified",
        ("speculation/test_propose.py::test_a_draft_is_cut_at_the_first_illegal_token",),
    ),
    Mutation(
        "drawn-draft-cut-too-short",
        "speculation/propose.py",
        " + drawn",
        "",
        "a drawn draft is dropped because of what was drawn",
        ("speculation/test_propose.py::test_a_draft_is_cut_at_the_first_illegal_token",),
    ),
    # Rows and memory
    Mutation(
        "rows-of-the-neighbour",
        "speculation/verify.py",
        ".split(counts)",
        ".split(counts)[:1] * len(shares)",
        "every sequence reads the rows of the first one",
        ("speculation/test_rollback.py::test_every_kind_of_memory_gives_plain_output",),
    ),
    Mutation(
        "one-rejected-token-kept",
        "speculation/rollback.py",
        "outcome.position + 1 + outcome.n_accepted",
        "outcome.position + 2 + outcome.n_accepted",
        "a rejected token stays in memory",
        ("speculation/test_round.py::test_a_round_as_its_docstring_shows_it",),
    ),
    Mutation(
        "bound-ignored",
        "speculation/rollback.py",
        " and n_dropped <= memory.bound",
        "",
        "more is dropped than there are snapshots",
        ("speculation/test_rollback.py::test_every_kind_of_memory_gives_plain_output",),
    ),
    Mutation(
        "sampler-not-restored",
        "speculation/rollback.py",
        "        sequence.sampler.restore(self.sampler)\n",
        "",
        "an undone round leaves its draws in the sampler",
        ("speculation/test_rollback.py::test_leaving_without_keep_undoes_everything",),
    ),
    Mutation(
        "drafter-not-told",
        "speculation/rollback.py",
        "[before.put_back, functools.partial(self._proposer.discard, before.sequence.seq_id)]",
        "[before.put_back]",
        "a draft model keeps what an undone round drafted",
        ("speculation/test_rollback.py::test_a_round_that_raises_leaves_the_committed_length[InjectedError]",),
    ),
)
