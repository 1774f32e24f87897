"""Files of span records -> events, one trace at a time: what the importers of tracing tools share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tracestore.importers import spans
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Sources
from tracestore.importers.guard import guarded
from tracestore.importers.items import Item, raw
from tracestore.importers.notes import Notes
from tracestore.importers.spans import Span
from tracestore.importers.spool import Spool

Found = Callable[[Any, str, Notes], Iterator[tuple[str, Any]]]
"""(a record of a file, its place, notes) -> (id of the trace, a span's record) of all that it holds."""
ToSpans = Callable[[str, list[tuple[Any, str]], Notes], Iterable[Span]]
"""(id of the trace, (record, place) of all its records, notes) -> its spans."""


def read(sources: Sources, *, format: str, notes: Notes, found: Found, to_spans: ToSpans) -> Iterator[Item]:  # noqa: A002
    """The events of all traces in the sources. The records of a trace may lie in several files.

    A record or a trace of a shape that nobody expected is refused, and the others are read.
    """
    spool = Spool()
    for source in sources:
        for record in records(source, notes=notes):
            told = guarded(found(record.value, record.at, notes), at=record.at, notes=notes)
            for trace_id, value in told:
                one = Record(value, record.at, record.line, bytes(raw(value)))
                spool.add(trace_id, one, source=source.name)
    for trace_id in spool.keys():  # noqa: SIM118 - a method of its own
        kept = [(record.value, record.at) for _, record in spool.of(trace_id)]
        yield from of_trace(trace_id, kept, format=format, notes=notes, to_spans=to_spans)


def of_trace(
    trace_id: str,
    kept: list[tuple[Any, str]],
    *,
    format: str,  # noqa: A002
    notes: Notes,
    to_spans: ToSpans,
) -> Iterator[Item]:
    """The events of one trace, of all its records with their places."""

    def items() -> Iterator[Item]:
        if made := list(to_spans(trace_id, kept, notes)):
            yield from spans.events(made, format=format, notes=notes)

    yield from guarded(items(), at=f"{kept[0][1]}, trace {trace_id}", notes=notes)


def pages(value: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """The records of a page of an API: those of a list, or under one of the names, or the value itself."""
    if isinstance(value, list):
        for one in value:
            yield from pages(one, names)
        return
    name = next((one for one in names if isinstance(value, dict) and isinstance(value.get(one), list)), None)
    if name is None:
        yield value
        return
    for one in value[name]:
        yield from pages(one, names)
