"""What an importer is: a name, a test that recognises a file by its content, and a reader.

A package may bring more of them. It names a `Format` under the entry point group `tracestore.importers`:

    [project.entry-points."tracestore.importers"]
    my-harness = "my_package.my_module:FORMAT"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracestore.importers.items import Item
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source

Reader = Callable[..., Iterator[Item]]


@dataclass(frozen=True)
class Head:
    """How a source begins. Files are told apart by what they hold, never by what they are called."""

    data: bytes
    """Its first bytes, decompressed (`sources.HEAD_BYTES`)."""
    records: tuple[Any, ...]
    """Its first JSON values (at most HEAD_RECORDS), or the whole file's where it is one document."""
    members: tuple[str, ...] = ()
    """Names in it, where it is a zip."""

    @property
    def first(self) -> Any:
        """The first record; None where there is none."""
        return self.records[0] if self.records else None


HEAD_RECORDS = 20


@dataclass(frozen=True)
class Format:
    """One format of trace files."""

    name: str
    """What `--format` names, e.g. claude-code."""
    title: str
    """What it is, for people, in a few words."""
    recognises: Callable[[Head], bool]
    read: Reader
    """`read(sources: Sequence[Source], *, notes: Notes) -> Iterator[Item]`: the events of all the sources of
    one import that are in this format. It gets them together, because a session may lie in several files."""


Sources = Sequence[Source]
__all__ = ["HEAD_RECORDS", "Format", "Head", "Item", "Notes", "Reader", "Source", "Sources"]
