"""Connections that keep their promises: 2xx means on disk, a write waits its turn, foreign keys hold."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError

from tracestore.errors import TracestoreError
from tracestore.store.codec import decompress
from tracestore.store.copy import listen
from tracestore.store.lookup import listen as listen_for_rows
from tracestore.store.tables import KEY_BITS, metadata

BUSY_TIMEOUT_MS = 30_000
_WRITES = "tracestore_writes"

_OPEN_HINT = "the folder must exist and be writable, and the last part must name a file"
_WRITE_HINT = "the file and its folder must be writable"
_SQLITE_HINTS = {
    sqlite3.SQLITE_PERM: _WRITE_HINT,
    sqlite3.SQLITE_BUSY: "another process is writing: try again",
    sqlite3.SQLITE_LOCKED: "another process is writing: try again",
    sqlite3.SQLITE_READONLY: _WRITE_HINT,
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: bring back a copy of it",
    sqlite3.SQLITE_CANTOPEN: _OPEN_HINT,
    sqlite3.SQLITE_NOTADB: "the file holds something else: name another one with --db",
}
"""What to do, by SQLite's result code. A code that is not here is about a statement, so a fault of ours."""

_FULL_HINT = "free some space where the database lies and send the same events again: it goes on by itself"
_LOG_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""SQLite waits for readers itself, for BUSY_TIMEOUT_MS; these come after that."""
_OUT_OF_SPACE = "53100"
"""SQLSTATE disk_full of PostgreSQL."""


_GIVEN_UP = ("40001", "40P01")
"""SQLSTATEs serialization_failure and deadlock_detected: the same transaction may well succeed."""


class BadUrl(TracestoreError):
    """This database URL cannot be used"""

    exit_code = 2


class NoStore(TracestoreError):
    """There is no tracestore in this database"""

    status = 503


class StoreUnavailable(TracestoreError):
    """The database cannot be used now"""

    status = 503


class Contended(StoreUnavailable):
    """Two writers of the database were in each other's way, again and again"""


class StoreFull(StoreUnavailable):
    """There is no space left for the database; nothing that is stored is harmed"""

    status = 507


class LogInUse(StoreUnavailable):
    """The database was written anew, but a reader still needs what its log holds"""


class UnsafeServer(TracestoreError):
    """The PostgreSQL server may lose what it has acknowledged"""

    status = 503


def connect(url: str, *, create: bool = True) -> Engine:
    """An engine for a `sqlite:///FILE` or `postgresql://...` URL.

    Args:
        create: whether a SQLite file may be made where there is none.

    Raises:
        BadUrl: another database, or one in memory, which no second connection could see.
        NoStore: there is no such file.
        UnsafeServer: PostgreSQL with fsync or synchronous_commit off.
        StoreUnavailable: the server does not answer. Everything that is done with the engine later raises it
            too when the database itself fails: full, locked, gone, not a database.
    """
    parsed = parse_url(url)
    # A reader waits for its query and never for a connection.
    engine = sa.create_engine(parsed, max_overflow=-1)
    event.listen(engine, "handle_error", _on_error)
    if engine.dialect.name == "sqlite":
        if not create and not Path(parsed.database or "").exists():
            raise NoStore(
                file=parsed.database,
                hint="name another one with --db, or make it with `tracestore import` or by posting events",
            )
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    else:
        listen(engine)
        listen_for_rows(engine)
        _require_durable(engine)
    return engine


def writer(engine: Engine) -> Engine:
    """The same engine, whose transactions take the write lock when they begin."""
    return engine.execution_options(**{_WRITES: True})


def read(engine: Engine) -> Connection:
    """A connection for reading; it sees one state of the database from its first statement on."""
    connection = engine.connect()
    # SQLite's transactions are so by nature.
    if engine.dialect.name != "sqlite":
        connection = connection.execution_options(isolation_level="REPEATABLE READ")
    return connection


