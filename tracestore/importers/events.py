"""Our own wire events, one a line -> the same events, their text untouched.

The file is the body of `POST /v1/events` in NDJSON: what the client writes to its spool, and what
`sample_traces/` holds. A line that is no event is refused with its line number; the others pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracestore.importers.documents import Line, lines, parsed
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.items import Item
from tracestore.importers.notes import Notes
from tracestore.wire.decode import SpanMemory, decode_event
from tracestore.wire.errors import EventError


def _recognises(head: Head) -> bool:
    return isinstance(head.first, dict) and {"v", "kind", "id"} <= head.first.keys()


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """The events of the sources, each with the text it stands in."""
    memory = SpanMemory()
    for source in sources:
        for line in lines(source, notes=notes):
            yield from _events(line, notes, memory)


def _events(line: Line, notes: Notes, memory: SpanMemory) -> Iterator[Item]:
    try:
        event = decode_event(line.text, memory=memory)
    except EventError as error:
        texts = [record.text for record in parsed(line, notes=Notes())]
        if len(texts) > 1:
            notes.warn("several records on one line")
            for text in texts:
                yield from _events(Line(line.source, line.number, text), notes, memory)
        else:
            notes.refuse(line.at, error)
        return
    notes.rows[f"events/{event.kind}"] += 1
    yield Item(event, line.text)


FORMAT = Format("events", "our own wire events (NDJSON)", _recognises, read)
