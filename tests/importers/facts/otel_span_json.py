"""Facts of lists of spans, and of the attributes of single ones."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {
    "names": "names of spans are no events; those of calls are kept beside them",
    "attribute_keys": "the number of attribute names is no count of what was recorded",
    "gen_ai_keys": "attribute names are no count of what was recorded",
    "llm_keys": "attribute names are no count of what was recorded",
}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    return {"spans": imported.notes.rows["otlp/span"]}
