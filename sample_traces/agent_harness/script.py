"""A script that a model wrote -> what came of it, run in a process of its own under a time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal

from sample_traces.child import Child

RUNNER = Path(__file__).with_name("runner.py")
TIME_LIMIT_S = 3.0
"""Of a script's own work; what its children take is not in it."""
MAX_STDOUT = 200
"""Characters of its output that are kept."""
MAX_CHILDREN = 8

Task = tuple[str, str]
"""What a child is asked to do, and the file it gets."""


@dataclass
class Ran:
    """What came of a script."""

    stdout: str = ""
    error: str | None = None
    exit_status: int = 0
    """Of its process; negative: the signal that ended it."""
    status: Literal["ok", "failed", "timeout"] = "ok"
    read: set[int] = field(default_factory=set)
    """Children whose findings it read, by the order in which it spawned them."""


def run(
    script: str,
    *,
    files: Sequence[str],
    start: Callable[[Sequence[Task]], Sequence[str | None]],
    limit_s: float = TIME_LIMIT_S,
) -> Ran:
    """Run a script to its end, to its first error, or to the end of its time.

    Args:
        files: names that it finds in `FILES`.
        start: called at each `wait` with the tasks spawned since the last one; returns what each child said,
            None for one that failed. Children that nobody waits for are never started.
    """
    ran, asked, deadline = Ran(), list[Task](), monotonic() + limit_s
    with Child(RUNNER) as child:
        child.tell({"script": script, "files": list(files), "most": MAX_CHILDREN})
        while (said := child.hear(deadline)) is not None:
            if "spawn" in said:
                asked.append((said["spawn"][0], said["spawn"][1]))
            elif "wait" in said:
                began = monotonic()
                child.tell(start(asked))
                asked, deadline = [], deadline + monotonic() - began
            elif "read" in said:
                ran.read.add(said["read"])
            elif "print" in said:
                ran.stdout = (ran.stdout + said["print"])[:MAX_STDOUT]
            else:
                ran.error = said["error"][:MAX_STDOUT]
        is_late = monotonic() >= deadline
        ran.exit_status = child.end()
    if is_late:
        ran.status, ran.error = "timeout", f"ended after {limit_s:g} s"
    elif ran.exit_status:
        ran.status = "failed"
    return ran
