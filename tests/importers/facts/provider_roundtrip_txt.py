"""Debug transcripts of a script: attribute names with values cut short. No call can be made of them."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported


def facts(imported: Imported) -> dict[str, Any]:
    assert imported.events == []
    return {}


NOT_OURS = {
    "chars": "a text for people, refused as of no known format",
    "lines": "a text for people, refused as of no known format",
}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}
