"""Facts of recorded answers of Gemini CLI, from the events of an import and its report."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {"jsonl_in_json_file": "how a file is called is no part of a trace"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    return {"lines": len(imported.of("call"))}
