"""Facts of OpenCode exports, from the events of an import and its report."""

from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    def rows(kind: str) -> dict[str, int]:
        prefix = f"opencode/{kind}/"
        return {
            name.removeprefix(prefix): count
            for name, count in imported.notes.rows.items()
            if name.startswith(prefix)
        }

    session = json.loads(imported.of("agent")[0].meta)["opencode"]["session"]
    return {
        "version": session["version"],
        "messages": sum(rows("message").values()),
        "roles": rows("message"),
        "parts": rows("part"),
        # The session's own totals, which here are those of its first call only.
        "tokens": session["tokens"],
    }