def vacuum(engine: Engine) -> None:
    """Write the database anew without what is free in it: the room goes back to the disk, and no byte of a
    row that is gone is left in its files, SQLite's log included.

    It takes as long as a copy and as much room for that time, and other writers wait. PostgreSQL does it
    table by table; old pages of its own log (pg_wal) go with the next checkpoints.

    Raises:
        LogInUse: a reader kept SQLite from emptying its log.
    """
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        if engine.dialect.name == "sqlite":
            driver.execute("VACUUM")
            for pause_s in _LOG_PAUSES_S:
                if not driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    return
                time.sleep(pause_s)
            raise LogInUse(hint="end long queries and try again")
        driver.autocommit = True
        try:
            for table in metadata.tables.values():
                driver.execute(f'VACUUM (FULL) "{table.name}"')
        finally:
            driver.autocommit = False


def url_to_show(url: str) -> str:
    """The URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


def parse_url(url: str) -> URL:
    """A URL of a kind of database that a store can lie in.

    Raises:
        BadUrl: it is not.
    """
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError:
        raise BadUrl(url=url, hint="write sqlite:///FILE or postgresql://USER@HOST/NAME") from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise BadUrl(url=url, hint="a store lives in a file: sqlite:///tracestore.db")
        return parsed
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise BadUrl(url=url, hint="tracestore keeps its rows in SQLite or PostgreSQL")


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling begins late and never around DDL; SQLAlchemy's events do it.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: the log is synced before a commit returns. NORMAL would lose acknowledged rows with the power.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_size = -32768")
    connection.create_function("message_text", 1, _message_text(connection))


def _message_text(connection: sqlite3.Connection) -> Any:
    """`message_text(content_id)` for SQL: the text of a message, NULL for a content that is not there."""

    dictionaries: dict[tuple[int, int], bytes] = {}

    def dictionary_of(project_id: int, key: int | None) -> bytes | None:
        if key is None:
            return None
        if (project_id, key) not in dictionaries:
            sql = "SELECT data FROM dictionary WHERE project_id = ? AND key = ?"
            (dictionaries[project_id, key],) = connection.execute(sql, (project_id, key)).fetchone()
        return dictionaries[project_id, key]

    def text_of(content_id: int | None) -> str | None:
        if content_id is None:
            return None
        # Few queries read text, and it takes the wire's models to load.
        from tracestore.store.text import readable

        project_id = content_id >> KEY_BITS
        # The keys of a project either all hold its number (see `tables`) or none does.
        key = content_id & ((1 << KEY_BITS) - 1)
        row = connection.execute(
            "SELECT codec, data, dictionary_key FROM content WHERE project_id = ? AND key IN (?, ?)",
            (project_id, key, content_id),
        ).fetchone()
        if row is None:
            return None
        dictionary = dictionary_of(project_id, row[2])
        return readable(decompress(row[1], codec=row[0], dictionary=dictionary))

    return text_of


def _on_sqlite_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES)
    # IMMEDIATE: a transaction that reads first and writes later could not be made to wait, only fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _on_error(context: ExceptionContext) -> StoreUnavailable | None:
    """The error that SQLAlchemy raises instead of its own; None: its own."""
    error = context.original_exception
    url = None if context.engine is None else context.engine.url.render_as_string(hide_password=True)
    reason = " ".join(str(error).split())
    if getattr(error, "sqlstate", None) in _GIVEN_UP:
        return Contended(url=url, reason=reason, hint="send the same events again")
    if _is_out_of_space(error):
        return StoreFull(url=url, reason=reason, hint=_FULL_HINT)
    if isinstance(error, sqlite3.DatabaseError):
        hint = _SQLITE_HINTS.get(_sqlite_code(error))
    elif isinstance(context.sqlalchemy_exception, OperationalError):
        hint = "is the server running there, and does it let this user in?"
    else:
        hint = None
    if hint is None:
        return None
    return StoreUnavailable(url=url, reason=reason, hint=hint)


def _sqlite_code(error: BaseException) -> int:
    """SQLite's result code; 0 for an error that has none."""
    # The low byte is the code, the others say which kind of it.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_out_of_space(error: BaseException) -> bool:
    return _sqlite_code(error) == sqlite3.SQLITE_FULL or getattr(error, "sqlstate", None) == _OUT_OF_SPACE


def _require_durable(engine: Engine) -> None:
    with engine.connect() as connection:
        for setting in ("fsync", "synchronous_commit"):
            value = connection.exec_driver_sql(f"SHOW {setting}").scalar()
            if value == "off":
                raise UnsafeServer(setting=setting, value=value, hint=f"set {setting} = on")
