"""The process in which a script runs that a model wrote: few names, and lines of JSON to its harness.

    from the harness   {"script": text, "files": names, "most": children}, then texts for each `wait`
    to the harness     {"spawn": [task, file]}, {"wait": true}, {"read": n}, {"print": text}, {"error": text}

Exit status: 0; 1 when the script raised; 2 when it says what no script may, and so does not run. Started
alone, as `python -I -S runner.py`, it can import nothing that is installed.
"""

from __future__ import annotations

import ast
import json
import resource
import sys
from typing import Any

MEMORY_BYTES = 512 * 2**20
_ATTRIBUTES = frozenset({"number", "text", "append"})
_NODES = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue),
    *(ast.Pass, ast.Name, ast.Constant, ast.Call, ast.keyword, ast.Attribute, ast.Subscript, ast.Slice),
    *(ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.JoinedStr),
    *(ast.FormattedValue, ast.IfExp, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.operator),
    *(ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context),
)
"""What a script may be made of. No import, no function of its own, no attribute but `_ATTRIBUTES`."""
_BUILTINS = (enumerate, int, len, list, max, min, range, sorted, str, sum, zip)


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    told = json.loads(sys.stdin.readline())
    try:
        tree = ast.parse(told["script"])
        for node in ast.walk(tree):
            _check(node)
        code = compile(tree, "script", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        _say(error=_line(error))
        return 2
    try:
        exec(code, _names(told["files"], told["most"]))
    except Exception as error:  # noqa: BLE001  (whatever a script raises is its result)
        _say(error=_line(error))
        return 1
    return 0


class Finding:
    """What a child harness returned, once it was waited for."""

    def __init__(self, place: int) -> None:
        self._place = place
        self._text: str | None = None

    @property
    def text(self) -> str:
        """What it said. Reading it tells the harness that it was used."""
        if self._text is None:
            raise ValueError("nothing was returned")
        _say(read=self._place)
        return self._text

    @property
    def number(self) -> int:
        return int(self.text)


def _names(files: list[str], most: int) -> dict[str, Any]:
    """What a script can name."""
    spawned: list[Finding] = []
    waited_for: list[Finding] = []

    def spawn(task: str, file: str) -> Finding:
        if len(spawned) == most:
            raise RuntimeError(f"no more than {most} children")
        _say(spawn=[str(task), str(file)])
        spawned.append(Finding(len(spawned)))
        return spawned[-1]

    def wait() -> list[Finding]:
        open_ones = spawned[len(waited_for) :]
        _say(wait=True)
        for finding, text in zip(open_ones, json.loads(sys.stdin.readline()), strict=True):
            finding._text = text
        waited_for.extend(open_ones)
        return open_ones

    def say(*values: Any) -> None:
        _say(print=" ".join(map(str, values)) + "\n")

    builtins = {one.__name__: one for one in _BUILTINS}
    return {"__builtins__": builtins, "FILES": files, "spawn": spawn, "wait": wait, "print": say}


def _check(node: ast.AST) -> None:
    if not isinstance(node, _NODES):
        raise ValueError(f"no script may say {type(node).__name__}")
    if isinstance(node, ast.Attribute) and node.attr not in _ATTRIBUTES:
        raise ValueError(f"no script may say .{node.attr}")
    if isinstance(node, ast.Name) and node.id.startswith("_"):
        raise ValueError(f"no script may say {node.id}")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
