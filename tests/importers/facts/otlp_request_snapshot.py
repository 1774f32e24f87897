"""Facts of captured export requests whose bodies are left out: they hold no span."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {"item_keys": "the fields of a captured HTTP request are no trace"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    return {"items": imported.report["not_understood"]["otlp: record without a span"]["count"]}
