"""The formats that can be read, by name, and how a file's first document tells which it is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracestore.errors import TracestoreError
from tracestore.importers import atropos, events, nemo_gym
from tracestore.importers.documents import Document, Item, Notes

Reader = Callable[..., Iterator[Item]]


class UnknownFormat(TracestoreError):
    """Nothing here can read this."""

    exit_code = 2


@dataclass(frozen=True)
class Format:
    """One format: its reader, and the test that recognises a parsed document of it."""

    read: Reader
    """`read(documents, notes=...)`, a generator of events."""
    matches: Callable[[Any], bool]


FORMATS: Mapping[str, Format] = {
    "events": Format(events.events, events.is_own),
    "nemo-gym": Format(
        nemo_gym.events, lambda value: nemo_gym.is_rollout(value) or nemo_gym.is_round_trip(value)
    ),
    "atropos": Format(atropos.events, atropos.is_group),
}
"""What `tracestore import --format` can name, in the order in which a file is tried."""


def read(documents: Iterator[Document], *, format: str, notes: Notes) -> Iterator[Item]:  # noqa: A002
    """The events in the documents of one file.

    Args:
        format: a name of FORMATS, or "auto": the first document decides for the whole file.

    Raises:
        UnknownFormat: no format has this name, or none recognises the first document.
    """
    first = next(documents, None)
    if first is None:
        return
    name = _recognised(first) if format == "auto" else format
    if name not in FORMATS:
        raise UnknownFormat(format=format, hint=f"formats: auto, {', '.join(FORMATS)}")
    everything: Iterable[Document] = itertools.chain([first], documents)
    yield from FORMATS[name].read(everything, notes=notes)


def _recognised(first: Document) -> str:
    try:
        value = json.loads(first.text)
    except ValueError as error:
        hint = f"its first document is no JSON: {error}; name the format with --format"
        raise UnknownFormat(line=first.number, hint=hint) from None
    for name, one in FORMATS.items():
        if one.matches(value):
            return name
    keys = sorted(value)[:8] if isinstance(value, dict) else type(value).__name__
    raise UnknownFormat(line=first.number, keys=keys, hint=f"name one of {', '.join(FORMATS)} with --format")
