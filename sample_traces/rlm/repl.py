"""A Python namespace in which a model's code runs: what it prints and how it fails is what the model reads.

The code runs in a process of its own (`worker.py`), with a limit on its steps, its memory and its time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from sample_traces.child import Child

WORKER = Path(__file__).with_name("worker.py")
TIME_LIMIT_S = 5.0
"""Of a block's own work; what the models that it asks take is not in it."""
MAX_OUTPUT = 400
"""Characters of a block's output that are shown; the paper's harness shows 20,000."""
_BLOCK = re.compile(r"```repl[^\S\n]*\n(.*?)```", re.DOTALL)

Function = Callable[[str], str | None]
"""What code may call with a text. A ValueError is raised in the code."""


def code_blocks(text: str) -> list[str]:
    """The code between ```repl and ```, block by block; one that is not closed is none."""
    return [code.strip() for code in _BLOCK.findall(text)]


@dataclass(frozen=True)
class Ran:
    """What came of a block."""

    stdout: str
    error: str | None
    """The exception as Python names it; None: it ran to its end."""
    variables: Mapping[str, str]
    """What the block bound, as its `repr`, cut by the worker."""

    def shown(self) -> str:
        """What the model reads of it."""
        text = "\n".join(filter(None, (self.stdout.rstrip("\n"), self.error)))
        return text[:MAX_OUTPUT] if text else "(no output)"


class Repl:
    """Variables live from block to block.

    A block that uses up its time or its memory ends the process, and with it all variables but those that
    were given here.

    Args:
        variables: texts, by name.
        functions: what code may call. The first one that raises something else than a ValueError ends the
            process, and `run` raises it.
        limit_s: of a block's own work.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        functions: Mapping[str, Function],
        *,
        limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self.texts: Mapping[str, str] = dict(variables)
        """Text variables, as they were when the code last called a function."""
        self._given = dict(variables)
        self._functions = functions
        self._limit_s = limit_s
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.end()

    def run(self, code: str) -> Ran:
        """Run a block; whatever it raises is its error."""
        child, deadline = self._started(), monotonic() + self._limit_s
        child.tell({"run": code})
        while (said := child.hear(deadline)) is not None:
            if "call" not in said:
                return Ran(said["stdout"], said["error"], said["bound"])
            began, self.texts = monotonic(), said["texts"]
            child.tell(self._called(said["call"], said["with"]))
            deadline += monotonic() - began
        is_late = monotonic() >= deadline
        self._child, status = None, child.end()
        why = f"ended after {self._limit_s:g} s" if is_late else f"ended with {status}"
        return Ran("", f"Killed: {why}; all variables but {', '.join(self._given)} are gone", {})

    def _started(self) -> Child:
        if self._child is None:
            self._child = Child(WORKER)
            self._child.tell({"variables": self._given, "functions": list(self._functions)})
        return self._child

    def _called(self, name: str, text: str) -> dict[str, str | None]:
        try:
            return {"said": self._functions[name](text)}
        except ValueError as error:
            return {"refused": str(error)}
