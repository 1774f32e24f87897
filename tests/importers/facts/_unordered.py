"""Facts that are lists in the order of a file's lines, which events do not have: compared as sorted."""

from __future__ import annotations

import json
from typing import Any

from tests.fixtures import fixtures_root


def in_order(values: list[Any]) -> list[Any]:
    """Sorted, whatever they are."""
    return sorted(values, key=lambda value: json.dumps(value, sort_keys=True))


def sorted_facts(format: str, *keys: str) -> dict[tuple[str, str], tuple[Any, str]]:  # noqa: A002
    """DIFFERENT entries for lists of a manifest format whose order is that of the file's lines."""
    manifest = fixtures_root() / "MANIFEST.jsonl"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()] if manifest.is_file() else []
    return {
        (row["path"], key): (in_order(row["facts"][key]), "events have no order of lines: sorted")
        for row in rows
        if row["format"] == format
        for key in keys
        if isinstance(row["facts"].get(key), list)
    }
