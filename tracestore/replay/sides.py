"""Two messages -> lines side by side, around the first one that differs.

role: user          role: user
content:            content:
  Find the bridge | Find a bridge
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, NamedTuple

from tracestore.replay.differences import shared

MOST = 200
"""Lines of each message that are looked at from the first difference on."""


class Row(NamedTuple):
    """A line of either side; None where one has no line beside the other's."""

    left: str | None
    right: str | None

    @property
    def mark(self) -> str:
        """As `diff -y` marks it: nothing for equal lines, | for others, < and > for one without the other."""
        if self.left is None or self.right is None:
            return ">" if self.left is None else "<"
        return " " if self.left == self.right else "|"


def side_by_side(one: Any, other: Any, *, around: int) -> list[Row]:
    """The first lines in which two values differ, with equal lines before and after them.

    Args:
        one, other: values of messages; each text in them is cut at its line breaks.
        around: equal lines at most, on either end.
    """
    left, right = list(_lines(one)), list(_lines(other))
    same = shared(left, right)
    if same == len(left) == len(right):
        return []
    first = max(0, same - around)
    rows = [Row(line, line) for line in left[first:same]]
    left, right = left[same : same + MOST], right[same : same + MOST]
    steps = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    for index, (what, start, end, other_start, other_end) in enumerate(steps):
        if what == "equal":
            rows += [Row(line, line) for line in left[start : min(end, start + around)]]
            if end - start > around or index == len(steps) - 1:
                break
        else:
            rows += [Row(*pair) for pair in zip_longest(left[start:end], right[other_start:other_end])]
    return rows


def _lines(value: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """A value as a person reads it: a line a field, texts of several lines below their name."""
    lead = "  " * depth
    label = f"{lead}{name}:" if name else lead
    if isinstance(value, str) and "\n" in value:
        yield label
        yield from (f"{lead}  {line}" for line in value.split("\n"))
    elif isinstance(value, (dict, list)) and value:
        below = depth + 1 if name else depth
        if name:
            yield label
        parts: Sequence[tuple[Any, Any]] = (
            list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        )
        for key, part in parts:
            yield from _lines(part, str(key), below)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{label} {text}" if name else f"{lead}{text}"


def cut(text: str | None, width: int, *, at: int = 0) -> str:
    """A line in so many characters, those around the character `at` where it is longer."""
    if text is None:
        return ""
    if len(text) <= width:
        return text
    first = max(0, min(at - width // 2, len(text) - width))
    shown = text[first : first + width]
    return ("…" if first else shown[:1]) + shown[1:-1] + ("…" if first + width < len(text) else shown[-1:])
