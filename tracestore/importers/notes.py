"""What an importer met and could not carry over, or carried over by inference: counted, and shown verbatim.

Nothing is left out in silence. A field that no event has a place for goes into the `meta` of the event made
of its record; a record that makes no event is noted here with its text. The digest covers every text, so two
files that differ in a single byte of what was not understood have different notes.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

MAX_REFUSED = 10_000
"""Refusals of one import that are kept; all are counted."""
_MAX_EXAMPLES = 3
_MAX_EXAMPLE_CHARACTERS = 300
_MAX_NAMES = 1_000
_OTHERS = "(further names)"


@dataclass
class Leftover:
    """Records or fields of one name that were not understood."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    """The first few, verbatim, each with its place; long ones are cut."""
    _sum: int = 0

    def add(self, text: str, *, at: str) -> None:
        self.count += 1
        # A sum does not depend on the order in which the files were read.
        self._sum = (
            self._sum + int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
        ) % 2**256
        if len(self.examples) < _MAX_EXAMPLES:
            cut = text if len(text) <= _MAX_EXAMPLE_CHARACTERS else text[:_MAX_EXAMPLE_CHARACTERS] + " ..."
            self.examples.append(f"{at}: {cut}")

    @property
    def digest(self) -> str:
        """Hex digest over all texts, whatever their order."""
        return f"{self._sum:064x}"

    def facts(self) -> dict[str, Any]:
        return {"count": self.count, "digest": self.digest, "examples": self.examples}


@dataclass
class Notes:
    """The fidelity side of one import."""

    files: Counter[str] = field(default_factory=Counter)
    """Files read, by format."""
    rows: Counter[str] = field(default_factory=Counter)
    """Records read, by format and type: `claude-code/assistant`."""
    inferred: dict[str, Counter[str]] = field(default_factory=dict)
    """What no file states and was concluded -> the evidence -> how often."""
    not_understood: dict[str, Leftover] = field(default_factory=dict)
    """Fields and records that have no place, by name."""
    warnings: Counter[str] = field(default_factory=Counter)
    """What was carried over and looks wrong in the file."""
    refused: list[str] = field(default_factory=list)
    """Records and files that cannot be read, with their place and the reason; the first MAX_REFUSED."""
    num_refused: int = 0
    """All of them."""

    def infer(self, what: str, *, evidence: str) -> None:
        """Note a conclusion, e.g. infer("subagent of a tool call", evidence="its prompt")."""
        self.inferred.setdefault(what, Counter())[evidence] += 1

    def leftover(self, name: str, value: Any, *, at: str) -> None:
        """Note something that was not understood, verbatim.

        Args:
            name: what it is, the same for all of its kind: `claude-code: row summary`.
            value: its text, or the parsed JSON.
            at: its place: `file, line 3`.
        """
        if name not in self.not_understood and len(self.not_understood) >= _MAX_NAMES:
            name = _OTHERS
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=_text)
        self.not_understood.setdefault(name, Leftover()).add(text, at=at)

    def warn(self, text: str) -> None:
        """Note something that looks wrong, the same words for all of its kind."""
        self.warnings[text] += 1

    def refuse(self, at: str, reason: object) -> None:
        """Note a record or file that could not be read."""
        self.num_refused += 1
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(f"{at}: {reason}")


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
