"""What was measured, in words, tables, JSON and Markdown."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspec.bench.comparing import Comparison
from pyspec.bench.figures import Figures, expected_ratio, figures_of
from pyspec.bench.setting import Setting
from pyspec.bench.suggesting import ThreadSpeed, accepts, best_setting, overall
from pyspec.speculation.config import AUTO
from pyspec.trace import Verdict

HEADER = (
    "workload",
    "setting",
    "plain t/s",
    "t/s",
    "ratio",
    "quartiles",
    "accepted",
    "length",
    "rounds",
    "draft/verify/python",
    "expected",
    "first token",
    "p50/p95",
    "outputs",
)
_SEVERAL = 2
_SURE = 3  # pairs
_FAR = 1.6  # times as fast or slow as expected


@dataclass(slots=True)
class Report:
    """All of a bench.

    Attributes:
        about: Machine, versions, model, flags: name to value.
        comparisons: What was measured.
        settings: The settings that were to be compared.
        n_slots: Prompts at once.
        curve: t(1), t(2), ... relative to t(1); empty when it was not measured.
        threads: Plain decoding by number of threads, the fastest first; empty unless it was searched.
        tried: Of a search, all settings with their overall ratio in its first round.
        suggests: Whether a command line is wanted.
        base: The words that it begins with.
        model_words: The words that give the draft model.
        interrupted: It was broken off.
        workloads: Names of the workloads that were to be measured.
        piece: Returns the text of a token; used at once, because the model will be closed.
        differences: A line per output that was compared by logits and is not the same.
    """

    about: Mapping[str, Any]
    comparisons: Sequence[Comparison]
    settings: Sequence[Setting]
    n_slots: int = 1
    curve: Sequence[float] = ()
    threads: Sequence[ThreadSpeed] = ()
    tried: Sequence[tuple[str, float]] = ()
    suggests: bool = False
    base: Sequence[str] = ()
    model_words: Sequence[str] = ()
    interrupted: bool = False
    workloads: Sequence[str] = ()
    piece: Callable[[int], str] = str
    figures: list[Figures] = field(init=False)
    differences: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.figures = [figures_of(comparison) for comparison in self.comparisons]
        self.differences = self._differences()

    @property
    def ceiling(self) -> float | None:
        """The largest n / t(n): the speed-up when drafts cost nothing and always stand."""
        return max((n / cost for n, cost in enumerate(self.curve, 1)), default=None)

    @property
    def has_difference(self) -> bool:
        """Whether outputs that were compared by logits differ by more than a tie."""
        return any(each.verdict is Verdict.DIFFERENT for made in self.comparisons for each in made.verdicts)

    def headline(self) -> str:
        """Return the answer in a line or two; what was broken off says what it lacks."""
        measured = {(figures.setting, figures.workload) for figures in self.figures if figures.ratio is not None}
        if not self.interrupted or not measured:
            return self._answer()
        known = {setting for setting, _workload in measured}
        missing = [setting.label for setting in self.settings if setting.label not in known]
        wanted = [(setting.label, name) for setting in self.settings for name in self.workloads]
        missing += [f"{label} on {name}" for label, name in wanted if label in known and (label, name) not in measured]
        lacks = f" {', '.join(missing)} {'was' if len(missing) == 1 else 'were'} not measured." if missing else ""
        return f"So far: {self._answer()}{lacks}"

    def _answer(self) -> str:
        ranked = overall(self.figures)
        if not ranked:
            return f"No speed was measured. {self._outputs()}" if self.figures else "No speed was measured."
        if not any(setting.types for setting in self.settings):
            return f"Plain decoding beside itself: {ranked[0][1]:.2f} times as fast, which is noise. {self._outputs()}"
        chosen = best_setting(self.figures, self.settings)[0]
        drafting = [setting.label for setting in self.settings if setting.types]
        first = next((name for name, _ratio in ranked if name in drafting), ranked[0][0])
        label = chosen.label if chosen.types else first
        best = f"{label} is {dict(ranked)[label]:.2f} times as fast as plain decoding"
        if not accepts(label, self.figures):
            by = "noise alone" if dict(ranked)[label] >= 1.0 else "noise, or by the time that asking takes"
            best += f" by {by} (no draft of it was accepted)"
        if len({each.workload for each in self.figures}) >= _SEVERAL:
            best += f" over all workloads ({self._range(label)})"
        if label != AUTO and AUTO in dict(ranked):
            best += f", {AUTO} {dict(ranked)[AUTO]:.2f} times"
        answer = f"{best}." if chosen.types else f"Leave speculation off: at best, {best}."
        if (n_pairs := min(each.equal[1] for each in self.figures if each.ratio is not None)) < _SURE:
            answer += f" That is from {_count(n_pairs, 'pair')} only, and may be noise."
        ceiling = (
            "" if self.ceiling is None else f" The ceiling here is {self.ceiling:.2f} ({len(self.curve)} rows at most)."
        )
        return f"{answer}{self._memory()}{self._disturbance()} {self._outputs()}{ceiling}"

    def _memory(self) -> str:
        """Say which settings draft from earlier answers to the same prompts."""
        sharing = [each.label for each in self.settings if any(given.get("share") for given in each.options.values())]
        if not sharing:
            return ""
        what = (
            "remembers its earlier answers, so its ratio says" if len(sharing) == 1 else "remember, so their ratios say"
        )
        return f" {' and '.join(sharing)} {what} nothing of new prompts."

    def _disturbance(self) -> str:
        """Say where the time is far from what acceptance and the cost of decodes come to."""
        for each in self.figures if self.n_slots == 1 else ():
            expected, length, ratio = expected_ratio(each, self.curve), each.acceptance_length, each.ratio
            if ratio is None:
                continue
            found = f"{each.setting} on {each.workload}: {ratio.median:.2f}"
            if expected and not 1 / _FAR < ratio.median / expected < _FAR:
                found += f", expected {expected:.2f}"
            elif length and ratio.median > _FAR * length:  # even if verifying cost nothing
                found += f", with {length:.2f} tokens per round"
            else:
                continue
            return f" SOMETHING DISTURBED IT ({found}): other programs, or more threads than idle cores."
        return ""

    def _range(self, label: str) -> str:
        ratios = [
            (each.ratio.median, each.workload)
            for each in self.figures
            if each.setting == label and each.ratio is not None
        ]
        low, high = min(ratios), max(ratios)
        return f"{low[0]:.2f} on {low[1]}, {high[0]:.2f} on {high[1]}"

    def _outputs(self) -> str:
        if any(figures.verdicts for figures in self.figures):
            if self.has_difference:
                return "OUTPUTS DIFFER, see below."
            ties = sum(figures.verdicts.get(Verdict.TIE.value, 0) for figures in self.figures)
            return f"Outputs are equal but for {_count(ties, 'tie')}." if ties else "Outputs are equal."
        n_equal = sum(figures.equal[0] for figures in self.figures)
        n_pairs = sum(figures.equal[1] for figures in self.figures)
        if not n_pairs:
            return "No outputs were compared."
        if n_equal == n_pairs:
            return "Outputs are equal."
        return f"Outputs are equal in {n_equal} of {n_pairs} pairs; --check tells ties of rounding from faults."

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of text per comparison, for ``HEADER``."""
        return [self._row(each) for each in self.figures]

    def _row(self, each: Figures) -> tuple[str, ...]:
        ratio, shares, latency = each.ratio, each.shares, each.latency
        expected = expected_ratio(each, self.curve) if self.n_slots == 1 else None
        parts = "/".join(_number(shares.get(stage), "{:.0%}") for stage in ("draft", "verify", "python"))
        return (
            each.workload,
            each.setting,
            _number(each.plain_speed, "{:.1f}"),
            _number(each.speed, "{:.1f}"),
            _number(None if ratio is None else ratio.median, "{:.2f}"),
            "-" if ratio is None or ratio.n == 1 else f"{ratio.low:.2f} to {ratio.high:.2f}",
            _number(each.acceptance, "{:.0%}"),
            _number(each.acceptance_length, "{:.2f}"),
            str(each.n_rounds) if each.n_rounds else "-",
            parts if shares else "-",
            _number(expected, "{:.2f}"),
            _number(latency.first_token, "{:.2f} s"),
            _latency_of(each),
            _outputs_of(each),
        )

    def _differences(self) -> list[str]:
        return [line for made in self.comparisons for line in self._differences_of(made)]

    def _differences_of(self, made: Comparison) -> list[str]:
        """Return a line for each difference; where pairs repeat it, it is counted."""
        found: dict[tuple[Any, ...], tuple[str, int]] = {}
        for i, verdict in enumerate(made.verdicts):
            if verdict.verdict is Verdict.SAME:
                continue
            n_pair, n_prompt = divmod(i, sum(len(run.results) for run in made.inspected))
            key = n_prompt, verdict.verdict, verdict.index, verdict.plain_token, verdict.other_token
            where = f"prompt {n_prompt + 1}" + (f" in pair {n_pair}" if n_pair else "")
            line = f"{made.workload}, {where}, {made.setting.label}: {verdict}{self._tokens(verdict)}"
            first, times = found.get(key, (line, 0))
            found[key] = first, times + 1
        return [line if times == 1 else f"{line}, {times} times" for line, times in found.values()]

    def _tokens(self, verdict: Any) -> str:
        if verdict.plain_token is None or verdict.other_token is None:
            return ""
        return f" ({self.piece(verdict.plain_token)!r} and {self.piece(verdict.other_token)!r})"

    def tried_rows(self) -> list[tuple[str, str]]:
        """Return a row of text per setting of a search's first round."""
        return [(label, f"{ratio:.2f}") for label, ratio in self.tried]

    def suggestion(self) -> list[str] | None:
        """Return the words of the command line to use, or None unless it is wanted and all settings were tried."""
        measured = any(each.ratio is not None for each in self.figures)
        if not self.suggests or not measured or (self.interrupted and not self.tried):
            return None
        threads = ["-t", str(self.threads[0].n_threads)] if self.threads else []
        best = best_setting(self.figures, self.settings)[0]
        return [*self.base, *(self.model_words if best.wants_model else ()), *threads, *best.flags]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        expected = [expected_ratio(each, self.curve) if self.n_slots == 1 else None for each in self.figures]
        return {
            "headline": self.headline(),
            "interrupted": self.interrupted,
            "about": dict(self.about),
            "n_slots": self.n_slots,
            "overall": dict(overall(self.figures)),
            "figures": [
                {**each.to_dict(), "expected_ratio": ratio} for each, ratio in zip(self.figures, expected, strict=True)
            ],
            "ratios": [
                {"workload": made.workload, "setting": made.setting.label, "pairs": [pair.ratio for pair in made.pairs]}
                for made in self.comparisons
            ],
            "differences": self.differences,
            "curve": list(self.curve),
            "ceiling": self.ceiling,
            "tried": dict(self.tried),
            "threads": [dataclasses.asdict(each) for each in self.threads],
            "suggestion": None if (words := self.suggestion()) is None else shlex.join(words),
        }

    def markdown(self) -> str:
        """Return a page."""
        lines = ["# Speculation against plain decoding", "", self.headline()]
        if self.interrupted:
            lines += ["", "The measurement was broken off."]
        lines += ["", *_table(HEADER, self.rows())]
        if self.differences:
            lines += ["", "## Differences", "", *(f"* {line}" for line in self.differences)]
        positions = [(each.workload, each.setting, _positions(each)) for each in self.figures if each.positions]
        if positions:
            lines += ["", "## Accepted by position in the draft", ""]
            lines += ["Share of the drafts that were at least that long.", ""]
            lines += _table(("workload", "setting", "positions 1, 2, ..."), positions)
        if self.curve:
            lines += ["", "## Time to verify n tokens, relative to one", ""]
            lines += _table([str(n) for n in range(1, 1 + len(self.curve))], [[f"{cost:.2f}" for cost in self.curve]])
        if self.threads:
            rows = [(str(each.n_threads), f"{each.speed.median:.1f}") for each in self.threads]
            lines += ["", "## Threads", "", *_table(("threads", "plain t/s"), rows)]
        if self.tried:
            lines += ["", "## Tried, with one pair", "", *_table(("setting", "ratio"), self.tried_rows())]
        if (words := self.suggestion()) is not None:
            lines += ["", "## Suggestion", "", f"    {shlex.join(words)}"]
        lines += ["", "## Measured with", "", *_table(("", ""), [(k, str(v)) for k, v in self.about.items()]), ""]
        return "\n".join(lines)


def _positions(figures: Figures) -> str:
    return " ".join(f"{accepted / drafted:.0%}" for drafted, accepted in figures.positions if drafted)


def _outputs_of(figures: Figures) -> str:
    if not figures.verdicts and not figures.equal[1]:
        return "-"
    if not figures.verdicts:
        return "equal" if figures.equal[0] == figures.equal[1] else f"equal in {figures.equal[0]} of {figures.equal[1]}"
    found = [f"{count} {kind}" for kind, count in figures.verdicts.items() if count]
    return ", ".join(found)


def _latency_of(figures: Figures) -> str:
    p50, p95 = figures.latency.p50, figures.latency.p95
    return "-" if p50 is None or p95 is None else f"{1e3 * p50:.0f}/{1e3 * p95:.0f} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    shown = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in shown]
    return [lines[0], f"|{'---|' * len(header)}", *lines[1:]]
