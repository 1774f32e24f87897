"""Drawing -> an SVG picture: rows from top to bottom, one lane to the right for every spawn.

Every box has a row of its own, so boxes never overlap. A line to a box of the same lane runs down the lane's
left edge, where subagents, which stand further right, are not in its way. No script, no font, no network.
"""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

from tracestore.analysis.drawing import Arrow, Box, Drawing, Kind, Name

ROW = 34
BOX_HEIGHT = 24
BOX_WIDTH = 400
LANE = 36
MARGIN = 28
MAX_LANES = 60
"""Agents deeper than this stand in the last lane."""
_LABEL_CHARACTERS = 62

_NOT_XML = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_FILLS: dict[Kind, str] = {
    "episode": "#1f2937",
    "agent": "#dbeafe",
    "call": "#f8fafc",
    "edit": "#fef3c7",
    "folded": "#e5e7eb",
}
_COLOURS = {
    "made": "#94a3b8",
    "continuation": "#475569",
    "drift": "#dc2626",
    "spawn": "#2563eb",
    "edit": "#d97706",
    "summary": "#d97706",
}
_DASHED = ("drift", "summary")


class _Place(NamedTuple):
    x: int
    """Left edge."""
    y: int
    """Middle."""
    row: int
    lane: int


def svg_of(drawing: Drawing) -> str:
    """A complete SVG document."""
    places = {
        box.name: _Place(MARGIN + lane * LANE, MARGIN + row * ROW, row, lane)
        for row, box in enumerate(drawing.boxes)
        for lane in [min(box.lane, MAX_LANES)]
    }
    width = max(place.x for place in places.values()) + BOX_WIDTH + MARGIN
    height = 2 * MARGIN + ROW * (len(drawing.boxes) - 1)
    taken = {(place.lane, place.row) for place in places.values()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{_text(drawing.boxes[0].detail)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_arrow(arrow, places, taken) for arrow in drawing.arrows),
        *(_box(box, places[box.name]) for box in drawing.boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(box: Box, place: _Place) -> str:
    label = box.label if len(box.label) <= _LABEL_CHARACTERS else box.label[: _LABEL_CHARACTERS - 1] + "…"
    faded = ' opacity="0.55"' if box.is_rejected else ""
    dashes = ' stroke-dasharray="4 3"' if box.is_rejected or box.kind == "folded" else ""
    colour = "#ffffff" if box.kind == "episode" else "#111827"
    return (
        f"<g{faded}><title>{_text(box.detail)}</title>"
        f'<rect x="{place.x}" y="{place.y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="5" fill="{_FILLS[box.kind]}" stroke="#64748b"{dashes}/>'
        f'<text x="{place.x + 10}" y="{place.y + 4}" fill="{colour}">{_text(label)}</text></g>'
    )


def _arrow(arrow: Arrow, places: dict[Name, _Place], taken: set[tuple[int, int]]) -> str:
    start, end = places[arrow.start], places[arrow.end]
    dashes = ' stroke-dasharray="4 3"' if arrow.kind in _DASHED else ""
    return (
        f'<path d="{_path(start, end, taken)}" fill="none" stroke="{_COLOURS[arrow.kind]}" '
        f'stroke-width="1.5"{dashes}><title>{arrow.kind}</title></path>'
    )


def _path(start: _Place, end: _Place, taken: set[tuple[int, int]]) -> str:
    half = BOX_HEIGHT // 2
    if end.row > start.row and start.lane == end.lane:
        if not any((start.lane, row) in taken for row in range(start.row + 1, end.row)):
            return f"M {start.x + 12} {start.y + half} V {end.y - half}"
    elif end.row > start.row and start.lane < end.lane:
        return f"M {start.x + 12} {start.y + half} V {end.y} H {end.x}"
    # Round the left side of what stands between.
    bulge = min(start.x, end.x) - 16
    return f"M {start.x} {start.y} C {bulge} {start.y}, {bulge} {end.y}, {end.x} {end.y}"


def _text(text: str) -> str:
    """As XML holds it: what it forbids, and what turns the reading direction, is U+FFFD."""
    return escape(_NOT_XML.sub("�", text))
