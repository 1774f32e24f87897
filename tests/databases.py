"""Empty stores on both databases, copied from one made once (a schema costs a second); what reading costs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import event

from tests.store.servers import emptied_store, postgresql_store
from tracestore.store import Store
from tracestore.store.fields import TABLES

_NAMES = " UNION ALL ".join(f"SELECT project_id, key, id FROM {table.name}" for table in TABLES.values())
NAMED_EVENTS = (
    "SELECT e.project_id, e.pos, e.kind, n.id, e.phase, n.key FROM raw_event e"
    f" JOIN ({_NAMES}) n ON n.project_id = e.project_id AND n.key = e.entity_key"
)
"""A query of every event with the id of its entity."""


DATABASES = ("sqlite", "postgresql")


def emptied(database: str, file: Path) -> str:
    """The URL of an empty store for one test; on PostgreSQL the next test empties it."""
    return empty_store(file) if database == "sqlite" else emptied_store()


@contextmanager
def store_on(database: str, file: Path) -> Iterator[Store]:
    """An empty store of our own, for many examples that are a project each."""
    if database == "sqlite":
        with Store.open(empty_store(file)) as store:
            yield store
    else:
        with postgresql_store() as url, Store.open(url) as store:
            yield store


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


def tamper(store: Store, sql: str) -> None:
    """Carry out a statement that no reference keeps from anything. Bytes are written x'00' in it."""
    with store.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        if store.engine.dialect.name == "sqlite":
            driver.execute("PRAGMA foreign_keys = OFF")
        else:
            driver.execute("SET session_replication_role = replica")
            sql = re.sub(r"x'(\w*)'", r"'\\x\1'::bytea", sql)
            driver.commit()
        with connection.begin():
            connection.exec_driver_sql(sql)
        connection.detach()


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
