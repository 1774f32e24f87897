"""Empty stores, copied from one made once (the schema takes a third of a second), and what reading costs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import event

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


def machine_steps(store: Store, read: Callable[[], object]) -> int:
    """Steps of SQLite's machine that a read takes, in tens. The same each time, on every computer."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def watch(driver: Any, *_: object) -> None:
        driver.set_progress_handler(count, 10)

    event.listen(store.engine, "checkout", watch)
    try:
        read()
    finally:
        event.remove(store.engine, "checkout", watch)
    return steps
