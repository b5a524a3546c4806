"""Speculative decoding. Open ``round.py`` first.

Words, used everywhere and without synonyms:

* **target**: the model whose output is preserved. **draft model**: the small model of a drafter that has one.
* **drafter**: what proposes. **draft**: the tokens proposed in one round.
* **pending token**: emitted, but not yet in the target's memory. There is exactly one per running sequence.
* **committed**: tokens that are emitted and in memory; positions ``[0, n_committed)``.
* **budget**: the most tokens a drafter may propose now.
* **verify**: one target decode of ``[pending, draft...]`` for all sequences together.
* **accepted, recovered, bonus**: draft tokens that stand; the token drawn after a rejection; the token drawn
  from the last row when all stand.
* **acceptance length**: tokens emitted by a round = accepted + 1.
* **roll back**: drop from memory what was not accepted.
"""

from __future__ import annotations

from pyspec.speculation.accept import AcceptRule, MatchRule, Verdict
from pyspec.speculation.draft import (
    NO_DRAFT,
    Candidates,
    Draft,
    Drafter,
    Drafting,
    DraftRequest,
    EvaluatedBatch,
    Needs,
    Proposal,
    Proposer,
)
from pyspec.speculation.ending import Ending, Finish
from pyspec.speculation.round import Changes, Outcome, RoundBatch, run_round
from pyspec.speculation.sequence import Sampler, Sequence
from pyspec.speculation.stats import DrafterStats, GenerationStats
from pyspec.speculation.target import Target, TargetMemory, TargetRows

__all__ = [
    "NO_DRAFT",
    "AcceptRule",
    "Candidates",
    "Changes",
    "Draft",
    "DraftRequest",
    "Drafter",
    "DrafterStats",
    "Drafting",
    "Ending",
    "EvaluatedBatch",
    "Finish",
    "GenerationStats",
    "MatchRule",
    "Needs",
    "Outcome",
    "Proposal",
    "Proposer",
    "RoundBatch",
    "Sampler",
    "Sequence",
    "Target",
    "TargetMemory",
    "TargetRows",
    "Verdict",
    "run_round",
]
