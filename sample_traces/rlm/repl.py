"""A Python namespace in which a model's code runs: what it prints and how it fails is what the model reads.

It keeps honest code from doing harm by accident (imports, private names, loops without an end); it is no wall
against hostile code, which belongs into a process of its own.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import FrameType
from typing import Any

from tracestore.errors import TracestoreError

MAX_STEPS = 20_000
"""Instructions of Python that one block may execute, those of loops counted each time."""
MAX_OUTPUT = 400
"""Characters of a block's output that are shown; the paper's harness shows 20,000."""
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
_BLOCK = re.compile(r"```repl[^\S\n]*\n(.*?)```", re.DOTALL)


class NotAllowed(Exception):
    """What this namespace does not run."""


class TooLong(BaseException):
    """A block executed too many steps; code cannot catch it."""


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
    """What the block bound, as its `repr`, cut to `MAX_OUTPUT`."""

    def shown(self) -> str:
        """What the model reads of it."""
        text = "\n".join(filter(None, (self.stdout.rstrip("\n"), self.error)))
        return text[:MAX_OUTPUT] if text else "(no output)"


class Repl:
    """Variables live from block to block."""

    def __init__(self, **variables: Any) -> None:
        self.variables: dict[str, Any] = dict(variables)
        """While a block runs, also the functions that it may call."""
        self._builtins = {name: getattr(builtins, name) for name in _ALLOWED}

    def run(self, code: str, **functions: Callable[..., Any]) -> Ran:
        """Run a block, in which `functions` may be called; whatever it raises is its error.

        Raises:
            TracestoreError: one of the functions did.
        """
        names = {"__builtins__": self._builtins} | self.variables | functions
        before, self.variables = self.variables, names
        out, error = StringIO(), None
        try:
            tree = ast.parse(code)
            _refuse(tree)
            with redirect_stdout(out), _StepLimit():
                exec(compile(tree, "<repl>", "exec"), names)
        except TracestoreError:
            raise  # not the code's: the model that a function asked could not be asked, or recorded
        except (Exception, TooLong) as raised:  # noqa: BLE001 - any of them is the code's own
            error = f"{type(raised).__name__}: {raised}"
        self.variables = {
            name: one for name, one in names.items() if name not in functions and not name.startswith("_")
        }
        bound = {name: one for name, one in self.variables.items() if before.get(name) is not one}
        return Ran(out.getvalue(), error, {name: repr(one)[:MAX_OUTPUT] for name, one in bound.items()})


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
