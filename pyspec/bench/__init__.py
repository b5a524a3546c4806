"""Measuring speculation against plain decoding.

Terms used here:

* *setting*: which drafters propose, and their options; *plain* is the setting without any;
* *workload*: a few prompts of one kind;
* *run*: some prompts answered at once by one setting; *pair*: a workload answered by plain and by another setting,
  prompt by prompt in turns, so that a machine that becomes faster or slower meanwhile treats both alike;
* *speed*: tokens per second, see ``Run``; *ratio*: speed of the setting by that of plain, of one pair;
* *spread*: median and quartiles over the pairs.
"""

from __future__ import annotations

from pyspec.bench.comparing import Bench, Comparison, Pair, Plan
from pyspec.bench.figures import Figures, Spread, figures_of, spread_of
from pyspec.bench.running import Lab, Run, Runner
from pyspec.bench.setting import PLAIN, Setting, parse_setting
from pyspec.bench.workloads import Workload, load_workload, workload_names

__all__ = [
    "PLAIN",
    "Bench",
    "Comparison",
    "Figures",
    "Lab",
    "Pair",
    "Plan",
    "Run",
    "Runner",
    "Setting",
    "Spread",
    "Workload",
    "figures_of",
    "load_workload",
    "parse_setting",
    "spread_of",
    "workload_names",
]
