"""A chart of the ratios as SVG.

Written by hand, because one kind of chart is not worth a plotting library: the file is small text that browsers show
and that can be compared line by line.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pyspec.bench.figures import Figures

_COLOURS = ("#3b6ea8", "#d9822b", "#4f9d69", "#a8518f", "#8a6d3b", "#5b5f97", "#c44e52", "#6b7280")
_BAR, _GAP, _LEFT, _TOP, _HEIGHT = 26, 24, 56, 48, 220
_LETTER = 7  # pixels, about
_LABELS = 44  # pixels below the axis
_LINE = 20  # pixels of a line of the legend


def ratio_chart(figures: Sequence[Figures], title: str) -> str:
    """Return an SVG with a group of bars per workload and a bar per setting: the ratio, with its quartiles as a line.

    Plain decoding is the line at 1. What has no ratio has no bar.
    """
    workloads = list(dict.fromkeys(each.workload for each in figures))
    labels = list(dict.fromkeys(each.setting for each in figures))
    spreads = {(each.workload, each.setting): each.ratio for each in figures if each.ratio is not None}
    top = max([1.2, *(1.05 * spread.high for spread in spreads.values())])
    group = max(len(labels) * _BAR + _GAP, *(_LETTER * len(workload) + _GAP for workload in workloads), 0)
    width = max(_LEFT + len(workloads) * group + _GAP, 420)
    height = _TOP + _HEIGHT + _LABELS + len(labels) * _LINE + 12

    def y(ratio: float) -> float:
        return _TOP + _HEIGHT * (1 - ratio / top)

    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{escape(title)}</text>',
    ]
    parts += _axis(top, width, y(0), y(1))
    for i, workload in enumerate(workloads):
        middle = _LEFT + (i + 0.5) * group
        left = middle - len(labels) * _BAR / 2
        parts.append(f'<text x="{middle:.1f}" y="{y(0) + 18:.1f}" text-anchor="middle">{escape(workload)}</text>')
        for j, label in enumerate(labels):
            spread = spreads.get((workload, label))
            if spread is not None:
                x = left + j * _BAR
                parts += _bar(x, y(spread.median), y(0), (y(spread.high), y(spread.low)), _COLOURS[j % len(_COLOURS)])
    for j, label in enumerate(labels):
        line = y(0) + _LABELS + j * _LINE
        parts.append(f'<rect x="{_LEFT}" y="{line:.1f}" width="12" height="12" fill="{_COLOURS[j % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{_LEFT + 18}" y="{line + 11:.1f}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axis(top: float, width: int, zero: float, one: float) -> list[str]:
    """Draw lines at round ratios, and plain decoding's."""
    step = next(step for step in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, top) if top / step <= 8)  # noqa: PLR2004 - lines
    parts = []
    for i in range(int(top / step) + 1):
        y = zero - (zero - one) * i * step
        parts.append(f'<line x1="{_LEFT}" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    parts.append(
        f'<line x1="{_LEFT}" x2="{width - 8}" y1="{one:.1f}" y2="{one:.1f}" stroke="#333333" stroke-dasharray="5 3"/>'
    )
    return parts


def _bar(x: float, y: float, zero: float, ends: tuple[float, float], colour: str) -> list[str]:
    middle = x + _BAR / 2 - 2
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BAR - 4}" height="{zero - y:.1f}" fill="{colour}"/>',
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" stroke="#222222"/>',
    ]
