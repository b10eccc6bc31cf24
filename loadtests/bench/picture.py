"""Figures as bars with the spread of the rounds as a line, in SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROW_PIXELS, _LABEL_PIXELS, _BAR_PIXELS = 24, 290, 420
_OURS, _OTHER = "#2f6f9f", "#9aa5ad"


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure, its spread, and its text."""

    name: str
    value: float
    least: float
    most: float
    text: str
    is_ours: bool = True


def draw(bars: Sequence[Bar], mark: float | None = None) -> str:
    """Return a picture of the bars, with a vertical line at the value of `mark`."""
    scale = _BAR_PIXELS / max(bar.most for bar in bars)
    height, width = len(bars) * _ROW_PIXELS + 16, _LABEL_PIXELS + _BAR_PIXELS + 90
    drawn = []
    for row, bar in enumerate(bars):
        top, end = row * _ROW_PIXELS + 8, _LABEL_PIXELS + bar.most * scale
        drawn.append(
            f'<text x="{_LABEL_PIXELS - 8}" y="{top + 12}" text-anchor="end">'
            f"{escape(bar.name)}</text>"
            f'<rect x="{_LABEL_PIXELS}" y="{top}" width="{bar.value * scale:.1f}" height="16"'
            f' fill="{_OURS if bar.is_ours else _OTHER}"/>'
            f'<path d="M{_LABEL_PIXELS + bar.least * scale:.1f} {top + 8}H{end:.1f}"'
            ' stroke="#222"/>'
            f'<text x="{end + 8:.1f}" y="{top + 12}">{bar.text}</text>'
        )
    if mark is not None:
        at = _LABEL_PIXELS + mark * scale
        drawn.append(f'<path d="M{at:.1f} 0V{height}" stroke="#c33" stroke-dasharray="4"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )
