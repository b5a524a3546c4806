"""Whether the drafters that are fed by the target draft as they should: a short trial when an engine is made.

Hidden states that are read wrongly (another layer, a row too far, an omitted norm) leave the output right and the
drafts useless; drafts that are never wrong hint at a drafter that looks into the target's answer. Neither is an
error, so there is a warning.
"""

from __future__ import annotations

import logging

from pyspec.drafters import Chain
from pyspec.llama.batch import Batch
from pyspec.llama.context import Context
from pyspec.llama.sampler import GreedySampler
from pyspec.speculation.accept import MatchRule
from pyspec.speculation.draft import Drafter, Needs
from pyspec.speculation.ending import Ending
from pyspec.speculation.round import RoundBatch, run_round
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.stats import DrafterStats
from pyspec.speculation.verify import catch_up

_logger = logging.getLogger(__name__)
_TEXT = "The old lighthouse keeper opened the door and looked at the sea. He had lived here for many years, and"
_N_ROUNDS = 24
_FEW = 12  # drafts; fewer tell nothing
_LEAST = 0.25  # of first draft tokens; heads that are fed rightly reach more than half
_LONG = 24  # drafted tokens; so many in a row are hardly ever all right


def check_fed_drafters(context: Context, chain: Chain) -> None:
    """Try each drafter that is fed by the target on a short text, and warn of what looks wrong.

    Args:
        context: The target; its memory is empty before and after.
        chain: The drafters.
    """
    for drafter in chain.drafters:
        if drafter.needs is not Needs.NOTHING:
            warning = suspicion(tried(context, drafter))
            if warning is not None:
                _logger.warning("%s drafts badly on %s: %s", drafter.name, context.model.path.name, warning)


def tried(context: Context, drafter: Drafter) -> DrafterStats:
    """Generate a few tokens with one drafter alone and return its counters."""
    chain = Chain([drafter])
    tokens = list(context.model.vocab.tokenize(_TEXT, add_special=True))[: context.n_ctx_seq // 2]
    if len(tokens) > 1:
        ending = Ending(eog=context.model.vocab.eog, max_tokens=1 << 16)
        sequence = Sequence(0, tokens[:-1], tokens[-1], GreedySampler(), ending, lag=len(tokens) - 1)
        batch, rule = RoundBatch([sequence]), MatchRule()
        chain.begin(0, sequence.history)
        catch_up(context, Batch(), sequence, chain)
        for _ in range(_N_ROUNDS):
            outcome = run_round(batch, chain, context, rule)[0]
            if outcome.finish is not None or sequence.n_committed + drafter.n_max >= context.n_ctx_seq:
                break
    drafter.begin(0, [])
    context.memory.clear()
    return chain.stats[drafter.name]


def suspicion(stats: DrafterStats) -> str | None:
    """Return what is wrong with a drafter's counters, or None."""
    n_first, n_right = (stats.drafted_at[:1] or [0])[0], (stats.accepted_at[:1] or [0])[0]
    if n_first >= _FEW and n_right < _LEAST * n_first:
        return f"of {n_first} first tokens {n_right} were right. Is it made for this target?"
    if stats.n_drafted >= _LONG and stats.n_accepted == stats.n_drafted:
        return f"all of {stats.n_drafted} tokens were right, which is too good to be true."
    return None
