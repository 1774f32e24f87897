"""Parents must end somewhere: whether one more edge, or a whole set of edges, goes round in a circle."""

from __future__ import annotations

from collections.abc import Mapping


def closes_cycle(parent_of: Mapping[str, str | None], child: str, parent: str) -> bool:
    """Whether naming `parent` as the parent of `child` closes a circle. Unknown parents end the walk."""
    seen = {child}
    current: str | None = parent
    while current is not None:
        if current in seen:
            # A circle that is already there and does not hold the child is not closed by this edge.
            return current == child
        seen.add(current)
        current = parent_of.get(current)
    return False


def cycles(parent_of: Mapping[str, str | None]) -> tuple[tuple[str, ...], ...]:
    """The circles among the edges, sorted; each from its smallest member along the parents."""
    found = []
    done: set[str] = set()
    for start in parent_of:
        trail: list[str] = []
        on_trail: set[str] = set()
        current: str | None = start
        while current is not None and current not in done and current not in on_trail:
            trail.append(current)
            on_trail.add(current)
            current = parent_of.get(current)
        if current is not None and current in on_trail:
            ring = trail[trail.index(current) :]
            first = ring.index(min(ring))
            found.append(tuple(ring[first:] + ring[:first]))
        done.update(on_trail)
    return tuple(sorted(found))
