"""The result of `crafting.py` -> its figure as SVG: four panels, an arm in each colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]

_COLOURS = {"recursive": "#1f5fbf", "single": "#c2571a"}
_PANEL, _LEFT, _TOP, _GAP = (360, 210), 60, 64, (96, 86)
_TICKS = 5


@dataclass(frozen=True)
class Line:
    """One curve."""

    points: Sequence[Point]
    colour: str
    width: float = 2.5
    dash: str = "none"


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes, both from 0."""

    title: str
    x_label: str
    lines: Sequence[Line]
    y_max: float
    shaded: tuple[float, float] | None = None
    """Of x: the depths that train."""

    @property
    def x_max(self) -> float:
        return max(x for line in self.lines for x, _ in line.points)


def figure(result: Mapping[str, Any]) -> str:
    """The figure as the text of an SVG file."""
    panels = [_learning(result), *_by_depth(result)]
    width = _LEFT + 2 * _PANEL[0] + _GAP[0] + 30
    height = _TOP + 2 * _PANEL[1] + _GAP[1] + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(result),
    ]
    for place, panel in enumerate(panels):
        x = _LEFT + (place % 2) * (_PANEL[0] + _GAP[0])
        y = _TOP + (place // 2) * (_PANEL[1] + _GAP[1])
        parts += [f'<g transform="translate({x} {y})">', *_drawn(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _learning(result: Mapping[str, Any]) -> Panel:
    lines = [
        Line(list(zip(run["interactions"], smoothed(run["success"]), strict=True)), _COLOURS[run["arm"]], 1.6)
        for run in result["runs"]
    ]
    depths = ", ".join(map(str, result["depths"]))
    title = f"success while it learns, depths {depths} (mean of 5 rounds, a line a seed)"
    return Panel(title, "steps of the environment", lines, 1.0)


def smoothed(values: Sequence[float], *, over: int = 5) -> list[float]:
    """Mean of each value and up to `over` - 1 before it."""
    return [
        sum(part) / len(part)
        for end in range(len(values))
        for part in [values[max(0, end + 1 - over) : end + 1]]
    ]


def _by_depth(result: Mapping[str, Any]) -> Iterator[Panel]:
    for name, title in (
        ("success", "success by depth (dashed: before it learned from rewards)"),
        ("tokens", "tokens of an episode, each once"),
        ("critical_steps", "critical steps of an episode"),
    ):
        lines = [
            Line(
                [(float(depth), one[name]) for depth, one in of_arm[when].items()],
                _COLOURS[arm],
                dash="none" if when == "trained" else "5 4",
            )
            for arm, of_arm in result["means"].items()
            for when in (("taught", "trained") if name == "success" else ("trained",))
        ]
        top = 1.0 if name == "success" else 1.05 * max(y for line in lines for _, y in line.points)
        yield Panel(title, "depth of the task", lines, top, (min(result["depths"]), max(result["depths"])))


def _legend(result: Mapping[str, Any]) -> Iterator[str]:
    seeds = len({run["seed"] for run in result["runs"]})
    for place, arm in enumerate(result["means"]):
        x = _LEFT + 130 * place
        yield f'<line x1="{x}" y1="20" x2="{x + 26}" y2="20" stroke="{_COLOURS[arm]}" stroke-width="3"/>'
        yield f'<text x="{x + 32}" y="24">{arm}</text>'
    about = f"{result['parameters']:,} weights, {seeds} seeds, contexts of {result['context']} tokens"
    yield f'<text x="{_LEFT + 280}" y="24" fill="#555">{about}; grey: the depths that train</text>'


def _drawn(panel: Panel) -> Iterator[str]:
    width, height = _PANEL

    def at(point: Point) -> Point:
        return width * point[0] / panel.x_max, height * (1 - point[1] / panel.y_max)

    yield f'<text x="0" y="-10" font-weight="bold">{panel.title}</text>'
    if panel.shaded:
        (low, _), (high, _) = at((panel.shaded[0] - 0.5, 0)), at((panel.shaded[1] + 0.5, 0))
        yield f'<rect x="{low:.1f}" width="{high - low:.1f}" height="{height}" fill="#eee"/>'
    for share in (tick / _TICKS for tick in range(_TICKS + 1)):
        x, y = width * share, height * (1 - share)
        values = _number(panel.x_max * share), _number(panel.y_max * share)
        yield f'<line x1="0" y1="{y:.1f}" x2="{width}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{values[1]}</text>'
        yield f'<text x="{x:.1f}" y="{height + 16}" text-anchor="middle">{values[0]}</text>'
    yield f'<text x="{width / 2}" y="{height + 34}" text-anchor="middle" fill="#555">{panel.x_label}</text>'
    for line in panel.lines:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, line.points))
        yield (
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="{line.width}"'
            f' stroke-dasharray="{line.dash}"/>'
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
