"""Mutations of the controller, of what it knows, and of what it remembers; see ``mutations.py``."""

from __future__ import annotations

from tests.mutations.mutations import Mutation

CHOICES = (
    Mutation(
        "drawn-draft-cut",
        "drafters/market.py",
        "len(only.draft.tokens) if only.drawn else only.plan.length",
        "only.plan.length",
        "how much of a drawn draft is verified depends on what was drawn",
        ("drafters/test_controller.py::test_a_drawn_draft_is_verified_as_it_is[1]",),
    ),
    Mutation(
        "drawn-drafts-cut-together",
        "drafters/market.py",
        "[each is not None and each.drawn for each in best]",
        "[False for each in best]",
        "the same, where sequences share a decode",
        ("drafters/test_controller.py::test_a_drawn_draft_is_verified_as_it_is[2]",),
    ),
    Mutation(
        "cap-ignored",
        "drafters/controller.py",
        "min(requests[i].budget, self.n_max))",
        "requests[i].budget)",
        "the longest draft that was asked for is no limit",
        ("drafters/test_controller.py::test_the_longest_draft_is_a_cap",),
    ),
    Mutation(
        "tries-without-end",
        "drafters/controller.py",
        "self.explored_seconds + _SAFE * seconds <=",
        "0.0 <=",
        "trying has no budget",
        ("drafters/test_controller.py::test_it_tries_nothing_for_more_than_a_hundredth_of_the_time",),
    ),
    Mutation(
        "gain-over-plain-decoding",
        "speculation/planning.py",
        "if found or rate > max(best.rate, least_rate):",
        "if found or together - plain * seconds > best.gain:",
        "a length is chosen by what it gains over plain decoding, and not by the rate of its round",
        ("speculation/test_planning.py::test_the_best_prefix_is_the_one_with_the_best_rate",),
    ),
    Mutation(
        "one-token-ahead",
        "speculation/planning.py",
        "                return True\n        return False\n",
        "                return True\n            break\n        return False\n",
        "a draft ends in front of a step of the costs that is worth taking",
        ("speculation/test_planning.py::test_the_judge_looks_behind_a_step",),
    ),
    Mutation(
        "scored-past-an-error",
        "speculation/scoring.py",
        "            if not right:\n                return True\n",
        "",
        "tokens behind a wrong one are scored, too",
        ("speculation/test_learning.py::test_a_draft_is_scored_up_to_its_first_wrong_token",),
    ),
    Mutation(
        "chances-of-the-former-request",
        "speculation/acceptance.py",
        "        self._own[seq_id] = {}\n",
        "        pass\n",
        "a request begins with the chances of the one that had its sequence before",
        ("speculation/test_learning.py::test_a_request_has_its_own_chances",),
    ),
    Mutation(
        "moved-twice",
        "speculation/curves.py",
        "            now = lower_median(point.values)\n",
        "",
        "what moves a cost moves it by the level once more",
        ("speculation/test_costs.py::test_what_is_always_the_same_is_learned",),
    ),
    Mutation(
        "depth-left-to-the-level",
        "speculation/curves.py",
        "return self._attention.seconds(count, self.depth)",
        "return 0.0",
        "rows are taken to cost the same in a memory of any depth",
        (
            "speculation/test_depth.py::test_rows_cost_more_in_a_deep_memory_and_several_more_than_one",
            "speculation/test_depth.py::test_drafts_are_shorter_in_a_deep_memory",
        ),
    ),
    Mutation(
        "costs-of-another-machine",
        "engine/calibration.py",
        ' or found["key"] != dict(self.key)',
        "",
        "costs are taken that were measured for something else",
        ("engine/test_remembered_costs.py::test_costs_of_another_machine_are_not_ours",),
    ),
)
