"""Values that others expect of an import of the files beside them: no traces, so nothing is imported."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {
    "keys": "expected totals and lists of files hold no call: they are what an import is checked with"
}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    """Nothing."""
    return {}
