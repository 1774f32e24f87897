"""What a replayed harness asked that was never recorded -> lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def missed_lines(missed: Mapping[str, Any]) -> Iterator[str]:
    """One miss of a status, as `Tape.missed` or `ToolTape.status` gives it."""
    if "tool" in missed:
        yield f"tool {missed['tool']} diverged after {missed['after']} answered runs: {missed['hint']}"
    else:
        yield f"diverged after {missed['after']} answered calls: {missed['hint']}"
    for name, shown in (("nearest_call", "call"), ("nearest_tool_call", "run ")):
        if name in missed:
            yield f"  nearest recorded {shown}  {missed[name]}"
    difference = missed.get("difference")
    if difference is not None:
        at = "" if difference["byte"] is None else f", byte {difference['byte']}"
        yield f"  first difference       {difference['path']}{at}"
        yield f"    recorded             {difference['recorded']}"
        yield f"    asked                {difference['asked']}"
