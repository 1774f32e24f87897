"""Documents given as Python values -> the events an importer makes of them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracestore.importers import formats
from tracestore.importers.documents import Notes, documents, opened
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent


def read_bytes(data: bytes, *, format: str = "auto") -> tuple[list[AnyEvent], Notes]:  # noqa: A002
    """The events of a file with this content. Every text is checked to say what its event says."""
    notes = Notes()
    with io.BufferedReader(io.BytesIO(data)) as stream:
        items = list(formats.read(documents(opened(stream)), format=format, notes=notes))
    assert all(decode_event(item.text) == item.event for item in items)
    return [item.event for item in items], notes


def read_values(*values: Any, format: str = "auto") -> tuple[list[AnyEvent], Notes]:  # noqa: A002
    """The events of a JSON-lines file of these values."""
    return read_bytes("\n".join(map(json.dumps, values)).encode(), format=format)


def read_file(path: Path) -> tuple[list[AnyEvent], Notes]:
    return read_bytes(path.read_bytes())


def of_kind(events: Sequence[AnyEvent], kind: str) -> list[Any]:
    return [event for event in events if event.kind == kind]
