"""Lines of a terminal -> questions: a statement ends at `;`, names are completed, lines are remembered."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tracestore.cli.common import print_line
from tracestore.errors import TracestoreError

PROMPT, MORE = "tracestore> ", "       ...> "
_HELP = """\
SELECT ... ;   answers one SELECT; it may take several lines
.views         lists the views and their columns; .views NAME one of them
.help          this
.quit          leaves, as Ctrl-D does; Ctrl-C forgets the line"""
_COMMANDS = (".help", ".quit", ".views")
_KEYWORDS = (
    *("AND", "AS", "ASC", "BETWEEN", "BY", "CASE", "COUNT", "DESC", "DISTINCT", "ELSE", "END", "EXISTS"),
    *("FROM", "GROUP", "HAVING", "IN", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "NOT", "NULL", "ON", "OR"),
    *("ORDER", "OVER", "PARTITION", "SELECT", "THEN", "UNION", "USING", "WHEN", "WHERE", "WITH"),
)
_HISTORY_LINES = 2000
_WORD = re.compile(r"[.\w]*$")


def shell(
    views: Mapping[str, Sequence[str]],
    *,
    answer: Callable[[str], int],
    read: Callable[[str], str] = input,
) -> int:
    """Read and answer until the end; 0.

    Args:
        views: columns by view.
        answer: asks one statement and prints what comes back.
        read: gives the next line for a prompt, EOFError at the end.
    """
    _prepare_readline(views)
    print_line("SQL over the views of one project; .help says more")
    lines: list[str] = []
    while True:
        try:
            line = read(MORE if lines else PROMPT)
        except EOFError:
            print_line()
            return 0
        except KeyboardInterrupt:
            print_line()
            lines = []
            continue
        if not lines and line.strip().startswith("."):
            if not _command(line.split(), views):
                return 0
        elif line.strip() or lines:
            lines.append(line)
            if line.rstrip().endswith(";"):
                _ask("\n".join(lines), answer)
                lines = []


def _ask(statement: str, answer: Callable[[str], int]) -> None:
    try:
        answer(statement)
        sys.stdout.flush()
    except TracestoreError as error:
        print_line(str(error))
    except KeyboardInterrupt:
        print_line("ended")


def _command(words: Sequence[str], views: Mapping[str, Sequence[str]]) -> bool:
    """Do what a line with a dot asks for; whether to go on."""
    if words[0] in (".quit", ".exit"):
        return False
    if words[0] == ".views":
        for view in words[1:] or views:
            print_line(f"{view}\n    {', '.join(views.get(view, ['there is no such view']))}")
    else:
        print_line(_HELP)
    return True


def completions(line: str, views: Mapping[str, Sequence[str]]) -> list[str]:
    """What the last word of a line can become: views, columns of the views it names (else all), keywords."""
    found = _WORD.search(line)
    word = found[0] if found else ""
    if line.startswith(".") and word == line:
        return [name for name in _COMMANDS if name.startswith(word)]
    before, dot, start = word.rpartition(".")
    named = [view for view in views if re.search(rf"\b{view}\b", line, flags=re.IGNORECASE)]
    columns = {column for view in named or views for column in views[view]}
    names = sorted(columns) if dot else [*sorted(views), *sorted(columns - set(views)), *_KEYWORDS]
    return [before + dot + name for name in names if name.lower().startswith(start.lower())]


def _prepare_readline(views: Mapping[str, Sequence[str]]) -> None:
    """Completion by the tab key, and a history that outlives the shell. Some Pythons have no readline."""
    try:
        import atexit
        import readline
    except ModuleNotFoundError:
        return
    history = _history_file()
    with suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(history)
    readline.set_history_length(_HISTORY_LINES)

    def save() -> None:
        with suppress(OSError):
            readline.write_history_file(history)

    atexit.register(save)
    found: list[str] = []

    def complete(word: str, state: int) -> str | None:
        if state == 0:
            found[:] = completions(readline.get_line_buffer()[: readline.get_endidx()], views)
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" \t\n,()=<>+-*/|;'\"")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tracestore" / "sql_history"
