from __future__ import annotations

from typing import Any

from tests.importers.facts import _exchanges as x
from tests.importers.reading import Imported


def facts(imported: Imported) -> dict[str, Any]:
    (call,) = imported.of("call")
    named = {
        "body": call.completions,
        "headers": x.http(call).get("response_headers"),
        "status": x.http(call).get("status"),
    }
    return {"keys": [name for name, value in named.items() if value]}


NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}
