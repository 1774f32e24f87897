"""Parents must end somewhere: the circles in a set of edges from child to parent."""

from __future__ import annotations

from collections.abc import Mapping


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
