"""What one finished shard adds to the manifest, and where finished shards wait for the others.

A manifest is a function of the plan and of the parts, which may be made in any order, by any process, in any
run. Beside each finished shard lies its part: written last, it says that the shard is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from tracestore.shards.manifest import ShardEntry
from tracestore.shards.row import Row
from tracestore.shards.write import Compression
from tracestore_exporters.conservation import Tally
from tracestore_exporters.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of the plan, done."""

    file: str
    """Its name in the plan."""
    shard: ShardEntry | None
    """None: its groups have no rows, so there is no file."""
    groups: int
    open_groups: int
    causes: Counter[str]
    """Samples by why they begin."""
    tally: Tally
    there: Inventory
    """What its groups hold of the things that a spec names."""


class Parts(Protocol):
    """The finished shards of an unfinished export. It goes from process to process as a value."""

    def write(self, file: str, rows: Iterable[Row], *, compression: Compression) -> ShardEntry | None:
        """Write one shard, seen whole or not at all; see `tracestore.shards.write.write_shard`."""

    def keep(self, part: Part) -> None:
        """Note that a shard that was written is done."""

    def find(self, file: str) -> Part | None:
        """A part that was kept and whose shard is there, byte for byte; None: it is still to be made."""


def shard_name(file: str, plan_hash: str) -> str:
    """The name under which a shard of a plan lies, so that the shards of two plans are never one file.

    Example: shard-00000.arrow of the plan 3f2a... is shard-00000-3f2a....arrow, with 16 digits of its hash
    """
    return file.removesuffix(_ENDING) + _of_plan(plan_hash)


def is_shard_of(name: str, plan_hash: str) -> bool:
    """Whether a file is called as the shards of a plan are."""
    return name.endswith(_of_plan(plan_hash))


def _of_plan(plan_hash: str) -> str:
    return f"-{plan_hash[:16]}{_ENDING}"


_ENDING = ".arrow"
_PART: TypeAdapter[Part] = TypeAdapter(Part)


def part_text(part: Part) -> bytes:
    """A part as its file holds it: JSON, with a hash."""
    value = _PART.dump_python(part, mode="json")
    return json.dumps({"part": value, "part_hash": _hash(value)}).encode() + b"\n"


def parse_part(text: bytes) -> Part | None:
    """The part that a file holds; None: it is damaged, or of another version."""
    try:
        value = json.loads(text)
        if value["part_hash"] != _hash(value["part"]):
            return None
        return _PART.validate_python(value["part"])
    except (ValueError, KeyError, TypeError, ValidationError):
        return None


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
