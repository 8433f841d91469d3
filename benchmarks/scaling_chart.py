"""A chart with two logarithmic axes as SVG, without any library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 720
HEIGHT: Final = 420
#: Left, top, right and bottom of the plot.
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 40, 500, 370
_COLORS: Final = ("#1f5fa8", "#b5541c", "#2f7d32", "#6a3d9a")


@dataclass(frozen=True)
class Line:
    """Points that belong together, by rising x; all positive."""

    title: str
    points: Sequence[tuple[float, float]]


def draw(title: str, x_title: str, y_title: str, lines: Sequence[Line]) -> str:
    """Give the SVG of some lines."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_low, x_high = math.log10(min(xs)) - 0.03, math.log10(max(xs)) + 0.03
    y_low, y_high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / (x_high - x_low)
        up = (math.log10(y) - y_low) / max(1, y_high - y_low)
        return round(_LEFT + across * (_RIGHT - _LEFT), 1), round(_BOTTOM - up * (_BOTTOM - _TOP), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{(_LEFT + _RIGHT) // 2}" y="{_BOTTOM + 36}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text x="20" y="{_TOP - 6}">{escape(y_title)}</text>',
    ]
    for power in range(y_low, y_high + 1):
        _, y = place(xs[0], 10.0**power)
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{_amount(power)}</text>')
    for value in sorted(set(xs)):
        x, _ = place(value, ys[0])
        parts.append(f'<text x="{x}" y="{_BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    for number, line in enumerate(lines):
        color = _COLORS[number % len(_COLORS)]
        places = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>' for x, y in places]
        x, y = places[-1]
        parts.append(f'<text x="{x + 10}" y="{y + 4}" fill="{color}">{escape(line.title)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _amount(power: int) -> str:
    names = {3: "1 kB", 4: "10 kB", 5: "100 kB", 6: "1 MB", 7: "10 MB", 8: "100 MB", 9: "1 GB"}
    return names.get(power, f"{10**power:,}" if 0 <= power < 3 else f"1e{power}")
