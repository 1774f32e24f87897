"""The process in which a model's code runs: a Python namespace that lives from block to block.

    from the harness   {"variables": {name: text}, "functions": names}, then {"run": code} for each block;
                       to each call {"said": text or null}, or {"refused": text}, which the code sees as a
                       ValueError
    to the harness     {"call": name, "with": text, "texts": {name: text}} where the code calls a function,
                       with the text variables as they are then; at the end of a block
                       {"stdout": text, "error": text or null, "bound": {name: repr}}

It keeps honest code from doing harm by accident: imports, private names, loops without an end, memory.
Started alone, as `python -I -S worker.py`, it can import nothing that is installed.
"""

from __future__ import annotations

import ast
import builtins
import json
import resource
import sys
from contextlib import redirect_stdout
from io import StringIO
from types import FrameType
from typing import Any

MEMORY_BYTES = 512 * 2**20
MAX_STEPS = 20_000
"""Instructions of Python that one block may execute, those of loops counted each time."""
MAX_SHOWN = 400
"""Characters of a variable's `repr`."""
MAX_NUMBER = 10_000
"""The largest number that code may spell, so that no range and no repetition is too long."""
_ALLOWED = (
    *(
        "abs",
        "all",
        "any",
        "bool",
        "dict",
        "enumerate",
        "filter",
        "float",
        "int",
        "isinstance",
        "len",
        "list",
    ),
    *("map", "max", "min", "print", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum"),
    *("tuple", "zip", "Exception", "ValueError", "IndexError", "KeyError", "TypeError"),
)


class NotAllowed(Exception):
    """What this namespace does not run."""


class TooLong(BaseException):
    """A block executed too many steps; code cannot catch it."""


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    harness = _Harness()
    begun = harness.hear()
    repl = _Repl(begun["variables"], begun["functions"], harness)
    while (asked := harness.hear()) is not None:
        harness.tell(repl.run(asked["run"]))
    return 0


class _Harness:
    """The other end; code that prints does not write to it."""

    def __init__(self) -> None:
        self._out = sys.stdout

    def hear(self) -> Any:
        """Its next line; None where none comes any more."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def tell(self, what: dict[str, Any]) -> None:
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()


class _Repl:
    """Variables live from block to block."""

    def __init__(self, variables: dict[str, str], functions: list[str], harness: _Harness) -> None:
        self._harness = harness
        self._variables: dict[str, Any] = dict(variables)
        self._builtins = {name: getattr(builtins, name) for name in _ALLOWED}
        self._functions = functions

    def run(self, code: str) -> dict[str, Any]:
        """Run a block; whatever it raises is its error."""
        names: dict[str, Any] = {"__builtins__": self._builtins} | self._variables
        names |= {name: self._function(name, names) for name in self._functions}
        out, error = StringIO(), None
        try:
            tree = ast.parse(code)
            _refuse(tree)
            with redirect_stdout(out), _StepLimit():
                exec(compile(tree, "<repl>", "exec"), names)
        except (Exception, TooLong) as raised:  # noqa: BLE001 - any of them is the code's own
            error = f"{type(raised).__name__}: {raised}"
        before = self._variables
        self._variables = {
            name: one
            for name, one in names.items()
            if name not in self._functions and not name.startswith("_")
        }
        bound = {name: one for name, one in self._variables.items() if before.get(name) is not one}
        return {
            "stdout": out.getvalue(),
            "error": error,
            "bound": {name: _shown(one) for name, one in bound.items()},
        }

    def _function(self, name: str, names: dict[str, Any]) -> Any:
        def call(text: object) -> Any:
            texts = {variable: one for variable, one in names.items() if isinstance(one, str)}
            self._harness.tell({"call": name, "with": str(text), "texts": texts})
            answer = self._harness.hear()
            if "refused" in answer:
                raise ValueError(answer["refused"])
            return answer["said"]

        return call


def _shown(value: object) -> str:
    try:
        return repr(value)[:MAX_SHOWN]
    except (MemoryError, RecursionError):
        return f"({type(value).__name__}, too long to show)"


def _refuse(tree: ast.AST) -> None:
    """
    Raises:
        NotAllowed: the code imports, reaches for private names, could go on against the limit, or computes
            with huge numbers.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            raise NotAllowed("import")
        if (isinstance(node, ast.ExceptHandler) and node.type is None) or getattr(node, "finalbody", ()):
            raise NotAllowed("a bare except, or finally")
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name.startswith("_") or name == "format":
            raise NotAllowed(name)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.Mult, ast.LShift)):
            raise NotAllowed("*, ** and <<")
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > MAX_NUMBER:
            raise NotAllowed(f"numbers over {MAX_NUMBER}")


class _StepLimit:
    """Ends code of the REPL that executes too many steps; what it calls outside is not counted."""

    def __enter__(self) -> None:
        self._left = MAX_STEPS
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != "<repl>":
            return None
        # Not by lines: `while True: pass` is one line that is never left.
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left < 0:
                raise TooLong(f"more than {MAX_STEPS} steps")
        return self._trace


if __name__ == "__main__":
    sys.exit(main())
