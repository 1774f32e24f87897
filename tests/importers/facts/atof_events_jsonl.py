"""Facts of ATOF event streams."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {"keys": "the names of an event's fields are no count of what was recorded"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    kinds = {name.removeprefix("atof/"): num for name, num in imported.notes.rows.items()}
    return {"lines": sum(kinds.values()), "kinds": kinds}
