"""Empty stores, copied from one that is made once (the schema alone costs a third of a second); their log."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tracestore.store import Store
from tracestore.store.fields import TABLES

_NAMES = " UNION ALL ".join(f"SELECT project_id, key, id FROM {table.name}" for table in TABLES.values())
NAMED_EVENTS = (
    "SELECT e.project_id, e.pos, e.kind, n.id, e.phase, n.key FROM raw_event e"
    f" JOIN ({_NAMES}) n ON n.project_id = e.project_id AND n.key = e.entity_key"
)
"""A query of every event with the id of its entity."""


def empty_store(file: Path) -> str:
    """Put the file there that `Store.open` makes where there is none; its URL."""
    file.write_bytes(_made())
    return f"sqlite:///{file}"


@cache
def _made() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        Store.open(f"sqlite:///{file}").close()
        assert list(file.parent.iterdir()) == [file]  # nothing of it is left in a log
        return file.read_bytes()
