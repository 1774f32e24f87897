"""Two JSON values -> where they first differ: the path, the byte, and what stands there on either side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_AROUND = 40
"""Characters of a text that are shown from the difference on; half as many before it."""
ABSENT = "(nothing)"


@dataclass(frozen=True)
class Difference:
    """The first place at which two values differ."""

    path: str
    """As in `messages[2].content`; "" is the whole."""
    byte: int | None
    """UTF-8 bytes of the two texts that are equal; None where they are no texts."""
    recorded: str
    """What stands there, from a little before the difference on."""
    asked: str

    def told(self) -> dict[str, Any]:
        """For an answer or a line of JSON."""
        return {"path": self.path, "byte": self.byte, "recorded": self.recorded, "asked": self.asked}


def first_difference(recorded: Any, asked: Any, path: str = "") -> Difference | None:
    """The first difference, in the order of the recorded value; None where both are equal.

    Numbers that are equal are equal however they are spelled; true is not 1.

    Example: {"content": "find it"} and {"content": "find one"} -> content, byte 5, "find it", "find one"
    """
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in [*recorded, *(name for name in asked if name not in recorded)]:
            at = f"{path}.{name}" if path else str(name)
            if name not in recorded or name not in asked:
                return _plain(at, recorded.get(name, _MISSING), asked.get(name, _MISSING))
            found = first_difference(recorded[name], asked[name], at)
            if found is not None:
                return found
        return None
    if isinstance(recorded, list) and isinstance(asked, list):
        return _of_lists(recorded, asked, path)
    if isinstance(recorded, str) and isinstance(asked, str):
        return None if recorded == asked else _of_texts(recorded, asked, path)
    if recorded == asked and (isinstance(recorded, bool) == isinstance(asked, bool)):
        return None
    return _plain(path, recorded, asked)


def _of_lists(recorded: Sequence[Any], asked: Sequence[Any], path: str) -> Difference | None:
    for place in range(max(len(recorded), len(asked))):
        at = f"{path}[{place}]"
        if place >= len(recorded) or place >= len(asked):
            return _plain(at, *(side[place] if place < len(side) else _MISSING for side in (recorded, asked)))
        found = first_difference(recorded[place], asked[place], at)
        if found is not None:
            return found
    return None


def _of_texts(recorded: str, asked: str, path: str) -> Difference:
    same = shared(recorded, asked)
    first = max(0, same - _AROUND // 2)
    byte = len(recorded[:same].encode("utf-8", "surrogatepass"))
    return Difference(path, byte, *(_cut(side, first, same + _AROUND) for side in (recorded, asked)))


def shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many elements two sequences begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # compares slices, which is done in C
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(text: str, first: int, last: int) -> str:
    return ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")


_MISSING = object()


def _plain(path: str, recorded: Any, asked: Any) -> Difference:
    return Difference(path, None, _shown(recorded), _shown(asked))


def _shown(value: Any) -> str:
    return ABSENT if value is _MISSING else _cut(json.dumps(value, ensure_ascii=False), 0, 2 * _AROUND)
