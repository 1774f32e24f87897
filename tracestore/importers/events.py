"""Our own wire events, one a line -> the same events, their text untouched.

The file is the body of `POST /v1/events` in NDJSON: what the client writes to its spool, and what
`sample_traces/` holds. A line that is no event is refused with its line number; the others pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tracestore.importers.documents import Document, Item, Notes
from tracestore.wire.decode import decode_event
from tracestore.wire.errors import EventError


def is_own(value: Any) -> bool:
    """Whether a parsed document looks like one of our events."""
    return isinstance(value, dict) and {"v", "kind", "id"} <= value.keys()


def events(documents: Iterable[Document], *, notes: Notes) -> Iterator[Item]:
    """The events of the documents, each with the text it stands in."""
    for document in documents:
        try:
            yield Item(decode_event(document.text), document.text)
        except EventError as error:
            notes.refused.append(f"line {document.number}: {error}")
