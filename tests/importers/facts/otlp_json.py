"""Facts of OTLP requests."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {
    "resource_spans": "how an exporter groups the spans of a request is no part of a trace",
    "names": "the only span is of a web server: it is noted as not understood, and makes no event",
    "parents": "the only span is of a web server: it is noted as not understood, and makes no event",
}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    return {"spans": imported.notes.rows["otlp/span"]}
